"""Runs that are damaged, concurrent, or fail: one sentence, and no lost work."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import dear
from dear.cli import main
from dear.clip import load_backbone
from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.core.lock import LOCK, only_writer
from dear.model.predictor import Predictor
from dear.training.adapter import CONFIG, WEIGHTS, _config_hash, load_adapter, save_adapter
from dear.training.run_folder import CHECKPOINT, METRICS, RunFolder
from hostile import survives


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(16):
        path = folder / ("$x_" if number % 2 else "light") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (16, 16), (9 * number,) * 3).save(path)
    return folder


@pytest.fixture(scope="module")
def arguments(photos, train_arguments):
    return lambda out, *more: train_arguments(out, "--data", str(photos), "--epochs", "2", *more)


@pytest.fixture(scope="module")
def run(tmp_path_factory, arguments) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(arguments(out)) == 0
    return out


# --- two at once, and what failed before -----------------------------------------------------------------------


def test_two_runs_never_share_a_folder(arguments, tmp_path, capsys) -> None:
    with only_writer(tmp_path / "out"):
        assert main(arguments(tmp_path / "out")) == 2
    assert "Somebody else is writing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_that_failed_before_its_first_epoch_can_be_replaced(arguments, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    for bad in (("--precision", "fp16"), ("--template", "a {x} {}"), ("--template", "a photo of " * 99 + "{}")):
        assert main(arguments(out, *bad)) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(arguments(out, "--resume")) == 0
    assert main(arguments(out)) == 2
    assert "already holds a run" in capsys.readouterr().err


# --- numbers that are none ---------------------------------------------------------------------------------------


def test_a_model_that_is_not_finite_is_neither_saved_nor_loaded(run, tmp_path) -> None:
    model = load_adapter(run).model
    value = next(iter(model.state_dict().values()))
    value.view(-1)[0] = float("nan")
    with pytest.raises(DearError, match="not finite"):
        save_adapter(tmp_path, "dear", model, "a {}")
    assert not list(tmp_path.iterdir())


def test_rates_of_every_size_end_in_numbers_or_a_sentence(arguments, tmp_path, capsys, photos) -> None:
    image = str(next(photos.rglob("*.png")))
    for rate in ("0", "1", "1e6", "1e30", "inf", "nan"):
        out = tmp_path / rate
        code = main(arguments(out, "--lr", rate, "--epochs", "1", "--warmup-epochs", "0"))
        said = capsys.readouterr()
        assert code in (0, 2)
        if code == 2:
            assert said.err.startswith("dear: ")
            assert not (out / CONFIG).exists()
            continue
        assert main(["predict", str(out), image, "--json"]) == 0
        json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


@pytest.mark.parametrize("name", ["cocoop", "mmrl"])
def test_a_rate_that_breaks_the_answers_leaves_no_finished_adapter(name, arguments, tmp_path, capsys) -> None:
    """Their weights stay finite: only the answers tell."""
    more = ["--method", name, "--lr", "1e6", "--optimizer", "sgd", "--epochs", "1", "--warmup-epochs", "0"]
    words = arguments(tmp_path / "out", *more)
    for flag in ("--roles", *(["--first-layer"] if name != "mmrl" else [])):
        del words[words.index(flag) : words.index(flag) + 2]
    code = main(words)
    said = capsys.readouterr().err
    if code == 2:
        assert not (tmp_path / "out" / CONFIG).exists()
        assert "lower --lr" in said
    else:  # by another rounding it may survive: then it answers
        assert dear.load(tmp_path / "out", device="cpu").predict(Image.new("RGB", (32, 32))).probability >= 0


def test_other_images_under_the_same_names_are_no_way_to_continue(arguments, photos, tmp_path, capsys) -> None:
    mine = shutil.copytree(photos, tmp_path / "photos")
    words = [str(mine) if word == str(photos) else word for word in arguments(tmp_path / "out")]
    assert main(words) == 0
    assert main([*words, "--resume"]) == 0
    for path in (mine / "light").iterdir():
        Image.new("RGB", (16, 16), "blue").save(path)
    capsys.readouterr()
    assert main([*words, "--resume"]) == 2
    assert "have changed since it was started: put them back, or train into another folder" in capsys.readouterr().err


# --- files of a run ----------------------------------------------------------------------------------------------


def test_changed_adapters_with_valid_checksums_load_or_are_refused(run, tmp_path, model_folder) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    config = read_json(folder / CONFIG)
    backbone = load_backbone(f"local-dir:{model_folder}")
    roles = config["extra_state"].pop("roles")  # tried elsewhere
    del config["config_sha256"], config["normalisation"], config["versions"]

    def use(changed: Any) -> object:
        if isinstance(changed, dict):
            if isinstance(changed.get("extra_state"), dict):
                changed = {**changed, "extra_state": {"roles": roles, **changed["extra_state"]}}
            changed = {**changed, "config_sha256": _config_hash(changed)}
        write_json(folder / CONFIG, changed)
        return Predictor(load_adapter(folder, backbone=backbone))

    use(config)
    assert survives(use, config, [None, -1, 10**9, 0.5, "x", [], {"a": 1}]) > 150


def test_weights_of_another_shape_or_not_finite(run, tmp_path) -> None:
    import hashlib

    from safetensors.torch import load_file, save

    folder = shutil.copytree(run, tmp_path / "run")
    weights = load_file(folder / WEIGHTS)
    config = read_json(folder / CONFIG)
    name = next(iter(weights))
    for changed in (
        {**weights, name: weights[name] * float("inf")},
        {**weights, name: torch.ones(3)},
        {**weights, "more": torch.ones(3)},
        {key: value for key, value in weights.items() if key != name},
        {},
    ):
        data = save(changed)
        (folder / WEIGHTS).write_bytes(data)
        about = {**config, "weights_sha256": hashlib.sha256(data).hexdigest()}
        del about["config_sha256"]
        write_json(folder / CONFIG, {**about, "config_sha256": _config_hash(about)})
        with pytest.raises(DearError):
            load_adapter(folder)


def test_changed_histories_load_or_are_refused(run, tmp_path) -> None:
    records = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]

    def use(changed: Any) -> object:
        lines = changed if isinstance(changed, list) else [changed]
        (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return RunFolder(tmp_path).history()

    assert use(records) == records
    assert survives(use, records) > 50


@pytest.mark.parametrize(("name", "read"), [("config", "settings"), ("test", "test"), ("few_shot", "few_shot")])
def test_other_changed_files_of_a_run_load_or_are_refused(run, tmp_path, name: str, read: str) -> None:
    value = read_json(run / f"{name}.json")
    if name == "few_shot":
        value |= {"train": value["train"][:2], "val": value["val"][:1]}

    def use(changed: Any) -> object:
        (tmp_path / f"{name}.json").write_text(json.dumps(changed))
        return getattr(RunFolder(tmp_path), read)()

    assert use(value) == {key: part for key, part in value.items() if key != "results"}
    assert survives(use, value) > 10
    with pytest.raises(DearError, match=f"{name}.json is damaged"):
        use([value])


def test_another_number_of_fusion_weights_is_damage(run, tmp_path) -> None:
    records = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    RunFolder(tmp_path).write_history([records[0], {**records[1], "fusion": records[1]["fusion"][1:]}])
    with pytest.raises(DearError, match="another number of fusion weights"):
        RunFolder(tmp_path).history()
    assert RunFolder(tmp_path).history(1) == records[:1]


# --- what a user gives -------------------------------------------------------------------------------------------


def test_class_names_and_numbers_in_code(run, photos) -> None:
    for names in ("cat", [], ["a", "a"], ["a", "a "], ["a", ""], [1], ["caf\udce9"], ["x" * 2000], 7):
        with pytest.raises(DearError):
            dear.load(run, classes=names)  # type: ignore[arg-type]
    for template in ("", "a", "{} {}", "{0}", "{} {x}", "{:>999999999}", "{!r}"):
        with pytest.raises(DearError):
            dear.load(run, template=template)
    model, image = dear.load(run, classes=["$a", "b_{c}$", "🦊"]), next(photos.rglob("*.png"))
    for topk in (0, -1, 1.5, "3"):
        with pytest.raises(DearError):
            model.predict(image, topk=topk)  # type: ignore[arg-type]
    assert len(model.predict(image, topk=10**9).top) == 3
    with pytest.raises(DearError):
        dear.load("x" * 300)


def test_class_names_are_drawn_literally(run, photos, tmp_path, capsys) -> None:
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbf$x\n$y$ \\frac{\n{}\n\xf0\x9f\xa6\x8a\n")
    image, out = str(next(photos.rglob("*.png"))), str(tmp_path / "why.svg")
    assert main(["explain", str(run), image, "--classes", str(tmp_path / "classes.txt"), "--out", out]) == 0
    assert "\ufeff" not in capsys.readouterr().out


def test_the_doctor(run, tmp_path, capsys, monkeypatch) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    monkeypatch.setattr("dear.commands.doctor._bundled_model", lambda: "not tried here")
    assert main(["doctor", str(folder)]) == 0
    assert "an adapter (dear, 2 classes), complete and unchanged; a checkpoint after epoch 2" in capsys.readouterr().out
    (folder / CHECKPOINT).write_bytes((folder / CHECKPOINT).read_bytes()[:-1])
    assert main(["doctor", str(folder), str(tmp_path / "nowhere")]) == 2
    out, err = capsys.readouterr()
    assert out.count("WRONG") == 2
    assert err == "dear: 2 of 8 checks failed: see above.\n"


def test_doctor_says_what_is_not_finished_and_what_leads_nowhere(run, tmp_path, capsys) -> None:
    begun = shutil.copytree(run, tmp_path / "begun", ignore=shutil.ignore_patterns("adapter_*", "test.json"))
    main(["doctor", str(begun)])
    said = capsys.readouterr().out
    assert f"note   {begun}: a checkpoint after epoch 2, metrics of 2; training is not finished" in said
    (begun / CONFIG).symlink_to("nowhere")
    assert main(["doctor", str(begun)]) == 2
    assert f"WRONG  {begun}" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["[]", "null", "3", '"x"', "{}", '{"data": 3}'])
def test_whatever_config_json_holds_the_page_opens_or_says_so(run, tmp_path, content: str) -> None:
    from dear.server.api import Service
    from dear.server.page.views import Page

    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "config.json").write_text(content)
    with Service.open(folder, None) as service, suppress(DearError):
        Page(folder, service)


def test_pipes_in_place_of_files_are_refused_and_never_waited_for(
    run, arguments, tmp_path, capsys, monkeypatch
) -> None:
    """Opening a pipe waits until somebody writes: a folder made by others would hold a thread for ever."""
    monkeypatch.setattr("dear.commands.doctor._bundled_model", lambda: "not tried here")
    for name in sorted(path.name for path in run.iterdir()):
        folder = shutil.copytree(run, tmp_path / name / "run")
        (folder / name).unlink()
        os.mkfifo(folder / name)
        for command in (["doctor", str(folder)], ["predict", str(folder), "x.png"], arguments(folder, "--resume")):
            main(command)
    assert "Traceback" not in capsys.readouterr().err
    locked = tmp_path / "locked"
    locked.mkdir()
    os.mkfifo(locked / LOCK)
    assert main(arguments(locked)) == 2
    assert "Cannot write to" in capsys.readouterr().err

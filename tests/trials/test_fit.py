"""`dear.fit`: the best method without training, by leave-one-out on the user's own images."""

import json
import re
import shutil
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL import Image

import dear
from dear.cli import main
from dear.core.errors import DearError, DearWarning
from dear.core.metrics import wilson_interval
from dear.methods.closed_forms import GdaHead
from dear.methods.registry import CLOSED_FORMS, UNFITTED
from dear.training.store import ImageStore
from dear.trials import fit as fit_module
from dear.trials.curve import learning_curve
from dear.trials.selection import select, simplest
from dear.trials.trial import Trial

COLORS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 210)}


def picture(color: tuple[int, int, int], seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).normal(0, 40, (32, 32, 3))
    return Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Eight noisy pictures of each of three colours."""
    folder = tmp_path_factory.mktemp("fit") / "photos"
    for number, (name, color) in enumerate(COLORS.items()):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            picture(color, 100 * number + i).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def options(model_folder: Path, tmp_path_factory) -> dict:
    return {"model": f"local-dir:{model_folder}", "cache": tmp_path_factory.mktemp("cache"), "device": "cpu"}


def test_a_folder_is_enough(photos: Path, options: dict, tmp_path: Path, capsys) -> None:
    model = dear.fit(photos, out=tmp_path / "run", **options)
    shown, comparison = capsys.readouterr().out, model.comparison
    assert {row.method for row in comparison.board.outcomes} == {*UNFITTED, *CLOSED_FORMS}
    assert comparison.images == 24, "all images are used: none is set aside"
    assert model.method == comparison.chosen in CLOSED_FORMS
    best = {row.method: row for row in comparison.board.outcomes}
    assert best[model.method].accuracy > best["zero-shot"].accuracy
    assert best[model.method].interval[0] < best[model.method].accuracy
    assert "More labels" in shown
    assert f"* {model.method}" in shown
    answers = model.predict([picture(color, 7) for color in COLORS.values()])
    assert [answer.choice for answer in answers] == list(COLORS)
    loaded = dear.load(tmp_path / "run", device="cpu")
    assert loaded.predict([picture(color, 7) for color in COLORS.values()]) == answers
    assert loaded.comparison == comparison
    assert repr(loaded.comparison) in shown, "what a notebook shows"
    assert json.loads((tmp_path / "run" / "fit.json").read_text()) == json.loads(json.dumps(comparison.to_json()))
    assert len(json.loads((tmp_path / "run" / "few_shot.json").read_text())["train"]) == 24
    with pytest.raises(DearError, match="already holds a run"):
        dear.fit(photos, out=tmp_path / "run", **options)
    model.save(tmp_path / "saved")
    assert dear.load(tmp_path / "saved", device="cpu").classes == ("blue", "green", "red")
    (tmp_path / "run" / "fit.json").write_text('{"images": -1}')
    with pytest.raises(DearError, match=r"fit\.json is damaged .*: fit the model again"):
        dear.load(tmp_path / "run", device="cpu")


def test_a_second_fit_encodes_nothing(photos: Path, options: dict, monkeypatch) -> None:
    dear.fit(photos, **options)
    monkeypatch.setattr(ImageStore, "_compute", lambda *_: pytest.fail("an image was encoded again"))
    renamed = dear.fit(photos, method="gda", template="a {} wall.", **options)
    assert (renamed.method, renamed.template) == ("gda", "a {} wall.")


def test_images_in_memory_give_the_same_fit(photos: Path, options: dict) -> None:
    files = sorted(photos.glob("*/*.png"))
    labels = [file.parent.name for file in files]
    expected = dear.fit(photos, **options).comparison
    for images in (files, [np.array(Image.open(file)) for file in files]):
        board = dear.fit(images, labels, **options).comparison.board
        for row, other in zip(board.outcomes, expected.board.outcomes, strict=True):
            assert (row.method, row.accuracy) == (other.method, other.accuracy)
            assert row.cross_entropy == pytest.approx(other.cross_entropy, abs=1e-3)  # files come in another order


def test_a_test_split_is_only_tested_on(photos: Path, options: dict, tmp_path: Path) -> None:
    files = sorted(photos.glob("*/*.png"))
    rows = "".join(f"{f},{f.parent.name},{'test' if f.stem in '67' else 'train'}\n" for f in files)
    (tmp_path / "list.csv").write_text("path,label,split\n" + rows)
    model = dear.fit(tmp_path / "list.csv", out=tmp_path / "run", **options)
    assert model.comparison.images == 18
    assert json.loads((tmp_path / "run" / "test.json").read_text()).keys() == {"all"}
    drawn = json.loads((tmp_path / "run" / "few_shot.json").read_text())["train"]
    assert not any(Path(path).stem in "67" for path, _ in drawn)


def test_one_image_per_class_cannot_be_checked(options: dict, capsys) -> None:
    model = dear.fit([picture(color, 3) for color in COLORS.values()], list(COLORS), **options)
    assert model.method == "proker"
    assert model.comparison.board is None
    assert model.comparison.images == 0
    assert "no method can be checked" in str(model.comparison)
    assert "Label a second image of each class" in str(model.comparison)
    assert "without it" not in capsys.readouterr().out, "no image was checked"
    model = dear.fit([picture(color, 3) for color in COLORS.values()], list(COLORS), method="gda", **options)
    assert "it is zero-shot then" in str(model.comparison)


@pytest.fixture(scope="module")
def unbalanced(photos: Path, tmp_path_factory) -> Path:
    """One picture of blue, three of green, eight of red."""
    folder = tmp_path_factory.mktemp("unbalanced") / "photos"
    shutil.copytree(photos, folder)
    for name, count in {"blue": 1, "green": 3}.items():
        for file in sorted((folder / name).iterdir())[count:]:
            file.unlink()
    return folder


def test_small_classes_are_named(unbalanced: Path, options: dict, capsys) -> None:
    comparison = dear.fit(unbalanced, **options).comparison
    shown = capsys.readouterr().out
    assert "1 of 3 classes has one image, so it cannot be measured: blue." in shown
    assert "they have 3 to 8 images" in shown
    assert "change little" not in comparison.advice
    assert "blue (1), green (3)" in comparison.advice
    chosen = comparison.board[comparison.chosen]
    assert comparison.curve[-1].accuracy == pytest.approx(chosen.accuracy), "the same images as in the table"


def test_classes_without_images_are_named(photos: Path, options: dict) -> None:
    files = sorted(photos.glob("*/*.png"))
    names = [*COLORS, "grey", "pink"]
    labels = [names.index(file.parent.name) for file in files]
    with pytest.warns(DearWarning, match="2 of 5 classes have no labelled images, .* beside the others: grey, pink"):
        model = dear.fit(dear.dataset(files, labels, classes=names), **options)
    assert model.comparison.advice.startswith("Label more images of grey (0), pink (0)")


@pytest.mark.parametrize("saved", [True, False])
def test_images_of_the_fit_are_no_test_images(photos: Path, options: dict, tmp_path: Path, saved: bool) -> None:
    model = dear.fit(photos, method="gda", out=tmp_path / "run" if saved else None, **options)
    new = tmp_path / "new"
    for name, color in COLORS.items():
        (new / name).mkdir(parents=True)
        for i in range(4):
            picture(color, 900 + i).save(new / name / f"{i}.png")
    for one in (model, *([dear.load(tmp_path / "run", device="cpu")] if saved else [])):
        with pytest.warns(DearWarning, match="trained on all of the 24 images of photos"):
            one.evaluate(photos)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            one.evaluate(new)
        files = [photos / "red" / "0.png", photos / "red" / "1.png", *sorted((new / "blue").iterdir())]
        with pytest.warns(DearWarning, match="trained on 2 of the 6 images"):
            one.evaluate((files, [file.parent.name for file in files]), split="all")
        with pytest.warns(DearWarning, match="if these are among them"):
            one.evaluate(([picture(COLORS["red"], 1), picture(COLORS["blue"], 2)], ["red", "blue"]), split="all")


def test_advice_for_a_method_that_is_no_closed_form(photos: Path, options: dict, monkeypatch) -> None:
    monkeypatch.setattr(fit_module, "select", lambda *args: replace(select(*args), chosen="zero-shot"))
    comparison = dear.fit(photos, **options).comparison
    assert comparison.chosen == "zero-shot"
    assert re.search(r"both with (ss-text|gda|proker), the best method in closed form\.$", comparison.advice)


def test_a_trained_method_is_trained_once_and_in_each_fold(photos: Path, options: dict, monkeypatch, capsys) -> None:
    monkeypatch.setattr(fit_module, "QUICK", ("linear-probe", "clap"))
    monkeypatch.setattr(fit_module, "uncropped_trial", partial(fit_module.uncropped_trial, epochs=2))
    fit, calls = Trial.fit, []
    monkeypatch.setattr(Trial, "fit", lambda self, *args, **more: calls.append(self.method) or fit(self, *args, **more))
    model = dear.fit(photos, thorough=True, **options)
    for name in ("linear-probe", "clap"):
        assert calls.count(name) == 5 + (model.method == name)
    probe = model.comparison.board["linear-probe"]
    assert (probe.measured, probe.accuracy > 80) == ("5 folds", True)
    assert "epoch" not in capsys.readouterr().err


def test_bad_requests_are_refused_in_a_sentence(photos: Path, options: dict, tmp_path: Path) -> None:
    with pytest.raises(DearError, match="`dear train` has the others"):
        dear.fit(photos, method="coop", **options)
    with pytest.raises(DearError, match="is a file: give a folder as --cache"):
        dear.fit(tmp_path, **{**options, "cache": photos / "red" / "0.png"})
    with pytest.raises(DearError, match=r"cannot be kept in /proc/none \(.*\): give another folder as --cache"):
        dear.fit(photos, **{**options, "cache": "/proc/none"})
    for unused in ("shots", "few_shot", "validate", "fast_decode"):  # settings of training
        with pytest.raises(DearError, match=f"no setting '{unused}' for fit"):
            dear.fit(photos, **{unused: 3}, **options)
    with pytest.raises(DearError, match=r"labels beside the images, as \(images, labels\)"):
        dear.fit([photos / "red" / "0.png"], **options)
    with pytest.raises(DearError, match=r"dear\.dataset\(\.\.\., label=NAME\)"):
        dear.fit([{"image": str(photos / "red" / "0.png"), "kind": "red"}], **options)
    with pytest.raises(DearError, match="write local-dir:"):
        dear.fit(photos, **{**options, "model": str(photos)})
    with pytest.raises(DearError, match="did you mean ViT-B-16"):
        dear.fit(photos, **{**options, "model": "vit-b-16"})
    with pytest.raises(DearError, match="`dear fit` and `dear train` make one"):
        dear.load(tmp_path)
    with pytest.raises(DearError, match="give each image one label"):
        dear.fit([photos / "red" / "0.png"], ["red", "blue"], **options)


def test_the_command_does_the_same(photos: Path, options: dict, tmp_path: Path, capsys) -> None:
    where = ["--model", options["model"], "--cache", str(options["cache"]), "--out", str(tmp_path / "run")]
    assert main(["fit", str(photos), *where, "--json"]) == 0
    shown = capsys.readouterr()
    rows = json.loads(shown.out)["comparison"]
    assert {row["method"] for row in rows["board"]["outcomes"]} == {*UNFITTED, *CLOSED_FORMS}
    assert all(isinstance(row["cross_entropy"], float) for row in rows["board"]["outcomes"])
    assert rows["chosen"] in CLOSED_FORMS
    assert rows["advice"].startswith("More labels")
    assert "dear predict" in shown.err
    assert "search by an image or a sentence" in shown.err
    assert main(["predict", str(tmp_path / "run"), str(photos / "red" / "0.png")]) == 0
    assert "red" in capsys.readouterr().out
    assert main(["fit", str(photos), *where]) == 2
    assert "choose another --out" in capsys.readouterr().err


# --- the choice ----------------------------------------------------------------------------------------------


def test_the_simplest_method_within_noise_is_chosen() -> None:
    torch.manual_seed(0)
    noise = torch.randn(100)
    losses = {"simple": 1 + noise, "better": 0.95 + noise + torch.randn(100), "other": 2 + noise}
    alike = torch.ones(100)
    assert simplest(losses, alike)[0] == "simple"
    assert simplest({**losses, "better": 0.5 + noise + 0.1 * torch.randn(100)}, alike)[0] == "better"
    assert simplest({"only": noise}, alike) == ("only", "only, as asked.")
    few = torch.cat([torch.full((10,), 9.0), torch.ones(90)])  # these count as much as all others together
    split = {"simple": noise, "for few": noise + torch.cat([torch.full((10,), -0.5), torch.full((90,), 0.1)])}
    assert simplest(split, alike)[0] == "simple"
    assert simplest(split, few / few.mean())[0] == "for few"


def test_single_images_of_a_class_are_left_aside() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2])
    logits = torch.eye(3)[labels] * 3
    comparison = select({"a": (logits, "x")}, labels, ["red", "green", "blue"])
    assert comparison.images == 4
    assert comparison.board.best.accuracy == 100
    assert comparison.notes == ("1 of 3 classes has one image, so it cannot be measured: blue.",)


def test_all_classes_count_alike() -> None:
    labels = torch.tensor([0] * 16 + [1] * 4)
    answers = torch.tensor([0] * 16 + [1, 0, 0, 0])
    logits = torch.eye(2)[answers] * 3
    good_for_few = torch.eye(2)[torch.tensor([0] * 11 + [1] * 9)] * 3
    comparison = select({"for many": (logits, "x"), "for few": (good_for_few, "x")}, labels, ["red", "green"])
    row, other = comparison.board["for many"], comparison.board["for few"]
    assert (row.accuracy, other.accuracy) == pytest.approx((62.5, 100 * (11 / 16 + 1) / 2))
    assert comparison.chosen == "for few"
    assert row.interval == pytest.approx(wilson_interval(0.625 * 12.8, 12.8)), "4 images weigh as much as 16"
    confidence = 1 / (1 + np.exp(-3))
    assert row.ece == pytest.approx(100 * (confidence - 0.625), abs=1e-4)
    assert "means over classes, which count alike: they have 4 to 16 images." in str(comparison)
    assert select({"a": (logits[12:], "x")}, labels[12:], ["red", "green"]).notes == ()


def test_the_learning_curve_equals_fits_on_fewer_labels() -> None:
    torch.manual_seed(0)
    text = torch.nn.functional.normalize(torch.randn(3, 10, dtype=torch.float64), dim=1)
    labels = torch.arange(3).repeat(20)
    features = torch.nn.functional.normalize(text[labels] + 0.6 * torch.randn(60, 10, dtype=torch.float64), dim=1)
    head = GdaHead(10, 20.0, features)
    head.fit(features, labels, text)
    generator, shares = torch.Generator().manual_seed(0), {5: [], 10: []}
    for order in [torch.randperm(60, generator=generator).tolist() for _ in range(5)]:
        for kept_of_class, accuracies in shares.items():
            kept = [i for label in range(3) for i in [i for i in order if labels[i] == label][:kept_of_class]]
            others = [i for i in range(60) if i not in kept]
            part = GdaHead(10, 20.0, features)
            part.fit(features[kept], labels[kept], text)
            answers = [*part.left_out.argmax(1).tolist(), *part(features[others], text).argmax(1).tolist()]
            accuracies.append(100 * sum(a == labels[i] for a, i in zip(answers, kept + others, strict=True)) / 60)
    assert len({*shares[10]}) > 1, "one half is better than another"
    curve, advice = learning_curve(head, features, labels, text, ["a", "b", "c"])
    assert [point.images_per_class for point in curve] == [5, 10, 20]
    assert curve[-1].accuracy == pytest.approx(100 * (head.left_out.argmax(1) == labels).double().mean().item())
    for point, accuracies in zip(curve, shares.values(), strict=False):
        assert point.accuracy == pytest.approx(float(np.mean(accuracies)))
    assert f"{curve[1].accuracy:.1f}%" in advice

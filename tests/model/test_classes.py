"""`dear add`, `remove`, `rename`: the scores of the other classes stay where the maths says so."""

from pathlib import Path

import pytest
import torch

import dear
from dear.cli import main
from dear.data.world.tasks import world_task

NAMES = ("green", "orange", "red", "yellow")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Four pictures of each of four colours in photos/, and of a fifth in teal/."""
    folder, task = tmp_path_factory.mktemp("classes"), world_task("colors")
    for name in (*NAMES, "teal"):
        where = folder / name if name == "teal" else folder / "photos" / name
        where.mkdir(parents=True)
        own = [e for e in task.train if task.classes[e.label] == name][:4]
        for number, example in enumerate(own):
            example.picture.open().save(where / f"{number}.png")
    return folder


@pytest.fixture(scope="module", params=["tip-adapter", "ss-text", "gda", "proker", "linear-probe", "head-gains"])
def run(request, place: Path) -> Path:
    out = place / request.param
    settings = {"model": "dear-mini", "device": "cpu", "shots": 4, "split": "75/0/25"}
    dear.train(place / "photos", method=request.param, out=out, **settings)
    return out


def logits(run: Path, place: Path) -> torch.Tensor:
    model = dear.load(run, device="cpu")
    pixels = torch.stack([model.preprocess(e.picture.open()) for e in world_task("colors").test[::40]])
    features = model.model.encode_image(model.model.layer_input(pixels))
    return model.model.logits(features, model.model.encode_text(model.model.classes)).detach()


def test_add_remove_and_rename(run: Path, place: Path, tmp_path: Path) -> None:
    before = logits(run, place)
    more, fewer, renamed = (tmp_path / name for name in ("more", "fewer", "renamed"))
    assert main(["add", str(run), str(place / "teal"), "--out", str(more), "--device", "cpu"]) == 0
    after = logits(more, place)
    assert after.shape[1] == 5
    assert dear.load(more, device="cpu").classes == (*NAMES, "teal")
    if run.name == "tip-adapter":  # a class has its own keys; nothing is shared
        assert torch.allclose(after[:, :4], before, atol=1e-5)
    right = dear.load(more, device="cpu").predict(str(place / "teal" / "0.png"))
    assert right.choice == "teal" or run.name in ("ss-text", "linear-probe"), "it knows this picture"
    again = tmp_path / "again"
    assert main(["remove", str(more), "teal", "--out", str(again)]) == 0
    assert torch.allclose(logits(again, place), after[:, :4], atol=1e-4)
    assert main(["remove", str(run), "orange", "--out", str(fewer)]) == 0
    assert torch.allclose(logits(fewer, place), before[:, [0, 2, 3]], atol=1e-4)
    assert main(["rename", str(run), "orange", "amber", "--out", str(renamed)]) == 0
    assert dear.load(renamed, device="cpu").classes == ("green", "amber", "red", "yellow")
    assert torch.allclose(logits(renamed, place)[:, [0, 2, 3]], before[:, [0, 2, 3]], atol=1e-4)
    assert main(["add", str(fewer), str(place / "teal"), "--out", str(tmp_path / "last"), "--device", "cpu"]) == 0
    assert dear.load(tmp_path / "last", device="cpu").classes == ("green", "red", "yellow", "teal")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "{run}", "{place}/nowhere"], "has no images"),
        (["add", "{run}", "{place}/photos/red"], "red"),
        (["remove", "{run}", "blue"], "has no class 'blue'"),
        (["remove", "{run}", "red", "orange", "yellow"], "At least two classes"),
        (["rename", "{run}", "red", "green"], "green"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, place, tmp_path, capsys) -> None:
    run = place / "for-errors"
    if not run.exists():
        dear.fit(place / "photos", method="gda", model="dear-mini", device="cpu", out=run)
    words = [word.format(run=run, place=place) for word in arguments]
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_trained_method_must_train_again(finished_run, place, tmp_path, capsys) -> None:
    assert main(["add", str(finished_run), str(place / "teal"), "--out", str(tmp_path / "out")]) == 2
    assert "must train again" in capsys.readouterr().err

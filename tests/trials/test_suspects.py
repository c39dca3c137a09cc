"""`dear data suspects`: planted wrong labels, near-duplicates and outliers, against plain forms."""

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from dear.cli import main
from dear.core.errors import DearWarning
from dear.data.folder import read_dataset
from dear.trials.suspects import (
    _MIXED,
    _SHARPER,
    Suspect,
    fence,
    label_noise,
    nearest_mean,
    nearest_of_another_class,
    write_cleaned,
)

COLORS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 210)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Twelve noisy pictures of each of three colours; a blue one is among the red ones."""
    folder = tmp_path_factory.mktemp("suspects") / "photos"
    for number, (name, color) in enumerate(COLORS.items()):
        (folder / name).mkdir(parents=True)
        for i in range(12):
            noise = np.random.default_rng(100 * number + i).normal(0, 30, (32, 32, 3))
            Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")
    (folder / "blue" / "3.png").rename(folder / "red" / "blue.png")
    return folder


def clouds(images: int, classes: int, spread: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features around class centres, labels and centres."""
    draw = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(classes, 64, generator=draw), dim=1)
    labels = torch.arange(images) % classes
    noise = torch.randn(images, 64, generator=draw) / 8
    return F.normalize(centres[labels] + spread * noise, dim=1), labels, centres


def test_a_folder_gives_a_table_a_sheet_and_clean_lists(
    photos: Path, model_folder: Path, tmp_path: Path, capsys
) -> None:
    out = {name: tmp_path / f"{name}.csv" for name in ("out", "drop", "relabel")}
    flags = ["--cache", str(tmp_path / "c")] + [part for name, file in out.items() for part in (f"--{name}", str(file))]
    arguments = [
        "data",
        "suspects",
        str(photos),
        "--model",
        f"local-dir:{model_folder}",
        "--cache",
        str(tmp_path / "c"),
    ]
    assert main([*arguments, *flags, "--sheet", str(tmp_path / "sheet.png"), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["suspects"]
    assert table[0]["image"].endswith("blue.png")
    assert (table[0]["label"], table[0]["rather"], table[0]["reason"]) == ("red", "blue", "label")
    assert Image.open(tmp_path / "sheet.png").width > 150
    rows = list(csv.DictReader(out["out"].open()))
    assert len(rows) == len(table)
    assert float(rows[0]["wrong"]) > 0.9
    dropped, relabelled = (read_dataset(out[name]) for name in ("drop", "relabel"))
    sizes = [Counter(data.classes[e.label] for e in (*data.train, *data.test)) for data in (dropped, relabelled)]
    assert sizes[0].total() == 36 - len(table)
    assert sizes[1] == dict.fromkeys(COLORS, 12)
    paths = {str(example.picture): relabelled.classes[example.label] for example in relabelled.train + relabelled.test}
    assert paths[str(photos / "red" / "blue.png")] == "blue"


def test_label_noise_is_that_of_a_search_over_all_parameters() -> None:
    """A plain search finds no parameters under which the labels are more probable, and Bayes by hand agrees."""
    features, truth, centres = clouds(600, 6, 1.5)
    labels = truth.clone()
    bad = torch.randperm(600, generator=torch.Generator().manual_seed(1))[:60]
    labels[bad] = (truth[bad] + 1 + bad % 5) % 6
    logits = 6 * features @ centres.T
    noise = label_noise(logits, labels)

    def likelihood(g: float, h: float, rate: float) -> tuple[float, torch.Tensor]:
        r, s = (g * logits.double()).softmax(1), (h * g * logits.double()).softmax(1)
        table = rate * s[:, None] / (1 - s[:, :, None])  # images, true, label
        table[:, range(6), range(6)] = 1 - rate
        torch.testing.assert_close(table.sum(2), torch.ones(600, 6).double())
        joint = r * table[torch.arange(600), :, labels]
        return float(joint.sum(1).log().mean()), 1 - joint[torch.arange(600), labels] / joint.sum(1)

    found = {(g, h, e / 200): likelihood(g, h, e / 200) for g in _SHARPER for h in _MIXED for e in range(1, 40)}
    best = max(found, key=lambda at: found[at][0])
    assert noise.rate == pytest.approx(best[-1], abs=0.005)
    torch.testing.assert_close(noise.wrong, found[best][1], atol=0.05, rtol=0)
    named = noise.wrong > 0.5
    assert named[bad].double().mean() > 0.9
    assert (labels != truth)[named].double().mean() > 0.9
    clean = label_noise(logits, truth)
    assert (clean.wrong > 0.5).sum() <= 3, "right labels are left alone"


def test_nearest_is_that_of_all_pairs_and_finds_planted_twins_among_many() -> None:
    features, labels, _ = clouds(6_300, 30, 1.5)
    features = F.normalize(features + 0.2, dim=1)  # a cone, as features of CLIP
    twins = torch.arange(0, 40), torch.arange(3_001, 3_041)  # of other classes
    features[twins[1]] = F.normalize(features[twins[0]] + 0.005 * torch.randn(40, 64), dim=1)
    few = torch.arange(900)
    cosines = features[few] @ features[few].T
    cosines[labels[few][:, None] == labels[few]] = -1
    cosine, which = nearest_of_another_class(features[few], labels[few])
    torch.testing.assert_close(cosine, cosines.amax(1))
    assert torch.equal(which, cosines.argmax(1))
    cosine, which = nearest_of_another_class(features, labels)
    assert torch.equal(which[twins[0]], twins[1])
    assert torch.equal(which[twins[1]], twins[0])
    distance = (1 - cosine).log()
    beyond = set((distance < fence(distance, -3)).nonzero()[:, 0].tolist())
    assert beyond >= set(torch.cat(twins).tolist())
    assert len(beyond) < 100, "few that were not planted"


def test_the_nearest_mean_is_that_of_a_loop_and_a_stranger_is_far_from_all() -> None:
    features, labels, _ = clouds(60, 5, 1.0)
    features[7] = -features.mean(0) / features.mean(0).norm()
    found = nearest_mean(features, labels, 5)
    for place, x in enumerate(features):
        others = torch.arange(60) != place
        means = torch.stack([features[others & (labels == label)].mean(0) for label in range(5)])
        assert found[place] == pytest.approx(float(F.cosine_similarity(x[None], means).max()), abs=1e-6)
    assert (1 - found > fence(1 - found, 2)).nonzero()[:, 0].tolist() == [7]


def test_a_class_of_suspects_alone_is_kept(photos: Path, tmp_path: Path) -> None:
    data = read_dataset(photos)
    examples = [*data.train, *data.val, *data.test]
    red = data.classes.index("red")
    suspects = [Suspect(i, "", "red", "blue", 0.9, "label") for i, e in enumerate(examples) if e.label == red]
    for relabel in (False, True):
        with pytest.warns(DearWarning, match="all images of red are suspects"):
            assert write_cleaned(tmp_path / "list.csv", data, suspects, relabel) == (36, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["world:signs", "--out", "a.txt"], "csv"),
        (["world:signs", "--drop", "a.csv"], "not made of image files"),
        (["nowhere"], "no folder or file"),
    ],
)
def test_bad_input_is_a_sentence(arguments: list[str], message: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "suspects", *arguments, "--cache", str(tmp_path / "c")]) == 2
    assert message in capsys.readouterr().err


def test_one_image_a_class_cannot_be_checked(photos: Path, model_folder: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{photos}/{name}/0.png,{name}\n" for name in COLORS))
    assert main(["data", "suspects", str(tmp_path / "list.csv"), "--model", f"local-dir:{model_folder}"]) == 2
    assert "no label can be checked" in capsys.readouterr().err

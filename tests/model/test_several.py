"""Several labels for an image: composed pictures, against scikit-learn and refits."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score
from torch.nn import functional as F

from dear.cli import main
from dear.model.several import _RIDGES, fit_scores, measured, threshold

COLORS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 210)}


@pytest.fixture(scope="module")
def composed(tmp_path_factory) -> Path:
    """Pictures of two halves, each of one of three colours or grey; 48 to fit, 24 to test."""
    folder, rng = tmp_path_factory.mktemp("composed"), np.random.default_rng(0)
    rows = []
    for number in range(72):
        halves = [str(name) for name in rng.choice([*COLORS, "grey"], 2)]
        colors = [COLORS.get(name, (128, 128, 128)) for name in halves]
        pixels = np.repeat(np.array(colors)[None], 32, 0).repeat(16, 1) + rng.normal(0, 15, (32, 32, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
        labels = sorted({name for name in halves if name in COLORS})
        rows.append({"path": f"{number}.png", "label": labels, "split": "test" if number >= 48 else "train"})
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [f"{row['path']},{';'.join(row['label'])},{row['split']}" for row in rows]
    (folder / "list.csv").write_text("path,label,split\n" + "\n".join(lines))
    return folder


def test_composed_pictures_from_fit_to_answers(composed: Path, model_folder: Path, tmp_path: Path, capsys) -> None:
    run, cache = str(tmp_path / "run"), ["--cache", str(tmp_path / "cache")]
    options = ["--model", f"local-dir:{model_folder}", *cache]
    assert main(["several", "fit", str(composed / "list.csv"), "--out", run, *options]) == 0
    assert "fit without it" in capsys.readouterr().out
    assert main(["several", "evaluate", run, str(composed / "list.jsonl"), "--json", *cache]) == 0
    out = capsys.readouterr()
    by_class = {row["class"]: row for row in json.loads(out.out)["classes"]}
    assert set(by_class) == set(COLORS)
    assert "24 images: mAP" in out.err
    truth = [json.loads(line)["label"] for line in (composed / "list.jsonl").read_text().splitlines()]
    share = {name: np.mean([name in labels for labels in truth[48:]]) for name in COLORS}
    assert all(row["AP"] > 100 * share[name] + 15 for name, row in by_class.items()), "far better than chance"
    assert main(["several", "predict", run, str(composed / "60.png"), "--json", *cache]) == 0
    assert set(json.loads(capsys.readouterr().out)["classes"]) <= set(COLORS)


def test_scores_left_out_are_those_of_refits() -> None:
    draw = torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(30, 12, generator=draw).double(), dim=1)
    text = F.normalize(torch.randn(4, 12, generator=draw).double(), dim=1)
    targets = (features @ text.T + 0.1 * torch.randn(30, 4, generator=draw)) > 0.15
    tensors, scores = fit_scores(features, targets, text)
    beta = float(tensors["beta"])
    kernel = (beta * (features @ features.T - 1)).exp()
    y, plain = targets.double(), features @ text.T - (features @ text.T).mean(0)
    ridge = min(_RIDGES, key=lambda r: float((kernel @ tensors["values"] + r * tensors["values"] - y).abs().max()))
    for i in range(30):
        rest = torch.arange(30) != i
        weights = torch.linalg.solve(kernel[rest][:, rest] + ridge * torch.eye(29), y[rest])
        alone = kernel[i, rest] @ weights + tensors["weight"] * plain[i]
        torch.testing.assert_close(scores[i], alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_scikit_learns_and_no_other_cut_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.random((60, 4)) < 0.3
    scores = np.round(truth * 0.5 + rng.normal(0, 0.4, truth.shape), 1)  # with equal scores
    cuts = [threshold(torch.tensor(s), torch.tensor(t)) for s, t in zip(scores.T, truth.T, strict=True)]
    named = scores > np.array(cuts)
    table, line = measured(torch.tensor(scores), torch.tensor(named), torch.tensor(truth), "abcd")
    averages = [average_precision_score(t, s) for s, t in zip(scores.T, truth.T, strict=True)]
    assert [row[-1] for row in table.rows] == pytest.approx([100 * value for value in averages])
    micro, macro = (100 * f1_score(truth, named, average=kind) for kind in ("micro", "macro"))
    assert line == f"60 images: mAP {100 * np.mean(averages):.1f}, micro F1 {micro:.1f}, macro F1 {macro:.1f}"
    for s, t, cut in zip(scores.T, truth.T, cuts, strict=True):
        assert f1_score(t, s > cut) == pytest.approx(max(f1_score(t, s >= other) for other in s))
        sure = threshold(torch.tensor(s), torch.tensor(t), 0.8)
        kept = [int((s >= other).sum()) for other in s if t[s >= other].mean() >= 0.8]
        assert int((s > sure).sum()) == max(kept, default=0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0.png,red\n1.png,red;blue\n2.png,", "'blue' has one image"),
        ("0.png,red\n1.png,red", "Every image is 'red'"),
        ("0.png,\n1.png,", "No image to fit has a label"),
        ("nowhere.png,red", "there is no file"),
    ],
)
def test_bad_lists_are_refused(
    rows: str, message: str, composed: Path, model_folder: Path, tmp_path: Path, capsys
) -> None:
    (composed / "bad.csv").write_text("path,label\n" + rows)
    options = ["--out", str(tmp_path / "run"), "--model", f"local-dir:{model_folder}", "--cache", str(tmp_path / "c")]
    assert main(["several", "fit", str(composed / "bad.csv"), *options]) == 2
    assert message in capsys.readouterr().err
    assert main(["several", "predict", str(tmp_path), str(composed / "0.png")]) == 2
    assert "holds no model for several labels" in capsys.readouterr().err

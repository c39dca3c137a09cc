"""Commands on a pretended GPU: no device or dtype is mixed, and the answers are those of the CPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dear.cli import main

sys.path.append(str(Path(__file__).parents[1]))
from pretended_gpu import pretend_gpu

HALVES = ("fp32", "fp16", "bf16")


def run(*arguments: Any) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope="module")
def trained(model_folder: Path, role_file: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    with pretend_gpu():
        run(
            "train",
            "--data",
            "world:colors",
            "--shots",
            1,
            "--epochs",
            1,
            "--model",
            f"local-dir:{model_folder}",
            "--roles",
            role_file,
            "--first-layer",
            2,
            "--device",
            "cuda",
            "--out",
            out,
        )
    return out


def test_train(trained):
    pass


@pytest.mark.parametrize("precision", HALVES)
def test_predict(trained, precision, tmp_path, capsys):
    with pretend_gpu() as gpu:
        run(
            "predict", trained, "tests/compatibility/files/pics", "--device", "cuda", "--precision", precision, "--json"
        )
        print(gpu.waits)
        run(
            "explain",
            trained,
            "tests/compatibility/files/pics/0.png",
            "--device",
            "cuda",
            "--precision",
            precision,
            "--out",
            tmp_path / "e.png",
        )
        run("zero-shot", "--model", "dear-mini", "--data", "world:colors", "--device", "cuda", "--precision", precision)


@pytest.mark.parametrize("precision", HALVES)
def test_index(trained, model_folder, role_file, precision, tmp_path):
    pics = "tests/compatibility/files/pics"
    with pretend_gpu() as gpu:
        run("index", trained, pics, "--out", tmp_path / "a", "--device", "cuda", "--precision", precision)
        print(gpu.waits)
        run("search", tmp_path / "a", "--text", "red", "--device", "cuda", "--precision", precision)
        run(
            "search",
            tmp_path / "a",
            "--image",
            pics + "/0.png",
            "--by",
            "color",
            "--device",
            "cuda",
            "--precision",
            precision,
        )
        gpu.reset()
        run(
            "index",
            "--model",
            f"local-dir:{model_folder}",
            "--roles",
            role_file,
            pics,
            "--out",
            tmp_path / "b",
            "--device",
            "cuda",
            "--precision",
            precision,
        )
        print(gpu.waits)
        run(
            "search",
            tmp_path / "b",
            "--image",
            pics + "/0.png",
            "--by",
            "color",
            "--device",
            "cuda",
            "--precision",
            precision,
        )


@pytest.mark.parametrize("precision", HALVES)
def test_roles(model_folder, precision, tmp_path):
    with pretend_gpu() as gpu:
        run(
            "roles",
            "--model",
            "dear-mini",
            "--limit",
            40,
            "--device",
            "cuda",
            "--precision",
            precision,
            "--out",
            tmp_path / "r.json",
        )
        print(gpu.waits)
        gpu.reset()
        run(
            "roles",
            "--model",
            "dear-mini",
            "--using",
            "phrases",
            "--images",
            "tests/compatibility/files/pics",
            "--device",
            "cuda",
            "--precision",
            precision,
            "--out",
            tmp_path / "p.json",
        )
        print(gpu.waits)


@pytest.mark.parametrize("precision", HALVES)
def test_bench(model_folder, role_file, precision, tmp_path):
    with pretend_gpu() as gpu:
        run(
            "bench",
            "few-shot",
            "--methods",
            "dear",
            "--datasets",
            "world:colors",
            "--seeds",
            1,
            "--shots",
            1,
            "--epochs",
            1,
            "--model",
            f"local-dir:{model_folder}",
            "--roles",
            role_file,
            "--first-layer",
            2,
            "--device",
            "cuda",
            "--precision",
            precision,
            "--out",
            tmp_path / "bench",
        )
        print(gpu.waits)


def test_fit(model_folder, tmp_path):
    with pretend_gpu() as gpu:
        run(
            "fit",
            "world:colors",
            "--model",
            f"local-dir:{model_folder}",
            "--device",
            "cuda",
            "--out",
            tmp_path / "fit",
            "--cache",
            tmp_path / "cache",
        )
        print(gpu.waits)

"""Whole commands on a pretended GPU: no device or dtype is mixed, and they compute what the CPU does."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dear
from dear.cli import main
from dear.gallery import Gallery
from dear.heads.concepts import load_phrases
from dear.heads.contributions import HeadContributions
from dear.server.engines import open_engine
from noisy_pictures import noisy_folders
from pretended_gpu import pretend_gpu

ROUNDING = {"fp32": 1e-4, "fp16": 0.01, "bf16": 0.06}
CLASSES = ("cat", "dog", "red fox")
pytest.importorskip("lancedb")


class Commands:
    """The commands with one device and precision; `results` are numbers that must not depend on them."""

    def __init__(self, out: Path, data: Path, *flags: str) -> None:
        self.out, self.data, self.flags = out, data, flags
        self.results: dict[str, Any] = {}

    def __call__(self, *arguments: object) -> str:
        with redirect_stdout(io.StringIO()) as printed:
            assert main([*map(str, arguments), *self.flags]) == 0, arguments
        return printed.getvalue()

    def use(self, run: Path) -> None:
        """An adapted model: predict, explain, serve, index, search."""
        picture = self.data / "cat" / "0.png"
        lines = self("predict", run, self.data / "dog", "--json").splitlines()
        self.results["predict"] = [json.loads(line)["probability"] for line in lines]
        self("explain", run, picture, "--out", self.out / "why.png")
        engine = open_engine(run, self.flags[1], self.flags[3])
        answers = engine.answers(engine.forward([engine.pixels(Image.open(picture))]), 3, engine.inferences[0])
        self.results["serve"] = [answers[0].probability]
        self("index", run, self.data, "--out", self.out / "by run")
        self.search("by run")

    def search(self, gallery: str) -> None:
        for component in ("cls", "color"):
            self.results[f"{gallery}, {component}"] = Gallery.open(self.out / gallery).vectors(component)
        self("search", self.out / gallery, "--text", "a fox", "--topk", 3)
        image = self.data / "cat" / "0.png"
        hits = self("search", self.out / gallery, "--image", image, "--by", "color", "--json").splitlines()
        self.results[f"{gallery}, search"] = [json.loads(line)["score"] for line in hits]

    def without_training(self, model: str, role_file: Path) -> None:
        """A backbone alone: heads in a gallery, and roles by phrases and by pictures."""
        self("index", "--model", model, "--roles", role_file, self.data, "--out", self.out / "by heads")
        self.search("by heads")
        phrases = self.out / "phrases.txt"
        phrases.write_text("\n".join(load_phrases()[::100]))
        of_words = ("--images", self.data, "--phrases", phrases, "--out", self.out / "phrases.json")
        self("roles", "--model", model, *of_words)
        self("roles", "--model", model, *self.probes(), "--out", self.out / "roles.json")
        heads = json.loads((self.out / "roles.json").read_text())["roles"]["3"].values()
        self.results["roles"] = [share for head in heads for share in head["shares"].values()]

    def probes(self) -> list[str]:
        attributes = ("shape", "texture", "object", "location")
        return [flag for attribute in attributes for flag in ("--probe", f"{attribute}={self.data}")]

    def others(self, precision: str, model: str, role_file: Path) -> None:
        """Commands that take long, each in one precision: what they compute is tested in all, method by method."""
        if precision == "fp32":
            self("roles", "check", role_file, "--model", model, *self.probes())
            self("roles", "layers", "--model", model, "--data", self.data)
        elif precision == "fp16":
            few = f"--shots 1 --epochs 1 --first-layer 2 --model {model} --roles {role_file}".split()
            self("train", "--method", "dear", "--data", self.data, "--out", self.out / "run", *few)
            one_cell = ("--datasets", self.data, "--methods", "dear", "--seeds", 1)
            self("bench", "few-shot", *one_cell, "--out", self.out / "bench", *few)
        else:
            self("zero-shot", "--model", model, "--data", self.data)
            self("fit", self.data, "--model", model, "--out", self.out / "fit", "--cache", self.out / "cache")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return noisy_folders(tmp_path_factory.mktemp("data"), CLASSES, 16)


@pytest.fixture(scope="module")
def run(model_folder: Path, role_file: Path, data: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    flags = {"model": f"local-dir:{model_folder}", "roles": str(role_file), "first_layer": 2}
    dear.train(data, "dear", out=out, epochs=1, shots=2, device="cpu", workers=0, **flags)
    return out


@pytest.fixture(scope="module")
def on_cpu(model_folder: Path, role_file: Path, data: Path, run: Path, tmp_path_factory) -> dict[str, Any]:
    commands = Commands(tmp_path_factory.mktemp("cpu"), data, "--device", "cpu", "--precision", "fp32")
    commands.use(run)
    commands.without_training(f"local-dir:{model_folder}", role_file)
    return commands.results


@pytest.mark.parametrize("precision", ROUNDING)
def test_commands_compute_what_they_do_on_the_cpu(
    precision: str, model_folder: Path, role_file: Path, data: Path, run: Path, tmp_path: Path, on_cpu: dict
) -> None:
    with pretend_gpu():
        commands = Commands(tmp_path, data, "--device", "cuda", "--precision", precision)
        commands.use(run)
        commands.without_training(f"local-dir:{model_folder}", role_file)
        commands.others(precision, f"local-dir:{model_folder}", role_file)
    assert commands.results.keys() == on_cpu.keys()
    for name, values in commands.results.items():
        scale = 3 if "color" in name or "search" in name or name == "roles" else 1  # differences from a mean, or shares
        np.testing.assert_allclose(values, on_cpu[name], rtol=0, atol=scale * ROUNDING[precision], err_msg=name)


def test_a_planted_mix_of_devices_is_refused(
    model_folder: Path, role_file: Path, data: Path, tmp_path: Path, monkeypatch
) -> None:
    sum_of = HeadContributions.sum_of
    monkeypatch.setattr(HeadContributions, "sum_of", lambda *args: sum_of(*args) * torch.ones(32))
    commands = Commands(tmp_path, data, "--device", "cuda")
    with pretend_gpu(), pytest.raises(RuntimeError, match="on the same device"):
        commands(
            "index", "--model", f"local-dir:{model_folder}", "--roles", role_file, data, "--out", tmp_path / "gallery"
        )

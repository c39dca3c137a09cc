"""Tiny trees in the layout of each known dataset, and a server that truncates, changes, stalls and fails."""

import hashlib
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from PIL import Image

from dear.data.dataset import Dataset
from dear.data.known import archives, find_known
from dear.data.known.sources import Archive

SPLITS = ("train", "val", "test")


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (shade % 256, shade // 256, 0)).save(path)
    return path


def counts(dataset: Dataset) -> tuple[int, ...]:
    """How many images are for training, validation and testing."""
    return tuple(len(getattr(dataset, split)) for split in SPLITS)


@dataclass
class Layout:
    """A tiny tree of a dataset, and what is read from it."""

    build: Callable[[Path], None]
    classes: tuple[str, ...]
    counts: tuple[int, int, int] = (4, 4, 4)


def split_json(images: str, file: str, names: tuple[str, str], where: str = "{name}/{split}_{i}.jpg") -> Layout:
    """Two classes, whose names in prompts have no underscores."""

    def build(folder: Path) -> None:
        entries: dict[str, list] = {split: [] for split in SPLITS}
        for split in SPLITS:
            for label, name in enumerate(names):
                for i in range(2):
                    path = where.format(name=name, split=split, i=2 * label + i)
                    picture(folder / images / path)
                    entries[split].append([path, label, name])
        (folder / f"split_zhou_{file}.json").write_text(json.dumps(entries))

    return Layout(build, tuple(name.replace("_", " ") for name in names))


def aircraft(folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    (folder / "variants.txt").write_text("707-320\nA300B4\nDR-400 x\n")
    for number, split in enumerate(SPLITS):
        lines = []
        for i, variant in enumerate(("A300B4", "707-320", "DR-400 x")):
            picture(folder / "images" / f"0{number}{i}.jpg")
            lines.append(f"0{number}{i} {variant}\n")
        (folder / f"images_variant_{split}.txt").write_text("".join(lines))


def class_names(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["n01440764 tench", "n01443537 goldfish", "n01484850 great white shark"]
    (folder / "classnames.txt").write_text("\n".join(lines) + "\n")


def imagenet(folder: Path) -> None:
    class_names(folder)
    for key in ("n01440764", "n01484850"):
        for i in range(2):
            picture(folder / "images" / "train" / key / f"{key}_{i}.JPEG")
            picture(folder / "images" / "val" / key / f"ILSVRC2012_val_{i}.JPEG")


def variant(images: str, *folders: str):
    def build(folder: Path) -> None:
        class_names(folder)
        for key in folders:
            picture(folder / images / key / "a.jpg")
        (folder / images / "README.txt").write_text("read me")

    return build


V2 = "imagenetv2-matched-frequency-format-val"
LAYOUTS = {
    "ImageNet": Layout(imagenet, ("tench", "great white shark"), (4, 0, 4)),
    "Caltech101": split_json("101_ObjectCategories", "Caltech101", ("face", "cougar_body")),
    "OxfordPets": split_json("images", "OxfordPets", ("abyssinian", "great_pyrenees"), "{split}_{i}.jpg"),
    "StanfordCars": split_json("", "StanfordCars", ("2012 Audi S4", "2012 BMW X6"), "cars_{split}/{i}.jpg"),
    "Flowers102": split_json("jpg", "OxfordFlowers", ("pink primrose", "tiger lily"), "image_{split}{i}.jpg"),
    "Food101": split_json("images", "Food101", ("apple_pie", "baby_back_ribs")),
    "FGVCAircraft": Layout(aircraft, ("707-320", "A300B4", "DR-400 x"), (3, 3, 3)),
    "SUN397": split_json("SUN397", "SUN397", ("abbey", "indoor apse"), "a/{name}/{split}{i}.jpg"),
    "DTD": split_json("images", "DescribableTextures", ("banded", "polka-dotted")),
    "EuroSAT": split_json("2750", "EuroSAT", ("Annual Crop Land", "Forest"), "{split}/{i}.jpg"),
    "UCF101": split_json("UCF-101-midframes", "UCF101", ("Apply_Eye_Makeup", "Archery")),
    "ImageNetV2": Layout(variant(V2, "0", "1", "2"), ("tench", "goldfish", "great white shark"), (0, 0, 3)),
    "ImageNet-Sketch": Layout(variant("images", "n01443537", "n01440764"), ("tench", "goldfish"), (0, 0, 2)),
    "ImageNet-A": Layout(variant("imagenet-a", "n01443537"), ("goldfish",), (0, 0, 1)),
    "ImageNet-R": Layout(variant("imagenet-r", "n01484850", "n01443537"), ("goldfish", "great white shark"), (0, 0, 2)),
}


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; `faults` are taken one per request for content: a status, "short", "stall" or "drop"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[int | str] = []
        self.asked: list[str] = []
        self.ranges = True

    def handle_error(self, request, client_address) -> None:
        """A client that gave up is no news."""

    def archive(self, name: str, data: bytes, **changes) -> Archive:
        self.files["/" + name] = data
        url = f"http://127.0.0.1:{self.server_port}/{name}"
        return replace(Archive(url, "today", 1, len(data), "sha256:" + hashlib.sha256(data).hexdigest()), **changes)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(head=True)

    def do_GET(self) -> None:
        self._answer()

    def _answer(self, head: bool = False) -> None:
        data = self.server.files.get(self.path.partition("?")[0])
        fault = 404 if data is None else self.server.faults.pop(0) if self.server.faults and not head else None
        if isinstance(fault, int):
            self.send_error(fault)
            return
        asked = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "") if self.server.ranges else None
        start, end = (int(asked[1]), min(int(asked[2]), len(data) - 1)) if asked else (0, len(data) - 1)
        if not head:
            self.server.asked.append(self.headers.get("Range") or "all")
        self.send_response(206 if asked else 200)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end - start + 1))
        self.end_headers()
        if head:
            return
        if fault == "stall":
            time.sleep(1.5)
        part = data[start : end + 1]
        self.wfile.write(part[: len(part) // 2] if fault in ("short", "drop") else part)


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[str], Path]:
    """Builds the tree of a dataset, and gives the root above it."""

    def build(name: str) -> Path:
        LAYOUTS[name].build(tmp_path / find_known(name).folder)
        return tmp_path

    return build


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(archives, "_WAIT", 0.01)
    monkeypatch.setattr(archives, "_REQUEST", 40_000)
    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()

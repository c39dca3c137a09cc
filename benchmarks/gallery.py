"""A gallery of 100,000 entries with six vectors each: recall, latency, disk. And what indexing costs beside encoding.

    python benchmarks/gallery.py [--rows 100000] [--images 2000]

The entries are made up: unit vectors of 512 numbers whose variance falls as 1/i, half of it shared by the six vectors
of an entry, as those of one image have much in common. Recall@10 is against all pairs in numpy; a search is a whole
`Gallery.search`, from the query's vectors to the hits. "Every vector" is what a gallery does before it has an index.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import dear
from dear.adapter import save_adapter
from dear.data.dataset import ImageFile
from dear.data.folder import image_files
from dear.data.world.tasks import TASKS, world_task
from dear.files import write_json
from dear.gallery import Gallery, ann, parse_by
from dear.gallery.columns import as_vectors, schema
from dear.gallery.store import ABOUT
from dear.tables import Table

COMPONENTS, DIM, QUERIES = ("cls", "color", "shape", "texture", "object", "location"), 512, 50
SEARCHES = ("color", "color=0.7,shape=0.3", "all six")


def entries(count: int) -> dict[str, np.ndarray]:
    """Unit vectors [count, DIM] of each component."""
    rng = np.random.default_rng(0)
    spread = (np.arange(1, DIM + 1) ** -0.5).astype(np.float32)
    shared = rng.standard_normal((count, DIM), dtype=np.float32)
    vectors = {}
    for name in COMPONENTS:
        values = (shared + rng.standard_normal((count, DIM), dtype=np.float32)) * spread
        vectors[name] = values / np.linalg.norm(values, axis=1, keepdims=True)
    return vectors


def fill(folder: Path, vectors: dict[str, np.ndarray], rows: int) -> Gallery:
    about = {"format": 1, "adapter": {"folder": "none"}, "components": COMPONENTS, "dim": DIM}
    write_json(folder / ABOUT, about)
    gallery = Gallery.open(folder)
    for start in range(0, rows, 1000):
        part = slice(start, min(start + 1000, rows))
        size = part.stop - part.start
        about_each = [[f"{i}" for i in range(start, part.stop)], [1] * size, [1] * size, ["-"] * size, [None] * size]
        columns = [as_vectors(vectors[name][part]) for name in COMPONENTS]
        gallery.table.add(pa.table([*about_each, *columns], schema=schema(COMPONENTS, DIM)))
    return gallery


def disk(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def measure(gallery: Gallery, vectors: dict[str, np.ndarray], rows: int, by: str, queries: int) -> list[str]:
    """Recall@10, p50 and p95 in ms, and ms of CPU time, which a busy machine disturbs less."""
    weights = dict.fromkeys(COMPONENTS, 1.0) if by == "all six" else parse_by(by, COMPONENTS)
    times, found, cpu = [], [], 0.0
    for number in range(queries):
        query = {name: vectors[name][rows + number] for name in weights}
        began, cpu_began = time.perf_counter(), time.process_time()
        hits = gallery.search(query, weights, k=10)
        times.append(1000 * (time.perf_counter() - began))
        cpu += 1000 * (time.process_time() - cpu_began) / queries
        scores = sum(weight * (vectors[name][:rows] @ query[name]) for name, weight in weights.items())
        truth = set(np.argpartition(-scores, 10)[:10].tolist())
        found.append(len(truth & {int(hit.path) for hit in hits}) / 10)
    return [f"{np.mean(found):.3f}", f"{np.median(times):.0f}", f"{np.quantile(times, 0.95):.0f}", f"{cpu:.0f}"]


def searching(rows: int) -> None:
    vectors = entries(rows + QUERIES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        gallery = fill(folder, vectors, rows)
        gallery.table.optimize()
        written = time.perf_counter() - began
        print(f"{rows} entries x {len(COMPONENTS)} vectors of {DIM}: written in {written:.0f} s", flush=True)
        table = Table(["search by", "how", "recall@10", "p50 ms", "p95 ms", "CPU ms"])
        for by in SEARCHES:
            table.add(by, "every vector", *measure(gallery, vectors, rows, by, QUERIES // 5))
        print(table.text(), flush=True)
        ann.WORTH_IT = 0
        began = time.perf_counter()
        gallery._tidy()
        built = time.perf_counter() - began
        for by in SEARCHES:
            table.add(by, "index", *measure(gallery, vectors, rows, by, QUERIES))
        print(table.text())
        indices = disk(folder / "images.lance" / "_indices")
        print(f"on disk: {disk(folder):.0f} MB, of which indices {indices:.0f} MB, built in {built:.0f} s", flush=True)


class Pixels(Dataset):
    """What plain encoding needs: each file as pixels [3, height, width]."""

    def __init__(self, files: list[Path], transform: Callable[[Any], Tensor]) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(ImageFile(self.files[index]).open())


def indexing(images: int, rounds: int = 4) -> None:
    """dear-mini on image files, both ways in turns; the best round of each is what other programs disturbed least."""
    model = dear.create(classes=["one", "two"], device="cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "images"
        folder.mkdir()
        pictures = [example.picture for task in TASKS for example in world_task(task).train]
        for number, picture in enumerate(pictures[:images]):
            picture.open().resize((256, 256)).save(folder / f"{number:05d}.jpg", quality=90)
        files = image_files(folder)
        adapter = Path(name) / "adapter"
        save_adapter(adapter, "dear", model.model, model.template)
        workers = min(4, os.cpu_count() or 1)
        plain, indexed = [], []
        for turn in range(rounds):
            began = seconds()
            for pixels in DataLoader(Pixels(files, model.model.backbone.preprocess), 64, num_workers=workers):
                model.encode_image(pixels)
            plain.append(seconds() - began)
            gallery = Gallery.create(Path(name) / f"gallery{turn}", adapter, model)
            began = seconds()
            added = gallery.add(model, [folder])
            indexed.append(seconds() - began)
            assert added.added + added.duplicates == len(files), added
    for kind, one, two in zip(("wall", "CPU"), np.min(plain, axis=0), np.min(indexed, axis=0), strict=True):
        rates = f"plain encoding {len(files) / one:.0f} images/s, indexing {len(files) / two:.0f} images/s"
        print(f"by {kind} time: {rates}: {100 * one / two:.0f}%")


def seconds() -> np.ndarray:
    """Wall and CPU time, that of finished worker processes included."""
    spent = os.times()
    return np.array([spent.elapsed, spent.user + spent.system + spent.children_user + spent.children_system])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000], help="sizes of galleries to search in")
    parser.add_argument("--images", type=int, default=2000, help="images to index; 0: none")
    args = parser.parse_args()
    for rows in args.rows:
        searching(rows)
    if args.images:
        indexing(args.images)


if __name__ == "__main__":
    main()

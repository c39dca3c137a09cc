"""A gallery of 100,000 entries with six vectors each: recall, latency, disk. And what indexing costs beside encoding.

    python benchmarks/gallery.py [--rows 100000] [--images 2000]

The entries are made up: unit vectors of 512 numbers whose variance falls as 1/i, half of it shared by the six vectors
of an entry, as those of one image have much in common. Recall@10 is against the ten largest products in float32. A
search is a whole `Gallery.search`, from the query's vectors to the hits; "product" is NumPy's, over the same numbers in
float32 in memory, with the ten best picked and nothing else. The two take turns, so that other programs disturb both.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import dear
from dear.clip import MINI, load_backbone
from dear.clip.image import last_third
from dear.core.table import Table
from dear.data.dataset import ImageFile
from dear.data.folder import image_files
from dear.data.world.tasks import TASKS, world_task
from dear.gallery import AdapterEncoder, Gallery, HeadEncoder, parse_by
from dear.gallery.columns import as_vectors, schema
from dear.model.adapter import save_adapter

COMPONENTS, DIM, QUERIES, CHUNK = ("cls", "color", "shape", "texture", "object", "location"), 512, 50, 5000
SEARCHES = {by: parse_by(by, COMPONENTS) for by in ("color", "color=0.7,shape=0.3", ",".join(COMPONENTS))}
IN_MEMORY = 200_000  # entries whose float32 vectors, 12 kB each, are kept for the product

Vectors = dict[str, np.ndarray]  # component -> [entries, DIM]


@dataclass
class Made:
    """Stands for what would encode images."""

    components = COMPONENTS
    centred = ()
    dim = DIM
    source = {"kind": "adapter", "folder": "none", "sha256": ""}  # noqa: RUF012


def entries(seed: int, count: int) -> Vectors:
    rng = np.random.default_rng(seed)
    spread = (np.arange(1, DIM + 1) ** -0.5).astype(np.float32)
    shared = rng.standard_normal((count, DIM), dtype=np.float32)
    vectors = {}
    for name in COMPONENTS:
        values = (shared + rng.standard_normal((count, DIM), dtype=np.float32)) * spread
        vectors[name] = values / np.linalg.norm(values, axis=1, keepdims=True)
    return vectors


def chunks(rows: int) -> Iterator[tuple[int, Vectors]]:
    for start in range(0, rows, CHUNK):
        yield start, entries(1 + start, min(CHUNK, rows - start))


def product(vectors: Vectors, query: Vectors, weights: dict[str, float]) -> np.ndarray:
    """The weighted sum of products with query 0, [entries]."""
    return np.sum([weight * (vectors[name] @ query[name]) for name, weight in weights.items()], axis=0)


def best(scores: np.ndarray, count: int = 10) -> np.ndarray:
    return np.argpartition(-scores, count)[:count]


def fill(folder: Path, rows: int, queries: list[Vectors]) -> tuple[Gallery, dict[str, list[set[int]]], Vectors, float]:
    """The gallery, the ten best of every search and query, the vectors if they fit, and the seconds of writing."""
    gallery, seconds = Gallery.create(folder, Made()), 0.0
    folder.mkdir()
    kept: dict[str, list[np.ndarray]] = {name: [] for name in COMPONENTS}
    top = {by: [(np.empty(0), np.empty(0, int))] * len(queries) for by in SEARCHES}
    for start, vectors in chunks(rows):
        size = len(vectors["cls"])
        names = np.arange(start, start + size)
        about = [names.astype(str).tolist(), [1] * size, [1] * size, ["-"] * size, [None] * size]
        began = time.perf_counter()
        columns = [as_vectors(vectors[name]) for name in COMPONENTS]
        gallery.add_rows(pa.table([*about, *columns], schema=schema(COMPONENTS, DIM)))
        seconds += time.perf_counter() - began
        for by, weights in SEARCHES.items():
            for number, query in enumerate(queries):
                scores, ids = (
                    np.concatenate(pair)
                    for pair in zip(top[by][number], (product(vectors, query, weights), names), strict=True)
                )
                chosen = best(scores)
                top[by][number] = scores[chosen], ids[chosen]
        if rows <= IN_MEMORY:
            for name in COMPONENTS:
                kept[name].append(vectors[name])
    began = time.perf_counter()
    gallery._tidy()
    seconds += time.perf_counter() - began
    truth = {by: [set(ids.tolist()) for _, ids in found] for by, found in top.items()}
    return gallery, truth, {name: np.concatenate(parts) for name, parts in kept.items() if parts}, seconds


def timed(work: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """What it gives, and its wall and CPU time in ms; a busy machine disturbs the latter less."""
    began, cpu_began = time.perf_counter(), time.process_time()
    result = work()
    return result, (1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu_began))


def searching(rows: int, count: int) -> None:
    made = entries(0, count)
    queries = [{name: values[i] for name, values in made.items()} for i in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "gallery"
        gallery, truth, vectors, written = fill(folder, rows, queries)
        disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
        print(f"{rows} entries x {len(COMPONENTS)} vectors of {DIM}: written in {written:.0f} s, {disk:.0f} MB on disk")
        names = "search by", "recall@10", "first s", "p50 ms", "p95 ms", "CPU ms"
        table = Table([*names, "product p50 ms", "CPU ms", "of product", "by CPU"])
        for by, weights in SEARCHES.items():
            began = time.perf_counter()
            gallery.search(queries[0], weights)  # reads vectors into memory
            first = time.perf_counter() - began
            searches, products, found = [], [], []
            for number, query in enumerate(queries):
                hits, spent = timed(lambda q=query, w=weights: gallery.search(q, w, k=10))
                searches.append(spent)
                found.append(len(truth[by][number] & {int(hit.path) for hit in hits}) / 10)
                if vectors:
                    products.append(timed(lambda q=query, w=weights: best(product(vectors, q, w)))[1])
            (p50, cpu), p95 = np.median(searches, axis=0), np.quantile(searches, 0.95, axis=0)[0]
            row = ["all six" if len(weights) == 6 else by, f"{np.mean(found):.3f}", f"{first:.1f}"]
            row += [f"{p50:.1f}", f"{p95:.1f}", f"{cpu:.1f}"]
            if vectors:
                plain, plain_cpu = np.median(products, axis=0)
                row += [f"{plain:.1f}", f"{plain_cpu:.1f}", f"{p50 / plain:.2f}x", f"{cpu / plain_cpu:.2f}x"]
            table.add(*row, *["-"] * (10 - len(row)))
        print(table.text())
        print(f"largest memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB")


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
            encoder = AdapterEncoder(adapter, model)
            gallery = Gallery.create(Path(name) / f"gallery{turn}", encoder)
            began = seconds()
            added = gallery.add(encoder, [folder])
            indexed.append(seconds() - began)
            assert added.added + added.duplicates == len(files), added
    for kind, one, two in zip(("wall", "CPU"), np.min(plain, axis=0), np.min(indexed, axis=0), strict=True):
        rates = f"plain encoding {len(files) / one:.0f} images/s, indexing {len(files) / two:.0f} images/s"
        print(f"by {kind} time: {rates}: {100 * one / two:.0f}%")


def encoding(name: str, count: int = 8, rounds: int = 8) -> None:
    """What the vectors of attributes cost beside the class feature alone: both encode the same images, in turns."""
    backbone = load_backbone(name, random_weights=name != MINI)
    tower = backbone.image
    last = [(layer, head) for layer in range(last_third(tower.layers), tower.layers + 1) for head in range(tower.heads)]
    heads = HeadEncoder(backbone, {name: last[i::8] for i, name in enumerate(COMPONENTS[1:])})
    pixels = torch.randn(count, 3, *tower.image_size)
    with torch.no_grad():
        spent = [
            (timed(lambda: tower.encode(pixels))[1], timed(lambda: heads.encode_image(pixels))[1])
            for _ in range(rounds)
        ]
    ratio = np.median([np.divide(two, one) for one, two in spent], axis=0)
    print(f"{name}: class and five attributes {ratio[0]:.2f}x of the class feature alone, by CPU time {ratio[1]:.2f}x")


def seconds() -> np.ndarray:
    """Wall and CPU time, that of finished worker processes included."""
    spent = os.times()
    return np.array([spent.elapsed, spent.user + spent.system + spent.children_user + spent.children_system])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000], help="sizes of galleries to search in")
    parser.add_argument("--queries", type=int, default=QUERIES, help="searches of each kind (default: 50)")
    parser.add_argument("--images", type=int, default=2000, help="images to index; 0: none")
    args = parser.parse_args()
    for rows in args.rows:
        searching(rows, args.queries)
    if args.images:
        encoding(MINI, 64)
        encoding("ViT-B-16")
        indexing(args.images)


if __name__ == "__main__":
    main()

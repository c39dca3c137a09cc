"""A gallery of 100,000 entries with six vectors each: recall, latency, disk. And the cost of indexing beside encoding.

    python benchmarks/gallery.py [--rows 100000] [--images 2000]

The entries are made up: unit vectors of 512 numbers whose variance falls as 1/i, half of it shared by the six vectors
of an entry, as those of one image have much in common. Recall@10 is against the ten largest products in float32. A
search is a whole `Gallery.search`, from the query's vectors to the hits: a scan in int8, then an exact ranking.
"float32" is the same with NumPy's product over float32 vectors in memory (four times as much) instead of the scan: it
needs no second ranking and reads paths and labels alone. The two take turns, so that other programs disturb both.
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
from torch.utils.data import DataLoader

import dear
from dear.clip import MINI, load_backbone
from dear.clip.image import last_third
from dear.core.names import CLS, CORE_ATTRIBUTES
from dear.core.table import Table
from dear.data.columns import Mapped
from dear.data.decode import Decoder
from dear.data.folder import image_files
from dear.data.world.tasks import TASKS, world_task
from dear.gallery import AdapterEncoder, Gallery, HeadEncoder, parse_by
from dear.gallery.storage import table_schema, to_column
from dear.training.adapter import save_adapter

COMPONENTS, DIM, QUERIES, CHUNK = (CLS, *CORE_ATTRIBUTES), 512, 50, 5000
SEARCHES = {by: parse_by(by, COMPONENTS) for by in ("color", "color=0.7,shape=0.3", ",".join(COMPONENTS))}
IN_MEMORY = 200_000  # entries whose float32 vectors, 12 kB each, are kept in memory for comparison

Vectors = dict[str, np.ndarray]  # component -> [entries, DIM]


@dataclass
class NoEncoder:
    """Stands for the encoder of the made-up entries."""

    components = COMPONENTS
    centred = ()
    dim = DIM
    spec = {"kind": "adapter", "folder": "none", "sha256": ""}  # noqa: RUF012


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
    gallery, seconds = Gallery.create(folder, NoEncoder()), 0.0
    folder.mkdir()
    parts: dict[str, list[np.ndarray]] = {name: [] for name in COMPONENTS}
    top = {by: [(np.empty(0), np.empty(0, int))] * len(queries) for by in SEARCHES}
    for start, vectors in chunks(rows):
        size = len(vectors["cls"])
        names = np.arange(start, start + size)
        columns = [names.astype(str).tolist(), [1] * size, [1] * size, ["-"] * size, [None] * size]
        began = time.perf_counter()
        columns += [to_column(vectors[name]) for name in COMPONENTS]
        gallery.add_rows(pa.table(columns, schema=table_schema(COMPONENTS, DIM)))
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
                parts[name].append(vectors[name])
    began = time.perf_counter()
    gallery.compact()
    seconds += time.perf_counter() - began
    truth = {by: [set(ids.tolist()) for _, ids in pairs] for by, pairs in top.items()}
    return gallery, truth, {name: np.concatenate(of_name) for name, of_name in parts.items() if of_name}, seconds


def float32_search(gallery: Gallery, vectors: Vectors, query: Vectors, weights: dict[str, float]) -> list[tuple]:
    """Path, label and score of the ten best, as a gallery with float32 vectors in memory would find them."""
    snapshot = gallery.snapshot()
    scores = product(vectors, query, weights)
    places = np.sort(best(scores))
    rows = snapshot.table.take_row_ids(snapshot.ids[places].tolist()).select(["path", "label"]).to_arrow()
    hits = zip(rows["path"].to_pylist(), rows["label"].to_pylist(), scores[places].tolist(), strict=True)
    assert snapshot.is_current()
    return sorted(hits, key=lambda hit: -hit[2])


def timed(work: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """The result, and its wall and CPU time in ms; a busy machine disturbs the latter less."""
    began, cpu_began = time.perf_counter(), time.process_time()
    result = work()
    return result, (1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu_began))


def searching(rows: int, count: int) -> None:
    vectors_of_queries = entries(0, count)
    queries = [{name: values[i] for name, values in vectors_of_queries.items()} for i in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "gallery"
        gallery, truth, vectors, written = fill(folder, rows, queries)
        disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
        print(f"{rows} entries x {len(COMPONENTS)} vectors of {DIM}: written in {written:.0f} s, {disk:.0f} MB on disk")
        names = "search by", "recall@10", "first s", "p50 ms", "p95 ms", "CPU ms"
        table = Table([*names, "float32 p50 ms", "CPU ms", "ratio", "by CPU"])
        for by, weights in SEARCHES.items():
            began = time.perf_counter()
            gallery.search(queries[0], weights)  # reads vectors into memory
            first = time.perf_counter() - began
            searches, comparisons, recalls = [], [], []
            for number, query in enumerate(queries):
                hits, spent = timed(lambda q=query, w=weights: gallery.search(q, w, k=10))
                searches.append(spent)
                recalls.append(len(truth[by][number] & {int(hit.path) for hit in hits}) / 10)
                if vectors:
                    comparisons.append(timed(lambda q=query, w=weights: float32_search(gallery, vectors, q, w))[1])
            (p50, cpu), p95 = np.median(searches, axis=0), np.quantile(searches, 0.95, axis=0)[0]
            row = ["all six" if len(weights) == 6 else by, f"{np.mean(recalls):.3f}", f"{first:.1f}"]
            row += [f"{p50:.1f}", f"{p95:.1f}", f"{cpu:.1f}"]
            if vectors:
                plain, plain_cpu = np.median(comparisons, axis=0)
                row += [f"{plain:.1f}", f"{plain_cpu:.1f}", f"{p50 / plain:.2f}x", f"{cpu / plain_cpu:.2f}x"]
            table.add(*row, *["-"] * (10 - len(row)))
        print(table.text())
        print(f"largest memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB")


def indexing(images: int, rounds: int = 4) -> None:
    """dear-mini on image files: plain encoding and indexing in turns, with fast decoding; the best round counts."""
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
            decoder = Decoder(model.model.backbone.preprocess, fast=True)
            for pixels in DataLoader(Mapped(files, decoder), 64, num_workers=workers):
                model.features(pixels)
            plain.append(seconds() - began)
            encoder = AdapterEncoder(adapter, model)
            gallery = Gallery.create(Path(name) / f"gallery{turn}", encoder)
            began = seconds()
            summary = gallery.add(encoder, [folder], fast_decode=True)
            indexed.append(seconds() - began)
            assert summary.added + summary.duplicates == len(files), summary
    for kind, one, two in zip(("wall", "CPU"), np.min(plain, axis=0), np.min(indexed, axis=0), strict=True):
        rates = f"plain encoding {len(files) / one:.0f} images/s, indexing {len(files) / two:.0f} images/s"
        print(f"by {kind} time: {rates}: {100 * one / two:.0f}%")


def encoding(name: str, count: int = 8, rounds: int = 8) -> None:
    """The cost of attribute vectors beside the class feature alone: both encode the same images, in turns."""
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
    """Wall and CPU time, including finished worker processes."""
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

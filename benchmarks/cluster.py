"""How much quicker two workers of a Ray cluster index and analyse pictures than one, and does the driver's memory stay.

    python benchmarks/cluster.py [--images 10000] [--rounds 2]
    python benchmarks/cluster.py --kill-every 10 [--images 10000]

dear-mini on pictures of Attribute World: PNG files for the gallery, drawn by the workers for the role map. Clusters of
one and of two workers with one thread each take turns on this machine, which needs two idle cores; the best round of
each counts. Time runs from a tenth of the pictures on, when every worker is at work, to the end with everything
written. The driver is the process that writes: CPU time that it takes from the workers' cores, and how much its memory
grows from then on. All results must be equal.

With --kill-every, a cluster of two workers indexes the pictures while one of its workers gets SIGKILL after so many
seconds, again and again; the gallery must be that of one process without a cluster.
"""

import argparse
import os
import random
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch

from dear.clip import MINI, load_backbone
from dear.core.progress import Progress
from dear.core.table import Table
from dear.gallery import Gallery, HeadEncoder
from dear.heads.by_pictures import roles_by_pictures
from dear.heads.pictures import drawn_probe, world_pictures
from dear.parallel.cluster import Cluster

_MARK = "DEAR_BENCHMARK"
ATTRIBUTES = ("color", "shape", "texture", "object", "location")


class Spent(NamedTuple):
    rate: float  # images/s
    start: float  # s until the first batch is done: a worker imports PyTorch and loads a model
    driver: float  # CPU s for 1000 images
    grown: float  # MB


def memory() -> float:
    """MB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def spent(work: Callable[[], Any], images: int) -> tuple[Any, Spent]:
    """What it gives and what it takes, told by the progress that it shows."""
    seen: list[tuple[int, float, float, float]] = []
    update = Progress.update

    def watched(bar: Progress, count: int = 1) -> None:
        update(bar, count)
        seen.append((bar.done, time.perf_counter(), time.process_time(), memory()))

    began = time.perf_counter()
    Progress.update = watched  # type: ignore[method-assign]
    try:
        result = work()
    finally:
        Progress.update = update  # type: ignore[method-assign]
    ended, cpu = time.perf_counter(), time.process_time()
    done, at, cpu_at, held = next(moment for moment in seen if moment[0] >= images / 10)
    left = images - done
    grown = max(moment[3] for moment in seen) - held
    return result, Spent(left / (ended - at), seen[0][1] - began, 1000 * (cpu - cpu_at) / left, grown)


def workers_at_work(mark: str) -> list[int]:
    """Processes of this cluster that encode images, found by a mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            ours = f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if ours and (folder / "cmdline").read_bytes().startswith(b"ray::_Worker"):
                found.append(int(folder.name))
    return found


def under_kills(folder: Path, place: Path, encoder: HeadEncoder, seconds: float) -> None:
    os.environ[_MARK] = mark = str(os.getpid())
    ended, kills = threading.Event(), []

    def kill() -> None:
        while not ended.wait(seconds):
            if workers := workers_at_work(mark):
                kills.append(random.choice(workers))
                with suppress(ProcessLookupError):
                    os.kill(kills[-1], signal.SIGKILL)

    rows, took = [], []
    for name, cluster in (("one process", None), ("under kills", Cluster())):
        if cluster:
            ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            threading.Thread(target=kill, daemon=True).start()
        gallery, began = Gallery.create(place / name, encoder), time.perf_counter()
        summary = gallery.add(encoder, [folder], cluster=cluster)
        took.append(time.perf_counter() - began)
        rows.append(gallery.rows(gallery.table.schema.names))
        print(f"{name}: {summary.added} images in {took[-1]:.0f} s", flush=True)
    ended.set()
    ray.shutdown()
    assert rows[0].equals(rows[1])
    print(f"{len(kills)} workers killed, one every {seconds:g} s; the galleries are equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kill-every", type=float, metavar="SECONDS")
    args = parser.parse_args()
    torch.set_num_threads(1)
    encoder = HeadEncoder.load(MINI, device="cpu")
    backbone = load_backbone(MINI, device=torch.device("cpu"))
    probe = drawn_probe(ATTRIBUTES, args.images, 64)
    found: dict[str, dict[int, list[Spent]]] = {"index": {1: [], 2: []}, "roles": {1: [], 2: []}}
    results: dict[str, list[Any]] = {"index": [], "roles": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "pictures"
        folder.mkdir()
        for number, scene in enumerate(world_pictures(args.images).pictures):
            scene.open().save(folder / f"{number:06}.png")
        if args.kill_every:
            under_kills(folder, Path(name), encoder, args.kill_every)
            return
        for turn in range(args.rounds):
            for workers in (1, 2):
                ray.init("local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
                gallery = Gallery.create(Path(name) / f"gallery-{turn}-{workers}", encoder)
                _, of_index = spent(lambda g=gallery: g.add(encoder, [folder], cluster=Cluster()), args.images)
                found["index"][workers].append(of_index)
                results["index"].append(gallery.rows(gallery.table.schema.names))
                role_map, of_roles = spent(lambda: roles_by_pictures(backbone, [probe], cluster=Cluster()), args.images)
                found["roles"][workers].append(of_roles)
                results["roles"].append(role_map.to_json())
                ray.shutdown()
    assert all(rows.equals(results["index"][0]) for rows in results["index"])
    assert all(role_map == results["roles"][0] for role_map in results["roles"])
    names = ["start s", "driver CPU s for 1000", "driver grows MB"]
    table = Table(["", "1 worker images/s", "2 workers images/s", "times", *names])
    for kind, of_kind in found.items():
        one, two = (max(of_kind[workers]) for workers in (1, 2))
        about = [f"{value:.2f}" for value in two[2:]]
        table.add(kind, f"{one.rate:.0f}", f"{two.rate:.0f}", f"{two.rate / one.rate:.2f}x", f"{two.start:.1f}", *about)
    print(f"{args.images} pictures, {MINI}; all results are equal")
    print(table.text())


if __name__ == "__main__":
    main()

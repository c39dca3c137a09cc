"""Work on a Ray cluster: cells of a grid, or chunks of images, through workers that each hold a model.

Every machine of a cluster needs this package, and the same folders under the same paths.

Images go through plain actors with a bounded number of pending chunks, and not through Ray Data, which starts processes
of its own for every step: here one worker reads, decodes and encodes a chunk, and only the result is sent.
"""

import argparse
import os
import re
import socket
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from dear.core.config import number
from dear.core.errors import DearError, first_line, needing, os_errors_as_dear_errors
from dear.core.lean import import_lean

LOCAL = "local"
_RETRIES = 3  # of a task whose worker died
_AHEAD = 2  # results that may wait for their turn, per chunk in progress
_CONNECT_TIMEOUT = 10.0  # seconds; Ray itself would try for minutes
_ADDRESS = re.compile(rf"auto|{LOCAL}|(?:ray://)?(?P<host>[^/:\s]+):(?P<port>\d{{1,5}})")

Job = TypeVar("Job")
JobResult = TypeVar("JobResult")
Stream = Callable[[Iterable[Any]], Iterator[Any]]


def add_ray_arguments(parser: argparse.ArgumentParser, each: str) -> None:
    """`each` names the unit that gets its own CPUs and GPUs, for the help lines."""
    parser.add_argument(
        "--ray", nargs="?", const=LOCAL, type=_address, metavar="ADDRESS",
        help="run on a Ray cluster: HOST:PORT, or auto; without ADDRESS, start one on this machine",
    )  # fmt: skip
    parser.add_argument(
        "--ray-cpus", type=number("--ray-cpus", 1, 1024), metavar="N", help=f"CPUs per {each}, with --ray (1)"
    )
    parser.add_argument(
        "--ray-gpus", type=number("--ray-gpus", 0, 64, float), metavar="N",
        help=f"GPUs per {each}, or a fraction of one, with --ray (1 if the cluster has any)",
    )  # fmt: skip


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise DearError(f"--ray {text} is no address: write HOST:PORT or auto, or put --ray after all other arguments.")
    return text


def cluster_from_args(args: argparse.Namespace, device: str) -> "Cluster | None":
    """The cluster of the arguments; None: no cluster."""
    if args.ray is None:
        if args.ray_cpus is not None or args.ray_gpus is not None:
            raise DearError("--ray-cpus and --ray-gpus apply to a cluster only: add --ray.")
        return None
    _ray()
    return Cluster(args.ray, args.ray_cpus or 1, args.ray_gpus, device, getattr(args, "precision", "auto"))


@dataclass(frozen=True)
class Cluster:
    """`address` of a running cluster, or LOCAL: a new one on this machine, shut down after the work.

    A program that is already connected to a cluster uses that one. `cpus` and `gpus` are the resources per cell, or per
    worker; gpus None: one, if the cluster has any.
    """

    address: str = LOCAL
    cpus: int = 1
    gpus: float | None = None
    device: str = "auto"
    precision: str = "auto"  # of the models that workers load

    def as_completed(
        self, work: Callable[[Job, str], JobResult], items: Sequence[Job]
    ) -> Generator[tuple[Job, JobResult], None, None]:
        """Items and their `work(item, device)`, as they complete; each uses as many threads as it has CPUs."""
        with self._workers(lambda device: lambda item: work(item, device), len(items), self.cpus, 1) as (ray, workers):
            waiting = iter(items)
            running = {worker.do.remote(item): (worker, item) for worker, item in zip(workers, waiting, strict=False)}
            while running:
                (done, *_), _ = ray.wait(list(running))
                worker, item = running.pop(done)
                result = _result(ray, done)
                for following in islice(waiting, 1):
                    running[worker.do.remote(following)] = worker, following
                yield item, result

    @contextmanager
    def workers(self, make: Callable[[str], Callable[[Any], Any]], chunks: int) -> Iterator[Stream]:
        """Starts as many workers as there is room for, at most one per chunk; each runs its own `make(device)`.

        Yields a function: chunks -> results of the workers, in the order of the chunks. A worker processes as many
        chunks at once as it has CPUs, one thread each.
        """
        with self._workers(make, chunks, 1, self.cpus) as (ray, workers):
            yield partial(_stream, ray, workers, self.cpus + 1)

    @contextmanager
    def _workers(
        self, make: Callable[[str], Callable[[Any], Any]], items: int, threads: int, at_once: int
    ) -> Iterator[tuple[Any, Sequence[Any]]]:
        """Ray and its actors, killed at the end. No tasks: one that is cancelled as it starts goes on (Ray 2.60)."""
        with self._connected() as ray:
            resources, device, room = self._resources(ray)
            options = {"max_restarts": -1, "max_task_retries": _RETRIES, "max_concurrency": at_once}
            kind = ray.remote(**resources, **options)(_Worker)
            kept = ray.put(make)  # a worker that is restarted needs it again
            workers = [kind.remote(os.getcwd(), threads, kept, device) for _ in range(min(room, items))]
            try:
                yield ray, workers
            finally:
                for worker in workers:
                    ray.kill(worker)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Ray, connected."""
        ray = _ray()
        if ray.is_initialized():
            yield ray
            return
        self._require_reachable()
        local = {"include_dashboard": False} if self.address == LOCAL else {}
        if local:  # Ray would kill our workers again and again when other programs use up the memory
            os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
        try:
            with warnings.catch_warnings():
                # LanceDB warns of forks; those of Ray become other programs at once.
                warnings.filterwarnings("ignore", message="lancedb fork support is experimental")
                ray.init(self.address, log_to_driver=False, logging_level="ERROR", **local)
        except Exception as error:  # Ray raises many kinds
            ray.shutdown()  # parts of it may have started
            what = "start a Ray cluster here" if local else f"join the Ray cluster at {self.address}"
            raise DearError(f"Cannot {what}: {first_line(error)}.") from error
        try:
            yield ray
        finally:
            ray.shutdown()

    def _require_reachable(self) -> None:
        match = _ADDRESS.fullmatch(self.address)
        if match and match["host"]:
            try:
                socket.create_connection((match["host"], int(match["port"])), _CONNECT_TIMEOUT).close()
            except (OSError, OverflowError) as error:
                raise DearError(f"Nothing answers at {self.address} ({error}): is the Ray cluster up?") from None

    def _resources(self, ray: Any) -> tuple[dict[str, float], str, int]:
        """Resources per task or worker, its device, and how many fit; refused if no machine has room for one."""
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = self.gpus
        if gpus is None:
            gpus = float(self.device != "cpu" and any(machine.get("GPU") for machine in machines))
        needs = {"CPU": self.cpus, "GPU": gpus}
        room = sum(int(min(has.get(kind, 0) / need for kind, need in needs.items() if need)) for has in machines)
        if not room:
            most = [max(int(machine.get(kind, 0)) for machine in machines) for kind in needs]
            raise DearError(
                f"No machine of the cluster has {self.cpus} CPUs and {gpus:g} GPUs (the largest {most[0]} and "
                f"{most[1]}): ask for less with --ray-cpus and --ray-gpus."
            )
        # A worker without a GPU of its own can still use those of others.
        device = "cpu" if self.device == "auto" and not gpus else self.device
        return {"num_cpus": self.cpus, "num_gpus": gpus}, device, room


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the first error is reported; others follow from it
    with needing("--ray needs Ray", "'dear-vlm[ray]'"):
        import ray
    return ray


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DearError):
            raise DearError(str(error.cause)) from None  # without the worker's traceback
        raise
    except ray.exceptions.RayError as error:
        raise DearError(
            f"A worker of the cluster died, and so did its replacements ({first_line(error)}): most likely they have "
            "too little memory; give each more CPUs with --ray-cpus, so that fewer run at once."
        ) from error


def _stream(ray: Any, workers: Sequence[Any], each: int, chunks: Iterable[Any]) -> Iterator[Any]:
    """Each worker has up to `each` chunks, running or queued; a free one takes the next chunk."""
    source, ended = iter(chunks), False
    running = {worker.ready.remote(): worker for worker in workers for _ in range(each)}
    starting = set(running)
    free: list[Any] = []
    ordered: deque[Any] = deque()  # results that have not been yielded yet
    while True:
        while free and not ended and len(ordered) < _AHEAD * each * len(workers):
            try:
                chunk = next(source)
            except StopIteration:
                ended = True
                break
            worker = free.pop(0)
            ordered.append(worker.do.remote(chunk))
            running[ordered[-1]] = worker
        if ordered and ordered[0] not in running:
            yield _result(ray, ordered.popleft())
        elif ended and not ordered:
            return
        else:
            for done in ray.wait(list(running))[0]:
                free.append(running.pop(done))
                if done in starting:
                    _result(ray, done)  # raises the error of a failed start


class _Worker:
    """An actor that holds the function of `make`; Ray restarts it when it dies."""

    def __init__(self, folder: str, threads: int, make: Callable[[str], Callable[[Any], Any]], device: str) -> None:
        self.error: DearError | None = None
        try:
            with os_errors_as_dear_errors():
                _set_up(folder, threads)
                self.work = make(device)
        except DearError as error:  # Ray would wrap it in a traceback
            self.error = error

    def ready(self) -> None:
        if self.error is not None:
            raise self.error

    def do(self, chunk: Any) -> Any:
        self.ready()
        with os_errors_as_dear_errors():
            return self.work(chunk)


def _set_up(folder: str, threads: int) -> None:
    """Enters the caller's folder, so that relative paths work, and limits the threads."""
    import torch

    import_lean()
    torch.set_num_threads(threads)
    if not os.path.isdir(folder):
        raise DearError(
            f"The machine {socket.gethostname()} has no folder {folder}: all machines need the same folders."
        )
    os.chdir(folder)

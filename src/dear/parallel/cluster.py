"""Many at once on a Ray cluster: cells of a grid as tasks, images in chunks through workers that hold a model.

Every machine of a cluster needs this package, and the folders that are named under the same paths.

Images go through plain actors with a bounded number of chunks under way, and not through Ray Data, which starts
processes of its own for every step: here a chunk is read, decoded and encoded in one place, and only what comes out is
sent.
"""

import argparse
import os
import re
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from dear.core.config import number
from dear.core.errors import DearError, os_errors_as_dear_errors

LOCAL = "local"
_RETRIES = 3  # of work whose worker died
_AHEAD = 2  # results that may wait for their turn, for each chunk that is being worked on
_ARRIVED = 1.0  # seconds; Ray 2.60 aborts the program if a task is cancelled on its way to a worker
_REACHED = 10.0  # seconds; Ray itself would try for minutes
_ADDRESS = re.compile(rf"auto|{LOCAL}|(?:ray://)?(?P<host>[^/:\s]+):(?P<port>\d{{1,5}})")

Item = TypeVar("Item")
Result = TypeVar("Result")
Stream = Callable[[Iterable[Any]], Iterator[Any]]


def add_ray_arguments(parser: argparse.ArgumentParser, each: str) -> None:
    """`each`: what gets CPUs and GPUs of its own."""
    parser.add_argument(
        "--ray", nargs="?", const=LOCAL, type=_address, metavar="ADDRESS",
        help="run on a Ray cluster: HOST:PORT, auto, or without ADDRESS one of its own on this machine",
    )  # fmt: skip
    parser.add_argument(
        "--ray-cpus", type=number("--ray-cpus", 1, 1024), metavar="N", help=f"with --ray: CPUs of each {each} (1)"
    )
    parser.add_argument(
        "--ray-gpus", type=number("--ray-gpus", 0, 64, float), metavar="N",
        help=f"with --ray: GPUs of each {each}, or the share of one (1 if the cluster has any)",
    )  # fmt: skip


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise DearError(f"--ray {text} is no address: write HOST:PORT or auto, or put --ray behind everything else.")
    return text


def given_cluster(args: argparse.Namespace, device: str) -> "Cluster | None":
    """What was asked for; None: no cluster."""
    if args.ray is None:
        if args.ray_cpus is not None or args.ray_gpus is not None:
            raise DearError("--ray-cpus and --ray-gpus say what each worker of a cluster gets: add --ray.")
        return None
    _ray()
    return Cluster(args.ray, args.ray_cpus or 1, args.ray_gpus, device)


@dataclass(frozen=True)
class Cluster:
    """`address` of a running cluster, or LOCAL: one of its own on this machine, which ends with the work.

    A program that is connected to a cluster already stays on that one. `cpus` and `gpus` are what each cell, or each
    worker that holds a model, gets; gpus None: one where there are any.
    """

    address: str = LOCAL
    cpus: int = 1
    gpus: float | None = None
    device: str = "auto"

    def finished(self, work: Callable[[Item, str], Result], items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """Items and their `work(item, device)`, as they get finished, on as many threads each as it has CPUs."""
        stays = _ray().is_initialized()
        with self._joined() as ray:
            share, device, _ = self._share(ray)
            task = ray.remote(**share, max_retries=_RETRIES)(_do)
            running = {task.remote(os.getcwd(), self.cpus, work, item, device): item for item in items}
            try:
                while running:
                    (done, *_), _ = ray.wait(list(running))
                    yield running.pop(done), _got(ray, done)
            finally:
                if running and stays:  # otherwise all of it ends with the connection
                    time.sleep(_ARRIVED)
                    for left in reversed(running):
                        ray.cancel(left, force=True)

    @contextmanager
    def workers(self, make: Callable[[str], Callable[[Any], Any]], chunks: int) -> Iterator[Stream]:
        """As many workers as there is room for, or chunks to come, each with a `make(device)` of its own.

        Yields a function: chunks -> what the workers make of them, in the order of the chunks. A worker is at as many
        chunks at once as it has CPUs, each on one thread.
        """
        with self._joined() as ray:
            share, device, room = self._share(ray)
            kind = ray.remote(**share, max_restarts=-1, max_task_retries=_RETRIES, max_concurrency=self.cpus)(_Worker)
            workers = [kind.remote(os.getcwd(), make, device) for _ in range(min(room, chunks))]
            try:
                yield partial(_streamed, ray, workers, self.cpus + 1)
            finally:
                for worker in workers:
                    ray.kill(worker)

    @contextmanager
    def _joined(self) -> Iterator[Any]:
        """Ray, connected."""
        ray = _ray()
        if ray.is_initialized():
            yield ray
            return
        self._reach()
        local = {"include_dashboard": False} if self.address == LOCAL else {}
        if local:  # Ray would end our workers, again and again, when other programs take the memory
            os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
        try:
            with warnings.catch_warnings():
                # LanceDB warns of forks; those of Ray become other programs at once.
                warnings.filterwarnings("ignore", message="lancedb fork support is experimental")
                ray.init(self.address, log_to_driver=False, logging_level="ERROR", **local)
        except Exception as error:  # Ray raises many kinds
            ray.shutdown()  # what was started of it
            what = "start a Ray cluster here" if local else f"join the Ray cluster at {self.address}"
            raise DearError(f"Cannot {what}: {_first_line(error)}.") from error
        try:
            yield ray
        finally:
            ray.shutdown()

    def _reach(self) -> None:
        found = _ADDRESS.fullmatch(self.address)
        if found and found["host"]:
            try:
                socket.create_connection((found["host"], int(found["port"])), _REACHED).close()
            except (OSError, OverflowError) as error:
                raise DearError(f"Nothing answers at {self.address} ({error}): is the Ray cluster up?") from None

    def _share(self, ray: Any) -> tuple[dict[str, float], str, int]:
        """What Ray is asked for, the device to use with it, and how many have room; refused if nobody has."""
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
        # Ray lets a worker without a GPU see those of others.
        device = "cpu" if self.device == "auto" and not gpus else self.device
        return {"num_cpus": self.cpus, "num_gpus": gpus}, device, room


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the first error is said, the others are its echo
    try:
        import ray
    except ImportError:
        raise DearError("--ray needs Ray: pip install 'dear-vlm[ray]'.") from None
    return ray


def _got(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DearError):
            raise DearError(str(error.cause)) from None  # without the worker's traceback
        raise
    except ray.exceptions.RayError as error:
        raise DearError(
            f"A worker of the cluster died, and so did those that tried again ({_first_line(error)}): most likely they "
            "have too little memory; give each more CPUs with --ray-cpus, so that fewer run at once."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def _streamed(ray: Any, workers: Sequence[Any], each: int, chunks: Iterable[Any]) -> Iterator[Any]:
    """A worker has `each` chunks, at work or in its queue, and who is free takes the next."""
    source, ended = iter(chunks), False
    running = {worker.ready.remote(): worker for worker in workers for _ in range(each)}
    starting = set(running)
    free: list[Any] = []
    ordered: deque[Any] = deque()  # what was not handed out yet
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
            yield _got(ray, ordered.popleft())
        elif ended and not ordered:
            return
        else:
            for done in ray.wait(list(running))[0]:
                free.append(running.pop(done))
                if done in starting:
                    _got(ray, done)  # says what is wrong


def _do(folder: str, threads: int, work: Callable[[Item, str], Result], item: Item, device: str) -> Result:
    with os_errors_as_dear_errors():
        _settle(folder, threads)
        return work(item, device)


class _Worker:
    """Holds what `make` made; Ray makes a new one of it when it dies."""

    def __init__(self, folder: str, make: Callable[[str], Callable[[Any], Any]], device: str) -> None:
        self.failed: DearError | None = None
        try:
            with os_errors_as_dear_errors():
                _settle(folder, 1)
                self.work = make(device)
        except DearError as error:  # Ray would wrap it in a traceback
            self.failed = error

    def ready(self) -> None:
        if self.failed is not None:
            raise self.failed

    def do(self, chunk: Any) -> Any:
        self.ready()
        with os_errors_as_dear_errors():
            return self.work(chunk)


def _settle(folder: str, threads: int) -> None:
    """In the folder of the one who asked, where relative paths begin."""
    import torch

    torch.set_num_threads(threads)
    if not os.path.isdir(folder):
        raise DearError(
            f"The machine {socket.gethostname()} has no folder {folder}: a cluster needs the same everywhere."
        )
    os.chdir(folder)

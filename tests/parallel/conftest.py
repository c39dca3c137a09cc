"""A real Ray cluster of two workers, its processes, found by a mark in their environment, and a way to kill one."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'dear-vlm[ray]'")

MARK = "DEAR_TEST_CLUSTER"  # in the environment of every process of a cluster
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
}
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def processes(mark: str, title: str = "") -> list[int]:
    """Processes of one cluster whose title begins so: "ray::NAME" is at work."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if marked and (folder / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(folder.name))
    return found


def ended(mark: str) -> bool:
    """All but Ray's agents: if the rest was killed, they try for a minute, no less, to tell it somebody, and end."""
    agents = {pid for title in AGENTS for pid in processes(mark, title)}
    return set(processes(mark)) <= agents


def wait_for(what: Callable[[], Any], pause: float = 0.01, seconds: float = 400) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)
    return found


def sentences(said: str) -> list[str]:
    """Lines that dear says, without the progress that a busy machine shows."""
    return [line for line in said.splitlines() if line.startswith("dear: ")]


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """A cluster of two workers, to which everything in this process is connected."""
    mark, threads = uuid4().hex, torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, MARK: mark}.items():
            patch.setenv(name, value)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    torch.set_num_threads(1)  # as workers do: bits may depend on it
    yield mark
    torch.set_num_threads(threads)
    ray.shutdown()
    wait_for(lambda: not processes(mark), pause=0.1)


@pytest.fixture
def one_is_killed(mark: str) -> Iterator[Callable[[str, Callable[[], Any]], None]]:
    """Kills a process with this title, in a thread, as soon as a condition holds; fails if it never did."""
    killed: list[int] = []
    threads: list[threading.Thread] = []

    def kill(title: str, when: Callable[[], Any]) -> None:
        def wait() -> None:
            wait_for(when)
            killed.append(wait_for(lambda: processes(mark, title))[0])
            os.kill(killed[0], signal.SIGKILL)

        threads.append(threading.Thread(target=wait))
        threads[0].start()

    yield kill
    threads[0].join()
    assert killed

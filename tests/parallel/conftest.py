"""A real Ray cluster of two workers per test file, and a way to kill one of its processes."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import torch

from on_ray import MARK, SETTINGS, processes, wait_for

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'dear-vlm[ray]'")


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

"""Processes of Ray clusters, found by a mark in their environment."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "DEAR_TEST_CLUSTER"  # in the environment of every process of a cluster
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
}
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def processes(mark: str, title: str = "") -> list[int]:
    """Processes of one cluster whose title begins so; "ray::NAME" is at work."""
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
    """Without the progress that a busy machine shows."""
    return [line for line in said.splitlines() if line.startswith("dear: ")]

"""A real Ray cluster of two workers gives what one process gives, whoever is killed, and leaves nothing behind."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import length_hint
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dear
from dear.adapter import save_adapter
from dear.cli import main
from dear.cluster import _AHEAD, Cluster, _streamed
from dear.data.world.tasks import world_task
from dear.errors import DearError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'dear-vlm[ray]'")

MARK = "DEAR_TEST_CLUSTER"  # in the environment of every process of a cluster
MANY = ["--seeds", *map(str, range(1, 100))]


def processes(mark: str, title: str = "") -> list[int]:
    """Of one cluster, those whose title begins so: "ray::NAME" is at work."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if marked and (folder / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(folder.name))
    return found


def wait_for(what: Callable[[], Any], seconds: float = 400) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """A cluster of two workers, to which everything in this process is connected."""
    mark, threads = uuid4().hex, torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            MARK: mark,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_worker_niceness": "0",
        }.items():
            patch.setenv(name, value)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    torch.set_num_threads(1)  # as workers do: bits may depend on it
    yield mark
    torch.set_num_threads(threads)
    ray.shutdown()
    wait_for(lambda: not processes(mark))


@pytest.fixture
def one_is_killed(mark: str) -> Iterator[Callable[[str, Callable[[], Any]], None]]:
    """Kills one process with a title as soon as a condition holds, beside the test; and it must have come to that."""
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


def measured(folder: Path) -> dict[str, Any]:
    """All results as they are on disk, without times and memory."""
    found = {path.name: json.loads(path.read_text()) for path in (folder / "cells").iterdir()}
    for result in found.values():
        for key in ("seconds", "peak_memory_mb", "finished"):
            del result[key]
    return found


def sentences(said: str) -> list[str]:
    """Without the progress that a busy machine shows."""
    return [line for line in said.splitlines() if line.startswith("dear: ")]


@pytest.fixture(scope="module")
def grid(model_folder: Path, role_file: Path) -> list[str]:
    """Arguments of `dear bench`: four cells, of which two are trained."""
    return [
        "bench", "few-shot", "--datasets", "world:colors", "--methods", "zero-shot", "dear", "--seeds", "1", "2",
        "--shots", "2", "--model", f"local-dir:{model_folder}", "--roles", str(role_file), "--first-layer", "2",
        "--epochs", "4", "--workers", "0", "--device", "cpu",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def one_after_the_other(grid: list[str], mark: str, tmp_path_factory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("sequential")
    assert main([*grid, "--out", str(out)]) == 0
    return measured(out)


def test_cells_are_those_of_one_process_when_a_worker_is_killed(
    grid, one_after_the_other, one_is_killed, tmp_path: Path
) -> None:
    one_is_killed("ray::_do", lambda: list(tmp_path.glob("work/*/checkpoint.safetensors")))
    assert main([*grid, "--out", str(tmp_path), "--ray"]) == 0
    assert measured(tmp_path) == one_after_the_other
    assert not any((tmp_path / "work").iterdir())


def test_a_bad_cell_is_one_sentence(mark, grid, tmp_path: Path, capsys) -> None:
    assert main([*grid, "--datasets", "nowhere", "--out", str(tmp_path), "--ray"]) == 2
    said = sentences(capsys.readouterr().err)
    assert len(said) == 1
    assert "There is no folder or file nowhere" in said[0]


def test_an_interrupted_driver_leaves_no_cell_running(grid, mark, tmp_path: Path, capsys) -> None:
    def interrupt() -> None:
        wait_for(lambda: list(tmp_path.glob("cells/*.json")))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
    thread.start()
    assert main([*grid, *MANY, "--out", str(tmp_path), "--ray"]) == 130
    thread.join()
    signal.signal(signal.SIGINT, heeded)
    assert sentences(capsys.readouterr().err) == ["dear: interrupted; what was finished is kept."]
    wait_for(lambda: not processes(mark, "ray::_do"))
    assert measured(tmp_path)


def test_a_killed_driver_loses_no_finished_cell_and_its_cluster_ends(grid, one_after_the_other, tmp_path: Path) -> None:
    environment = {**os.environ, MARK: uuid4().hex, "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dear.cli", *grid, *MANY, "--out", str(tmp_path), "--ray"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        wait_for(lambda: list(tmp_path.glob("cells/*.json")))
        process.kill()
    wait_for(lambda: not processes(environment[MARK]))
    found = measured(tmp_path)
    assert found
    assert {name: found[name] for name in found if name in one_after_the_other}.items() <= one_after_the_other.items()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--ray", "photos"], "--ray photos is no address: write HOST:PORT or auto"),
        (["--ray", "--ray-cpus", "500"], "No machine of the cluster has 500 CPUs and 0 GPUs (the largest 2 and 0)"),
        (["--ray", "--ray-gpus", "2"], "ask for less"),
        (["--ray-cpus", "2"], "add --ray"),
    ],
)
def test_what_cannot_be_is_one_sentence(flags: list[str], says: str, mark, grid, tmp_path: Path, capsys) -> None:
    assert main([*grid, "--out", str(tmp_path / "out"), *flags]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_nobody_answers_at_an_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        with pytest.raises(DearError, match="Nothing answers at"):
            Cluster(f"127.0.0.1:{taken.getsockname()[1]}")._reach()


def test_without_ray_a_sentence_says_what_to_install(grid, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*grid, "--out", str(tmp_path), "--ray"]) == 2
    assert capsys.readouterr().err == "dear: --ray needs Ray: pip install 'dear-vlm[ray]'.\n"


class Pretended:
    """Stands for Ray, and for workers with a queue each, of which any may be the next to finish something."""

    def __init__(self, rng: random.Random, workers: int) -> None:
        self.rng, self.queues = rng, [[] for _ in range(workers)]
        self.workers = [SimpleNamespace(ready=self._method(q), do=self._method(q)) for q in self.queues]
        self.exceptions = ray.exceptions
        self.asked = self.most = 0

    def _method(self, queue: list[object]) -> SimpleNamespace:
        def remote(*chunk: int) -> tuple[int, ...]:
            self.asked += 1
            queue.append((self.asked, *chunk))
            self.most = max(self.most, len(queue))
            return queue[-1]

        return SimpleNamespace(remote=remote)

    def wait(self, running: list[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[object]]:
        queue = self.rng.choice([queue for queue in self.queues if queue])
        assert queue[0] in running
        return [queue.pop(0)], []

    def get(self, reference: tuple[int, ...]) -> int | None:
        return reference[1] if len(reference) > 1 else None


@given(seed=st.integers(0, 10**6), workers=st.integers(1, 4), each=st.integers(1, 3), chunks=st.integers(0, 40))
def test_results_stream_in_order_and_are_bounded(seed: int, workers: int, each: int, chunks: int) -> None:
    pretended, source, taken = Pretended(random.Random(seed), workers), iter(range(chunks)), []
    for result in _streamed(pretended, pretended.workers, each, source):
        taken.append(result)
        assert chunks - length_hint(source) - len(taken) < _AHEAD * each * workers
    assert taken == list(range(chunks))
    assert pretended.most <= each


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Pictures of two kinds in batches enough for two workers to take turns; five files of each kind are none."""
    folder = tmp_path_factory.mktemp("photos")
    for kind in ("circle", "square"):
        (folder / kind).mkdir()
        for number in range(5):
            (folder / kind / f"{number}0.png").write_text("no picture")
    for number, example in enumerate(world_task("shapes").test[:200]):
        picture = example.picture.open().resize((600, 600))
        picture.save(folder / ("circle", "square")[number % 2] / f"{number + 100}.png")
    return folder


def test_a_gallery_has_the_same_rows_when_a_worker_is_killed(
    model_folder, role_file, photos, mark, one_is_killed, tmp_path: Path, capsys
) -> None:
    pytest.importorskip("lancedb")
    from dear.gallery import Gallery

    asked = ["index", str(photos), "--model", f"local-dir:{model_folder}", "--roles", str(role_file), "--device", "cpu"]
    one_is_killed("ray::_Worker.do", lambda: (tmp_path / "many").exists())
    for name, flags in {"one": [], "many": ["--ray"]}.items():
        assert main([*asked, "--out", str(tmp_path / name), *flags]) == 0
        said = capsys.readouterr()
        assert "added 200, already there 0, duplicates 0, unreadable 10\n" in said.out
        assert said.err.count("dear: skipped: The image") == 10
    one, many = (Gallery.open(tmp_path / name) for name in ("one", "many"))
    assert one.rows(one.table.schema.names).equals(many.rows(many.table.schema.names))


def test_a_role_map_is_the_same_to_the_last_digit(model_folder, photos, mark, tmp_path: Path, capsys) -> None:
    asked = ["roles", "--model", f"local-dir:{model_folder}", "--probe", f"shape={photos}", "--limit", "100"]
    asked += ["--device", "cpu", "--out"]
    assert main([*asked, str(tmp_path / "one.json")]) == 0
    said = capsys.readouterr().out
    assert main([*asked, str(tmp_path / "many.json"), "--ray"]) == 0
    assert "skipped one: The image" in said
    assert (tmp_path / "many.json").read_text() == (tmp_path / "one.json").read_text()


def test_answers_come_in_order_and_alone_on_stdout(model_folder, role_file, photos, mark, tmp_path, capsys) -> None:
    model = dear.create(f"local-dir:{model_folder}", classes=["circle", "square"], roles=str(role_file), first_layer=2)
    save_adapter(tmp_path / "run", "dear", model.model, model.template)
    asked = ["predict", str(tmp_path / "run"), str(photos), "--json", "--device", "cpu"]
    assert main(asked) == 0
    one = capsys.readouterr()
    assert main([*asked, "--ray", "--ray-cpus", "2"]) == 0  # one worker that is at two batches at once
    many = capsys.readouterr()
    assert many.out == one.out
    assert len(many.out.splitlines()) == 200
    assert sentences(many.err) == sentences(one.err)

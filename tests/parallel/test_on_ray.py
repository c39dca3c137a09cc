"""Cells and images on a real Ray cluster equal those of one process, also after kills, and leave nothing behind."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from operator import length_hint
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dear
from dear.bench.results import results_in
from dear.cli import main
from dear.core.errors import DearError
from dear.data.world.tasks import world_task
from dear.parallel.cluster import _AHEAD, Cluster, _stream
from dear.training.adapter import save_adapter

from .conftest import MARK, SETTINGS, ended, processes, ray, sentences, wait_for

ONE_WORKER = ["--ray", "--ray-cpus", "2"]  # it is at two batches at once; two workers: in the test of a gallery
ENDLESS = ["--epochs", "50000"]  # a cell that is trained is still at it when the test ends


def measured(folder: Path) -> dict[str, Any]:
    """All results on disk, without times, memory, and the state of the repository."""
    return {
        result.cell.name: (result.cell, result.outcomes, result.fusion, result.components, result.machine)
        for result in results_in(folder)
    }


@pytest.fixture(scope="module")
def signs(tmp_path_factory) -> Path:
    """A few picture files: a task of Attribute World would be drawn by every process."""
    folder = tmp_path_factory.mktemp("signs")
    examples = world_task("colors").test
    for label, name in enumerate(("red", "orange", "yellow")):
        (folder / name).mkdir()
        for number, example in enumerate([e for e in examples if e.label == label][:12]):
            example.picture.open().save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def grid(model_folder: Path, role_file: Path, signs: Path) -> list[str]:
    """Arguments of `dear bench`: four cells, of which two are trained."""
    return [
        "bench", "few-shot", "--datasets", str(signs), "--methods", "zero-shot", "dear", "--seeds", "1", "2",
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
    one_is_killed("ray::_Worker.do", lambda: list(tmp_path.glob("work/*/checkpoint.safetensors")))
    assert main([*grid, "--out", str(tmp_path), "--ray"]) == 0
    assert measured(tmp_path) == one_after_the_other
    assert not any((tmp_path / "work").iterdir())


def test_a_bad_cell_is_one_sentence(mark, grid, tmp_path: Path, capsys) -> None:
    bad = ["--datasets", "nowhere", "--methods", "dear"]  # one for each worker: what is left is killed with it
    assert main([*grid, *bad, "--out", str(tmp_path), "--ray"]) == 2
    said = sentences(capsys.readouterr().err)
    assert len(said) == 1
    assert "There is no folder or file nowhere" in said[0]


def test_an_interrupted_driver_leaves_no_cell_running(grid, one_after_the_other, mark, tmp_path: Path, capsys) -> None:
    def interrupt() -> None:
        wait_for(lambda: list(tmp_path.glob("cells/*.json")))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
    thread.start()
    assert main([*grid, *ENDLESS, "--out", str(tmp_path), "--ray"]) == 130
    thread.join()
    signal.signal(signal.SIGINT, heeded)
    (sentence,) = sentences(capsys.readouterr().err)
    assert re.fullmatch(rf"dear: interrupted; \d+ finished cells? in {tmp_path}: the same command continues.", sentence)
    wait_for(lambda: not processes(mark, "ray::_Worker.do"))
    found = measured(tmp_path)
    assert found
    assert found == {name: one_after_the_other.get(name) for name in found}


def test_a_killed_driver_loses_no_finished_cell_and_its_cluster_ends(grid, one_after_the_other, tmp_path: Path) -> None:
    environment = {**os.environ, **SETTINGS, MARK: uuid4().hex, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dear.cli", *grid, *ENDLESS, "--out", str(tmp_path), "--ray"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        wait_for(lambda: list(tmp_path.glob("cells/*.json")))
        process.kill()
    wait_for(lambda: ended(environment[MARK]), pause=0.1)
    found = measured(tmp_path)
    assert found
    assert found == {name: one_after_the_other.get(name) for name in found}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--ray", "photos"], "--ray photos is no address: write HOST:PORT or auto"),
        (["--ray", "--ray-cpus", "500"], "No machine of the cluster has 500 CPUs and 0 GPUs (the largest 2 and 0)"),
        (["--ray", "--ray-gpus", "2"], "ask for less"),
        (["--ray-cpus", "2"], "add --ray"),
    ],
)
def test_impossible_requests_are_one_sentence(flags: list[str], says: str, mark, grid, tmp_path: Path, capsys) -> None:
    assert main([*grid, "--out", str(tmp_path / "out"), *flags]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_address_without_a_cluster_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        with pytest.raises(DearError, match="Nothing answers at"):
            Cluster(f"127.0.0.1:{taken.getsockname()[1]}")._require_reachable()


def test_without_ray_a_sentence_says_what_to_install(grid, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*grid, "--out", str(tmp_path), "--ray"]) == 2
    assert capsys.readouterr().err == "dear: --ray needs Ray: pip install 'dear-vlm[ray]'.\n"


# --- images ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Pictures of two kinds, in enough batches for two workers; two files of each kind are not images."""
    folder = tmp_path_factory.mktemp("photos")
    for kind in ("circle", "square"):
        (folder / kind).mkdir()
        for number in range(2):
            (folder / kind / f"{number}0.png").write_text("no picture")
    for number, example in enumerate(world_task("shapes").test[:80]):
        picture = example.picture.open().resize((600, 600))
        picture.save(folder / ("circle", "square")[number % 2] / f"{number + 100}.png", compress_level=1)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _small_batches() -> Iterator[None]:
    """Small batches, so that a few pictures make many."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("gallery.index.ENCODE_BATCH", "heads.stream.STREAM_BATCH", "commands.predict._FILES_AT_ONCE"):
            patch.setattr(f"dear.{name}", 8)
        yield


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
        assert "added 80, already there 0, duplicates 0, unreadable 4\n" in said.out
        assert said.err.count("dear: skipped: The image") == 4
    one, many = (Gallery.open(tmp_path / name) for name in ("one", "many"))
    assert one.rows(one.table.schema.names).equals(many.rows(many.table.schema.names))


def test_a_role_map_is_the_same_to_the_last_digit(model_folder, photos, mark, tmp_path: Path, capsys) -> None:
    asked = ["roles", "--model", f"local-dir:{model_folder}", "--probe", f"shape={photos}", "--limit", "40"]
    asked += ["--device", "cpu", "--out"]
    assert main([*asked, str(tmp_path / "one.json")]) == 0
    said = capsys.readouterr().err
    assert main([*asked, str(tmp_path / "many.json"), *ONE_WORKER]) == 0
    assert "A picture is left out: The image" in said
    assert (tmp_path / "many.json").read_text() == (tmp_path / "one.json").read_text()


def test_predictions_come_in_order_and_alone_on_stdout(model_folder, role_file, photos, mark, tmp_path, capsys) -> None:
    model = dear.create(f"local-dir:{model_folder}", classes=["circle", "square"], roles=str(role_file), first_layer=2)
    save_adapter(tmp_path / "run", "dear", model.model, model.template)
    asked = ["predict", str(tmp_path / "run"), str(photos), "--json", "--device", "cpu"]
    assert main(asked) == 0
    one = capsys.readouterr()
    assert main([*asked, *ONE_WORKER]) == 0
    many = capsys.readouterr()
    assert many.out == one.out
    assert len(many.out.splitlines()) == 80
    assert sentences(many.err) == sentences(one.err)


class Pretended:
    """A fake of Ray and its workers, each with a queue; any may finish next."""

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
    for result in _stream(pretended, pretended.workers, each, source):
        taken.append(result)
        assert chunks - length_hint(source) - len(taken) < _AHEAD * each * workers
    assert taken == list(range(chunks))
    assert pretended.most <= each

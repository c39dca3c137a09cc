"""Cells of a grid on a real Ray cluster equal those of one process, also after kills, and leave nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dear.bench.results import results_in
from dear.cli import main
from dear.core.errors import DearError
from dear.data.world.tasks import world_task
from dear.parallel.cluster import Cluster
from on_ray import MARK, SETTINGS, ended, processes, sentences, wait_for

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

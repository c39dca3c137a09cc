"""A disk that fills, or a kill, at every single file a command writes: the next try ends as if nothing had happened."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dear.core.files
from dear.cli import main
from dear.clip import load_backbone
from dear.core.files import is_temporary
from noisy_pictures import noisy_folders


class Killed(BaseException):
    """Stands for SIGKILL: nothing tidies up behind it."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return noisy_folders(tmp_path / "photos", ("red", "green"), 8)


Command = Callable[[Path, bool], list[str]]


@pytest.fixture
def commands(photos: Path, model_folder: Path, role_file: Path, monkeypatch) -> dict[str, Command]:
    """Each command into a folder, at first and again."""
    name = f"local-dir:{model_folder}"
    loaded = {one: load_backbone(one) for one in (name, "dear-mini")}  # once: it takes longer than all the rest
    for user in ("dear.training.backbone", "dear.bench.run_cell"):
        monkeypatch.setattr(f"{user}.load_backbone", lambda model, *given, **options: loaded[model])
    model = ["--model", name]
    small = [*model, "--roles", str(role_file), "--shots", "2", "--epochs", "2", "--first-layer", "2"]
    small += ["--workers", "0", "--device", "cpu"]

    def train(out: Path, again: bool) -> list[str]:
        more = ["--method", "dear", *(["--resume"] if again else [])]
        return ["train", *small, "--data", str(photos), "--out", str(out), *more]

    def bench(out: Path, again: bool) -> list[str]:
        methods = ["--methods", "zero-shot", "dear", "--seeds", "1"]
        return ["bench", "base-to-novel", *small, *methods, "--datasets", str(photos), "--out", str(out)]

    def roles(out: Path, again: bool) -> list[str]:
        return ["roles", "--images", "world", "--limit", "8", "--first-layer", "9", "--out", str(out / "roles.json")]

    return {"train": train, "bench": bench, "roles": roles}


def content(out: Path) -> dict[str, bytes]:
    """The files of a result, without when and how fast it was made."""
    results = [*out.glob("adapter_*"), *out.glob("test.json"), *out.glob("roles.json")]
    found = {path.name: re.sub(rb'"seconds": [^,\s]+', b"", path.read_bytes()) for path in results}
    for path in (out / "cells").glob("*.json"):
        found[path.name] = path.read_bytes().split(b'"seconds"')[0]
    return found


@contextmanager
def fault(kind: str, chosen: int) -> Iterator[list[int]]:
    """Fails at the write number `chosen`, from 0; yields a list of what was written until then."""
    replace, fsync, written = os.replace, os.fsync, []

    def strike() -> None:
        written.append(len(written))
        if len(written) == chosen + 1:
            raise OSError(errno.ENOSPC, "No space left on device") if kind == "full" else Killed

    def full(file: int) -> None:
        strike()
        fsync(file)

    def killed(one: Path, other: Path) -> None:
        if kind == "killed before":
            strike()
        replace(one, other)
        if kind == "killed behind":
            strike()

    with pytest.MonkeyPatch.context() as patch:
        if kind == "full":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr(os, "replace", killed)
            patch.setattr(dear.core.files, "_remove", lambda path: None)
        yield written
    dear.core.files._tidied.clear()  # the next try is another process
    dear.core.files._in_use.clear()


@pytest.mark.parametrize("kind", ["full", "killed before", "killed behind"])
@pytest.mark.parametrize("name", ["train", "bench", "roles"])
def test_at_every_write(name: str, kind: str, commands, tmp_path: Path, capsys) -> None:
    command, whole = commands[name], tmp_path / "whole"
    with fault(kind, 10**6) as written:
        assert main(command(whole, False)) == 0
    expected = content(whole)
    assert expected
    # A kill behind a write leaves what one before the next does, but for a temporary file: only the last one is new.
    for chosen in range(len(written))[-1 if kind == "killed behind" else 0 :]:
        out = tmp_path / f"out{chosen}"
        with fault(kind, chosen):
            try:
                code = main(command(out, False))
            except Killed:
                code = -9
        assert code == (2 if kind == "full" else -9)
        if kind == "full":
            assert capsys.readouterr().err.splitlines()[-1].endswith("no space left on device.")
            assert not [path for path in out.rglob("*") if is_temporary(path)]
        assert main(command(out, True)) == 0, capsys.readouterr().err
        assert content(out) == expected
        assert not [path for path in out.rglob("*") if is_temporary(path)]
    assert len(written) == {"train": 11, "bench": 6, "roles": 2}[name]

"""Every path and text argument: too long, empty, not UTF-8 or of the wrong kind gives one sentence."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dear.cli import main
from dear.core.progress import Progress, log_line, report, reporting_phases

COMMANDS = [
    "data list --data-root @",
    "data check @",
    "data check DTD --data-root @",
    "compare --zero-shot @",
    "zero-shot --model @",
    "zero-shot --model local-dir:@",
    "zero-shot --model ViT-B-16 --pretrained @",
    "roles --images @",
    "roles --phrases @",
    "roles --limit 2 --plot @",
    "roles --model @ --images world",
    "roles show @",
    "roles compare dear-mini @",
    "roles show dear-mini --plot @",
    "roles show dear-mini --html @",
    "roles check @",
    "world --out @",
    "train --out @ --data world:nothing",
    "train --out OUT --data @",
    "train --out OUT --config @",
    "train --out OUT --class-names @",
    "train --out OUT --template @",
    "train --out OUT --roles @",
    "predict @ x.png",
    "predict RUN @",
    "explain @ x.png",
    "explain RUN x.png --out @",
    "export @ --onnx OUT",
    "index @ x.png --out OUT",
    "index RUN x.png --out @",
    "search @ --text red",
    "search GALLERY --image @",
    "search GALLERY --text @",
    "app @",
    "report @",
    "bench few-shot --out @ --methods nothing",
    "bench few-shot --out OUT --datasets @ --methods zero-shot",
    "bench domain --out OUT --datasets world:colors --targets @ --methods zero-shot",
    "ablate @ --out OUT",
]
FINE = ("--plot @", "--html @", "world --out @", "list --data-root @")  # a strange name is still a name
ODD = {
    "long": "x" * 300,
    "deep": "/".join(["y" * 200] * 30),
    "empty": "",
    "blank": "  ",
    "not UTF-8": "caf\udce9",
    "half a letter": "\ud83e",
    "zero": "a\0b",
    "dollar": "$x$",
    "braces": "{0} {x!r:>99999999}",
    "a file": "file",
    "a folder": "folder",
    "a pipe": "pipe",
    "a device": "/dev/full",
    "a loop": "loop",
    "below a file": "file/x",
    "json": "deep.json",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("not what is looked for")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("deep.json").write_text("[" * 10**5)
    os.mkfifo("pipe")
    return tmp_path


def untouched(place: Path) -> list[str]:
    return sorted(path.name for path in place.rglob("*"))


# Of all pairs every third, so that each command meets a third of the names, and each name a third of the commands.
PAIRS = [(c, n) for i, c in enumerate(COMMANDS) for j, n in enumerate(ODD) if (i + j) % 3 == 0]


@pytest.mark.parametrize(("command", "name"), PAIRS)
def test_one_sentence_and_nothing_written(command: str, name: str, place: Path, capsys) -> None:
    before = untouched(place)
    words = [ODD[name] if word == "@" else word.replace("@", ODD[name]) for word in command.split()]
    try:
        code = main(words)
    except SystemExit as stopped:  # argparse: not among its choices
        code = stopped.code
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert len(err) < 6000
    if code == 0:
        assert command.endswith(FINE)
        return
    assert code == 2
    assert err.startswith(("dear: ", "usage: ")), err
    assert untouched(place) == before


@pytest.mark.parametrize("command", [["methods"], ["data", "list"], ["roles", "show", "dear-mini"]])
def test_output_to_a_full_disk_is_one_sentence(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dear.cli", *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600
        )
    assert done.returncode == 2
    assert done.stderr == "dear: Cannot write the output: no space left on device.\n"


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-"])
def test_closed_standard_streams(closed: str, tmp_path: Path) -> None:
    """Nothing is printed, and no file gets what was meant for a stream."""
    command = f"{sys.executable} -m dear.cli data world --out {tmp_path / 'sheet.png'} --size 32 {closed}"
    assert subprocess.run(["bash", "-c", command], timeout=600).returncode == 0
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_python_without_standard_streams(monkeypatch) -> None:
    """Progress of long work finds nothing to write to, such as under pythonw."""
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    with Progress("heads", 2) as bar, reporting_phases():
        bar.update()
        bar.write("a line")
        log_line("the end of a part")
        report("a line")


def test_characters_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,label\na.png,🦊\na.png,caf\u00e9\n", encoding="utf-8")
    (tmp_path / "a.png").write_bytes(b"no")
    words = [sys.executable, "-m", "dear.cli", "data", "check", b"list.csv"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, timeout=600)
    assert done.returncode == 2
    assert b"\\U0001f98a" in done.stdout
    assert done.stderr.startswith(b"dear: The image")


def test_long_names_are_not_echoed_whole(capsys) -> None:
    assert main(["data", "check", "x" * 100_000]) == 2
    assert len(capsys.readouterr().err) < 1000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_escape_sequences_in_names_do_not_reach_the_terminal(monkeypatch, tmp_path: Path) -> None:
    """Names that colour, clear, retitle or answer: a terminal shows them, and obeys none."""
    names = ["\x1b[31mred", "\x1b]0;title\x07", "\x1b[2J", "\x9b5n", "a\rb\x08c\x7f"]
    for name in names:
        out, err = Terminal(), Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert main(["data", "check", str(tmp_path / name)]) == 2
        print(name, file=sys.stdout)
        seen = out.getvalue() + err.getvalue()
        assert not set(seen) & set("\x1b\x07\x08\x7f\x9b")
        assert "\\x" in seen


@pytest.mark.parametrize("wrong", ["x", "-1", "1.5", "", "9" * 20])
@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK"])
def test_an_environment_that_lies_is_named(monkeypatch, capsys, name: str, wrong: str) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, wrong)
    assert main(["methods"]) == 2
    assert f"The environment variable {name} must be a whole number" in capsys.readouterr().err


def test_an_environment_without_a_rank(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["methods"]) == 2
    assert "start `dear methods` without torchrun" in capsys.readouterr().err

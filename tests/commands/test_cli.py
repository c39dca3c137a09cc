"""The command line: quick help, one sentence and exit code 2 for bad input, and no half-written files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from dear import __version__
from dear.cli import ALIASES, COMMAND_GROUPS, COMMANDS, main
from dear.core.extras import EXTRAS
from dear.methods.registry import METHODS, methods_for

pytestmark = pytest.mark.usefixtures("few_pictures")
DEAR = "import sys; from dear.cli import main; sys.exit(main())"


def dear(*argv: str, **options) -> subprocess.CompletedProcess:
    """The program in a process of its own, as a user runs it."""
    return subprocess.run([sys.executable, "-c", DEAR, *argv], text=True, timeout=600, **options)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_page(command: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    page = capsys.readouterr().out
    assert f"usage: dear {command}" in page
    assert COMMANDS[command][1:12] in page.replace("\n", " ")  # its description


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_imports_nothing_heavy(flag: str) -> None:
    report = "import atexit, sys; atexit.register(lambda: print('modules:', *sys.modules)); " + DEAR
    done = subprocess.run([sys.executable, "-c", report, flag], text=True, capture_output=True, timeout=600)
    page, _, modules = done.stdout.partition("modules:")
    assert done.returncode == 0
    assert all(name in page for name in COMMANDS) if flag == "--help" else page == f"dear {__version__}\n"
    assert "dear.cli" in modules.split()
    heavy = {"torch", "open_clip", "numpy", "PIL", "matplotlib", "ray", "sklearn", "scipy", "pandas", "transformers"}
    assert not heavy & set(modules.split())
    assert len(modules.split()) < 300


@pytest.mark.parametrize("argv", [["fly"], ["data", "world", "--wings"]])
def test_unknown_commands_and_flags_show_the_usage(argv: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "usage: dear" in capsys.readouterr().err


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_a_part_of_a_command_and_is_not_listed(alias: str, capsys) -> None:
    assert main([]) == 0
    assert f"\n  {alias} " not in capsys.readouterr().out
    pages = []
    for argv in ([alias, "--help"], [*ALIASES[alias], "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    assert len(COMMANDS) <= 24


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["compare"], "name one, or add --zero-shot"),
        (["compare", "world:colors", "world:signs"], "Methods are compared on one dataset"),
        (["compare", "world:colors", "--gain", "all=2"], "add --zero-shot"),
        (["compare", "--zero-shot", "world:colors", "--methods", "gda"], "leave out --methods"),
        (["serve", "RUN", "--page", "--token-file", "token"], "The page sends no token"),
    ],
)
def test_options_that_exclude_each_other_are_refused(argv: list[str], sentence: str, capsys) -> None:
    assert main(argv) == 2
    assert sentence in capsys.readouterr().err


def test_dear_alone_shows_first_steps_and_groups_commands_by_task(capsys) -> None:
    assert main([]) == 0
    page = capsys.readouterr().out
    assert page.index("dear demo") < page.index("dear train") < page.index("dear predict")
    groups = [page.index(f"\n{title}:\n") for title in COMMAND_GROUPS]
    assert groups == sorted(groups)
    assert all(page.count(f"\n  {name} ") == 1 for name in COMMANDS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dear ex", {"explain", "export"}),
        ("dear data world --se", {"--seed"}),
        ("dear predict RUN IMAGE --inference ", {"fusion", "decoupled"}),
        ("dear data ", {"list", "check", "world"}),
    ],
)
def test_the_shell_completes_commands_flags_and_choices(line: str, expected: set[str], tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    environment = {
        **os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    done = dear(env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    found = {word.strip() for word in answer.read_text().split("\n") if word.strip() and word.strip() != "-"}
    assert expected <= found
    assert not any(word.startswith("Trace") for word in found)


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["backbones", "--json"], {"backbones"}),
        (["data", "list", "--json"], {"datasets", "sources"}),
        (["data", "check", "world:places", "--json"], {"counts", "classes", "problems"}),
        (["roles", "compare", "paper", "paper", "--json"], {"compared"}),
    ],
)
def test_tables_come_as_json_alone(argv: list[str], names: set[str], capsys) -> None:
    assert main(argv) == 0
    out, err = capsys.readouterr()
    tables = json.loads(out)
    assert set(tables) == names
    assert all(
        rows and all(isinstance(row, dict) for row in rows) for name, rows in tables.items() if name != "problems"
    )
    assert err  # what is said beside the tables is not lost


def test_failed_commands_print_no_json(capsys) -> None:
    assert main(["data", "list", "--json", "--data-root", "no/such/folder"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["zero-shot", "--model", "dear-mino"], "did you mean dear-mini"),
        (["zero-shot", "--model", "RN50"], "RN50 needs weights: choose --pretrained from openai"),
        (["zero-shot", "--model", "local-dir:nowhere"], "does not exist"),
        (["zero-shot", "--data", "world:fruits"], "has no task 'fruits': choose from colors"),
        (["zero-shot", "--data", "world:signs:oil"], "has no style 'oil': choose from plain"),
        (["zero-shot", "--data", "world:"], "has no task ''"),
        (["zero-shot", "--data", "no/such/folder"], "no/such/folder"),
        (["zero-shot", "--device", "toaster"], "use cpu, cuda"),
        (["zero-shot", "--pretrained", "x"], "name the model, too, with --model"),
        (["zero-shot", "--model", "dear-mini", "--pretrained", "x"], "dear: dear-mini has its own weights: leave out"),
        (["data", "world", "--out", "world.xyz"], "ends in .png"),
        (["data", "world", "--out", "."], "ends in .png"),
        (["data", "world", "--size", "9"], "must be from 16 to 512"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(argv: list[str], sentence: str, capsys) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert err.startswith("dear: ")
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize("out", ["file/world.png", "folder.png"])
def test_an_unwritable_out_leaves_everything_as_it_was(tmp_path: Path, out: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr("dear.data.world.sheet.world_sheet", lambda seed, size: Image.new("RGB", (9, 9)))
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder.png").mkdir()
    assert main(["data", "world", "--out", str(tmp_path / out)]) == 2
    assert "Cannot write" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder.png"]
    assert (tmp_path / "file").read_text() == "old"


def test_the_doctor_knows_every_extra() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (everything,) = re.findall(r'^all = \["dear-vlm\[(.*)\]"\]', project, re.MULTILINE)
    assert set(EXTRAS) == set(everything.split(","))


def test_backbones_lists_the_bundled_model_and_what_each_can_do(capsys) -> None:
    assert main(["backbones"]) == 0
    page = capsys.readouterr().out
    assert "bundled: dear-mini" in page
    tiers = {line.split()[0]: line.split()[2:4] for line in page.splitlines() if len(line.split()) > 4}
    assert tiers["ViT-B-16"] == ["full", "full"]
    assert tiers["RN50"] == ["features", "full"]
    assert main(["backbones", "RN50"]) == 0
    assert "ResNet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "best"),
    [
        ("train --data world:signs --out RUN --model ViT-B-16-SigLIP --pretrained webli", "prolip"),
        ("train --data world:signs --out RUN --model RN50 --pretrained openai --method dear", "tip-adapter-f"),
        ("bench few-shot --methods gda maple --out RUN --model RN50 --pretrained openai", "tip-adapter-f"),
    ],
)
def test_a_method_that_cannot_work_is_refused_before_weights_are_fetched(
    command: str, best: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("open_clip.create_model", lambda *args, **kwargs: pytest.fail("weights were fetched"))
    assert main([str(tmp_path / "run") if word == "RUN" else word for word in command.split()]) == 2
    assert f"take --method {best}, or another that works (" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_all_methods_are_those_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []
    monkeypatch.setattr(
        "dear.commands.bench.run_grid", lambda cells, *rest: planned.extend(c.method for c in cells) or []
    )
    main(["bench", "few-shot", "--methods", "all", "--model", "RN50", "--pretrained", "openai", "--out", str(tmp_path)])
    assert set(planned) == set(methods_for("features", "full")) != set(METHODS)


def test_world_is_the_same_picture_in_any_process_and_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    here, there = tmp_path / "here.png", tmp_path / "new" / "there.png"
    assert main(["data", "world", "--out", str(here), "--seed", "5"]) == 0
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # the harder case
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = dear(
            "data", "world", "--out", str(there), "--seed", "5", stdout=writer, stderr=subprocess.PIPE, env=buffered
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert here.read_bytes() == there.read_bytes()

"""Moves stored cells of format 1, a file each, to format 2, a line each of cells.jsonl; checks that nothing is lost.

    python scripts/migrate_cells.py move results/*
    python scripts/migrate_cells.py check COMMIT results/*     COMMIT: with the cells and the code of format 1
    python scripts/migrate_cells.py tables OLD NEW             of two reports: every table, digit by digit

`check` moves the old cells back and forth: the JSON values must be equal, and the name of a cell its file's. `tables`
allows differences only where the rule of comparison changed: paired comparisons of one draw of one test set; and the
column of ablations, which had a standard error and has a 95% interval, and whose mean counts datasets alike now, as all
other comparisons do, where it counted pairs of dataset and seed.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dear.bench.results import STUDY, parse_result
from dear.core.files import write_text


def moved(old: dict[str, Any]) -> dict[str, Any]:
    split = old["cell"]["split"]
    measured = {} if split == "test" else {"measured": split}
    changed = {
        "format": 2,
        "evaluations": [_renamed(one, "name", "part") | measured for one in old["evaluations"]],
        "components": [_renamed(one, "name", "part") for one in old["components"]],
    }
    return _renamed(old | changed, "evaluations", "outcomes")


def moved_back(new: dict[str, Any]) -> dict[str, Any]:
    outcomes = [{key: value for key, value in one.items() if key != "measured"} for one in new["outcomes"]]
    changed = {
        "format": 1,
        "outcomes": [_renamed(one, "part", "name") for one in outcomes],
        "components": [_renamed(one, "part", "name") for one in new["components"]],
    }
    return _renamed(new | changed, "outcomes", "evaluations")


def move(folders: list[Path]) -> None:
    for folder in folders:
        files = sorted((folder / "cells").glob("*.json"))
        lines = []
        for path in files:
            new = moved(json.loads(path.read_text(encoding="utf-8")))
            lines.append(json.dumps(new, ensure_ascii=False))
            assert parse_result(lines[-1], str(path)).cell.name == path.stem, path
        write_text(folder / STUDY, "\n".join(lines) + "\n")
        for path in files:
            path.unlink()
        (folder / "cells").rmdir()
        print(f"{folder}: {len(lines)} cells")


def check(commit: str, folders: list[Path]) -> None:
    for folder in folders:
        new = {}
        for number, line in enumerate((folder / STUDY).read_text(encoding="utf-8").splitlines(), 1):
            result = parse_result(line, f"line {number}")
            new[result.cell.name] = json.loads(line)
        listed = _git("ls-tree", "--name-only", commit, f"{folder}/cells/").split()
        assert {Path(path).stem for path in listed} == new.keys(), folder
        for path in listed:
            assert moved_back(new[Path(path).stem]) == json.loads(_git("show", f"{commit}:{path}")), path
        print(f"{folder}: {len(listed)} cells are the same, under the same names")


def tables(old: Path, new: Path) -> None:
    names = sorted(path.name for path in (old / "tables").glob("*.csv"))
    assert names == sorted(path.name for path in (new / "tables").glob("*.csv"))
    same = judged = 0
    for name in names:
        ours, theirs = (list(csv.reader((folder / "tables" / name).open(encoding="utf-8"))) for folder in (new, old))
        assert len(ours) == len(theirs), name
        assert ours[0] == theirs[0], name
        for row, (after, before) in enumerate(zip(ours[1:], theirs[1:], strict=True)):
            for column, (now, was) in enumerate(zip(after, before, strict=True)):
                if now == was:
                    same += 1
                    continue
                heading = ours[0][column]
                allowed = "_overview" in name or heading.endswith("− default")
                assert allowed, (name, row, heading, was, now)
                first, then = (text.split(" ")[0] for text in (now, was))
                if "_overview" in name:
                    assert first == then or heading == "verdict", (name, row, heading, was, now)
                else:
                    assert abs(float(first) - float(then)) < 0.3, (name, row, heading, was, now)
                judged += 1
                print(f"  {name}, {after[0]}, {heading}: {was} -> {now}")
    print(f"{new}: {len(names)} tables, {same:,} values equal, {judged} intervals or verdicts by the new rule")


def _renamed(value: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: item for key, item in value.items()}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    what, *others = sys.argv[1:]
    if what == "move":
        move([Path(name) for name in others])
    elif what == "check":
        check(others[0], [Path(name) for name in others[1:]])
    else:
        tables(Path(others[0]), Path(others[1]))

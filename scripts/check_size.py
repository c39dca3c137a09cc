"""Checks what CONTRIBUTING promises: lines in all, per file and per room, names defined twice, and docstrings.

Prints a table; exits with 1 and a line for each broken limit.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 300  # lines of a file
SRC, TESTS, FILES = 33_900, 23_870, 254
ROOMS = {
    "bench": 2650, "clip": 3620, "commands": 2430, "core": 1930, "data": 4400, "decisions": 620, "gallery": 1300,
    "heads": 3170, "methods": 4730, "model": 2100, "parallel": 570, "server": 1870, "training": 1720, "trials":
    2220,
}  # fmt: skip
TWICE, TWICE_PUBLIC = 4, 3  # names that two files or more define at their top
CONTRACT = {"add_arguments", "add_settings", "after_interrupt", "run", "T"}
"""What every command defines under the same name, and the type variable that every file may call T."""


FRAGMENTS = ("As", "By", "Of", "What", "Where", "With")  # how docstrings begin that do not name their subject


def lines_of(folder: Path) -> dict[Path, int]:
    """Lines of each Python file below a folder."""
    return {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(folder.rglob("*.py"))}


def top_names(path: Path) -> set[str]:
    """Names of the functions, classes and variables at the top of a file."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names - CONTRACT


def defined_twice(paths: list[Path]) -> dict[str, list[Path]]:
    """Names that several files define at their top, and these files."""
    places: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        for name in top_names(path):
            places[name].append(path)
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def fragments(path: Path) -> list[str]:
    """The docstrings of a file that do not name their subject, each with its line."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]
    found = [(getattr(node, "lineno", 1), ast.get_docstring(node) or "-") for node in nodes]
    return [f"{line}: {text.splitlines()[0]}" for line, text in found if text.split()[0].strip(",:.") in FRAGMENTS]


def main() -> int:
    package = ROOT / "src" / "dear"
    src, tests = lines_of(package), lines_of(ROOT / "tests")
    broken = []

    def check(what: str, count: int, limit: int) -> None:
        print(f"{what:32} {count:7,} of {limit:,}")
        if count > limit:
            broken.append(f"{what}: {count:,}, allowed are {limit:,}")

    check("lines of src", sum(src.values()), SRC)
    check("files of src", len(src), FILES)
    check("lines of tests", sum(tests.values()), TESTS)
    for room, limit in ROOMS.items():
        check(f"lines of {room}", sum(count for path, count in src.items() if package / room in path.parents), limit)
    twice = defined_twice(list(src))
    public = {name: files for name, files in twice.items() if not name.startswith("_")}
    check("names defined twice", len(twice), TWICE)
    check("names defined twice, public", len(public), TWICE_PUBLIC)
    if "--names" in sys.argv:
        for name, files in twice.items():
            print(f"  {name}: {', '.join(str(path.relative_to(package)) for path in files)}")
    for path, count in {**src, **tests}.items():
        if count > LONGEST:
            broken.append(f"{path.relative_to(ROOT)}: {count} lines, allowed are {LONGEST}")
        broken += [f"{path.relative_to(ROOT)}:{found} (name the subject first)" for found in fragments(path)]
    print(*broken, sep="\n", file=sys.stderr)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())

"""Writes constraints.txt: the version of every package that `.[dev,docs,all]` needs, as installed here.

    python scripts/make_constraints.py        after `.ci/run` has passed in this environment

`PIP_CONSTRAINT=$PWD/constraints.txt pip install '.[dev]'` then installs exactly these. Local versions (2.9.0+cpu) lose
their suffix, so that any build of that version fits.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import tomllib
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
EXTRAS = ("dev", "docs", "all")
HEAD = "# Versions that the whole suite has passed with; written by scripts/make_constraints.py.\n"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]
    versions: dict[str, str] = {}
    seen: set[str] = set()
    while wanted:
        line = wanted.pop()
        needed = Requirement(line)
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        if str(needed) in seen or (
            needed.marker and not any(needed.marker.evaluate({"extra": e}) for e in ["", *extras])
        ):
            continue
        seen.add(str(needed))
        if name == project["name"]:
            wanted += [inner for extra in needed.extras for inner in extras[extra]]
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:
            print(f"not installed, left out: {name}", file=sys.stderr)
            continue
        versions[name] = found.version.partition("+")[0]
        for inner in found.requires or ():
            marker = Requirement(inner).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ["", *needed.extras]):
                wanted.append(inner.partition(";")[0])
    (ROOT / "constraints.txt").write_text(HEAD + "".join(f"{name}=={versions[name]}\n" for name in sorted(versions)))
    print(f"wrote constraints.txt: {len(versions)} packages")


if __name__ == "__main__":
    main()

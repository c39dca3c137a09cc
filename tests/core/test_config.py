"""Settings: every field from a file and from a flag, flags win, and nothing wrong gets in."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear.core.config import Config, add_arguments, given_arguments, setting
from dear.core.errors import DearError


@dataclass(frozen=True)
class Kitchen(Config):
    """The kitchen."""

    cooks: int = setting(3, "how many, 100% of them awake", low=1, high=9)
    salt: float = setting(0.5, "share of salt", low=0.0)
    heat: str = setting("slow", "how to cook", choices=("slow", "fast"))
    open_late: bool = setting(False, "whether it closes after midnight")
    chef: str | None = setting(None, "who decides")


@dataclass(frozen=True)
class Cellar(Config):
    """The cellar."""

    bottles: int | None = setting(None, "how many", low=0)


# field: (a value that is not the default, the flags that say it)
OTHER = {
    "cooks": (7, ["--cooks", "7"]),
    "salt": (0.25, ["--salt", "0.25"]),
    "heat": ("fast", ["--heat", "fast"]),
    "open_late": (True, ["--open-late"]),
    "chef": ("Ana", ["--chef", "Ana"]),
    "bottles": (0, ["--bottles", "0"]),
}


def resolve(flags: list[str], file: Path | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser, Kitchen, Cellar)
    args = parser.parse_args([*flags, *(["--config", str(file)] if file else [])])
    kitchen, cellar = (kind.pick(given_arguments(args, Kitchen, Cellar)) for kind in (Kitchen, Cellar))
    assert isinstance(kitchen, Kitchen)
    assert isinstance(cellar, Cellar)
    return kitchen.to_json() | cellar.to_json()


@pytest.fixture
def write(tmp_path: Path):
    def write_file(content: object) -> Path:
        path = tmp_path / "settings.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write_file


DEFAULTS = resolve([])


def test_help_leaves_out_what_few_set_and_help_all_shows_it(capsys) -> None:
    @dataclass(frozen=True)
    class Rare(Config):
        """Rare things."""

        rare: int = setting(3, "hardly ever set", advanced=True)
        seldom: bool = setting(False, "nor is this", advanced=True)

    @dataclass(frozen=True)
    class Usual(Config):
        """Usual things."""

        usual: int = setting(1, "often set")

    pages = {}
    for flag in ("--help", "--help-all"):
        parser = argparse.ArgumentParser()
        add_arguments(parser, Rare, Usual)
        with pytest.raises(SystemExit) as stopped:
            parser.parse_args([flag])
        assert stopped.value.code == 0
        pages[flag] = capsys.readouterr().out
    assert "--usual" in pages["--help"]
    assert not any(word in pages["--help"] for word in ("--rare", "--seldom", "Rare things"))
    assert all(
        word in pages["--help-all"] for word in ("--usual", "--rare", "--no-seldom", "Rare things", "default: 3")
    )
    parser = argparse.ArgumentParser()
    add_arguments(parser, Rare, Usual)
    assert given_arguments(parser.parse_args(["--rare", "5"]), Rare) == {"rare": 5}


def test_every_field_of_the_examples_is_tried() -> None:
    assert set(OTHER) == set(DEFAULTS)


@pytest.mark.parametrize("name", OTHER)
def test_every_field_can_be_set_from_a_flag_and_from_a_file(name: str, write) -> None:
    value, flags = OTHER[name]
    expected = DEFAULTS | {name: value}
    assert expected != DEFAULTS
    assert resolve(flags) == expected
    assert resolve([], write({name: value})) == expected


def test_flags_win_over_the_file_and_the_file_over_defaults(write) -> None:
    file = write({"cooks": 2, "salt": 2, "open_late": True})
    assert resolve(["--cooks", "8", "--no-open-late"], file) == DEFAULTS | {"cooks": 8, "salt": 2.0}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"coks": 2, "salt": 1}, r"unknown settings: coks\. Known: bottles, chef, cooks"),
        ([1], "must hold one JSON object"),
        ("{", "cannot be read as JSON"),
        ({"cooks": "7"}, "--cooks must be a whole number, not '7'"),
        ({"cooks": 7.0}, "--cooks must be a whole number"),
        ({"cooks": True}, "--cooks must be a whole number"),
        ({"cooks": None}, "--cooks must be a whole number"),
        ({"salt": "much"}, "--salt must be a number"),
        ({"salt": False}, "--salt must be a number"),
        ({"heat": 1}, "--heat must be a text"),
        ({"open_late": 1}, "--open-late must be true or false"),
        ({"chef": 3}, "--chef must be a text"),
        ({"heat": "raw"}, "--heat must be one of slow, fast, not 'raw'"),
        ({"cooks": 0}, "--cooks must be from 1 to 9, not 0"),
        ({"cooks": 10}, "--cooks must be from 1 to 9"),
        ({"salt": -0.1}, r"--salt must be from 0\.0 to 1000000\.0, not -0\.1"),
        ('{"salt": NaN}', r"cannot be read as JSON \(NaN is not a finite number\)"),
        ({"salt": 10**400}, "not a number with over 30 digits"),
        ('{"salt": 1e999}', r"cannot be read as JSON \(1e999 is not a finite number\)"),
        ({"bottles": 10**12}, "--bottles must be from 0 to 100000"),
        ({"bottles": -1}, "--bottles must be from 0 to"),
    ],
)
def test_what_is_wrong_in_a_file_is_refused(content: object, sentence: str, write) -> None:
    with pytest.raises(DearError, match=sentence):
        resolve([], write(content))


@pytest.mark.parametrize("flags", [["--cooks", "many"], ["--heat", "raw"]])
def test_flags_of_the_wrong_kind_are_refused(flags: list[str]) -> None:
    with pytest.raises(argparse.ArgumentError, match=flags[0]):
        resolve(flags)


def test_help_shows_every_field_with_its_default() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, Kitchen, Cellar)
    page = " ".join(parser.format_help().split())
    assert "how many, 100% of them awake (default: 3)" in page
    assert "{slow,fast}" in page
    assert "--no-open-late" in page
    assert "The cellar" in page


@given(
    st.builds(
        Kitchen,
        cooks=st.integers(1, 9),
        salt=st.floats(0, 1e6) | st.integers(0, 10**6),
        heat=st.sampled_from(["slow", "fast"]),
        open_late=st.booleans(),
        chef=st.none() | st.text('a"\\\n\0é☃'),
    )
)
def test_stored_settings_give_the_same_settings_back(kitchen: Kitchen) -> None:
    stored = json.loads(json.dumps(kitchen.to_json()))
    assert Kitchen(**stored) == kitchen
    assert type(kitchen.salt) is float


@given(st.integers())
def test_exactly_the_limits_are_let_in(cooks: int) -> None:
    try:
        accepted = resolve([f"--cooks={cooks}"])["cooks"] == cooks
    except DearError:
        accepted = False
    assert accepted == (1 <= cooks <= 9)

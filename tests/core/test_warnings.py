"""Warnings belong to the caller: dear changes no filter, and its own can be filtered, raised, or read as lines."""

import subprocess
import sys
import warnings

import pytest

from dear.core.errors import DearWarning, printing_warnings, warn

IMPORT_ALL = """
import importlib, pkgutil, warnings, PIL.Image, torch, open_clip, timm
import dear
before, show = list(warnings.filters), warnings.showwarning
for module in pkgutil.walk_packages(dear.__path__, "dear."):
    if ".assets" not in module.name and not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith("dear"), error
dear_filters = [f for f in warnings.filters if f not in before and f[2].__module__.startswith(("dear", "PIL"))]
assert not dear_filters, dear_filters
assert warnings.showwarning is show
"""


def test_importing_every_module_silences_nobodys_warnings() -> None:
    """Packages that dear imports may have filters for warnings of their own."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_a_warning_points_at_the_callers_line_and_can_be_raised() -> None:
    with pytest.warns(DearWarning, match="a sentence") as caught:
        warn("a sentence")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", DearWarning)
        with pytest.raises(DearWarning, match="a sentence"):
            warn("a sentence")
        warnings.simplefilter("ignore", DearWarning)
        warn("nobody hears this")


def test_the_command_line_prints_each_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(warnings.filters), warnings.showwarning
    with printing_warnings():
        for _ in range(2):
            warn("photos/a\nb.png is small")
    assert capsys.readouterr().err == "dear: warning: photos/a b.png is small\n" * 2
    assert (list(warnings.filters), warnings.showwarning) == before

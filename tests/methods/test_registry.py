"""The list of methods: facts that are known without importing a method."""

import subprocess
import sys

import pytest

from dear.core.errors import DearError
from dear.methods import registry
from dear.methods.base import Method
from dear.methods.registry import METHODS, find_method, name_of


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_found_and_knows_its_name(name: str) -> None:
    assert issubclass(find_method(name), Method)
    assert name_of(find_method(name)) == name


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DearError, match="choose from zero-shot"):
        find_method("magic")


def test_listing_methods_imports_none_of_them() -> None:
    code = """
import sys
from dear.cli import main
from dear.methods.registry import methods_for, require_method
main(["methods"])
assert "torch" not in sys.modules
methods_for("full", "full")
require_method("dear", "dear-mini")
print(*(name for name in sys.modules if name.startswith("dear.methods.")))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.splitlines()[-1].split()) == {"dear.methods.registry", "dear.methods.recipe"}


def test_methods_without_training_use_labelled_images_unless_they_are_unfitted() -> None:
    for name, info in METHODS.items():
        if not info.trained:
            uses_labels = find_method(name).before_training is not Method.before_training
            assert uses_labels == (info.kind != "unfitted"), name


def test_groups_are_of_known_methods_cheap_ones_first() -> None:
    quick, compared, simple = registry.QUICK, registry.COMPARED, registry.simple_methods()
    assert {*quick, *compared, *simple} <= METHODS.keys()
    assert not {*quick} & {*registry.UNFITTED, *registry.CLOSED_FORMS}
    assert not {*compared} & {*simple}
    for group in (simple, compared):
        assert [METHODS[name].trained for name in group] == sorted(METHODS[name].trained for name in group)

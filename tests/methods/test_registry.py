"""The list of methods: facts that are known without importing a method."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_every_method import backbone_in, config_of

from dear.core.errors import DearError
from dear.methods import optional, registry
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


def test_method_stays_small() -> None:
    """Hooks that few methods need are protocols in `optional`."""
    members = {name for name in (*vars(Method), *Method.__annotations__) if not name.startswith("_")}
    assert len(members | {"backbone", "config"}) <= 25


def test_optional_parts_belong_to_the_methods_that_define_them(model_folder: Path, role_file: Path) -> None:
    """A method has a part by its members' names, so it could also have one by chance."""
    backbone = backbone_in(model_folder)
    methods = {name: find_method(name)(backbone, config_of(name, role_file)[0]) for name in METHODS}
    parts = {
        optional.Student: {"promptkd"},
        optional.OwnTargets: {"promptkd"},
        optional.OwnBackward: {"prograd"},
        optional.ManyViews: {"tac"},
        optional.Staged: {"2sfs"},
        optional.Tuned: {"tip-adapter-f", "fine-tune"},
        optional.Telling: {"head-gains"},
        optional.ReadsHeads: {name for name, info in METHODS.items() if info.reads_heads},
        optional.HasRoles: {"dear", "experts"},
    }
    for part, expected in parts.items():
        assert {name for name, method in methods.items() if isinstance(method, part)} == expected, part

"""Methods of other people: a class in place of a name, or an entry point of their package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dear
from dear.core.errors import DearError
from dear.methods import registry
from dear.methods.base import Method, normalized
from dear.methods.recipe import Recipe

DATA = "world:colors"
PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "add-a-method.md"


class Turned(Method):
    """A learned map of the class feature."""

    recipe = Recipe(epochs=1, augment="none")

    def __init__(self, backbone, config):
        super().__init__(backbone, config)
        self.map = nn.Linear(backbone.dim, backbone.dim, device=backbone.device)

    def encode_image(self, x):
        return normalized(self.map(self.backbone.image.frozen_feature(x)))


class Flat(Turned):
    def encode_image(self, x):
        return super().encode_image(x)[:, 0]


class OneMore(Turned):
    def logits(self, features, text, inference=None):
        return torch.cat([super().logits(features, text, inference)] * 2, 1)


class Gda(Turned):
    """The name of a method that is there already."""


@pytest.fixture(autouse=True)
def forget():
    before = dict(registry.METHODS)
    yield
    for name in registry.METHODS.keys() - before.keys():
        del registry.METHODS[name]
    registry._OWN.clear()


def test_a_class_in_place_of_a_name(model_folder, few_pictures, tmp_path) -> None:
    settings = {"model": f"local-dir:{model_folder}", "shots": 2, "device": "cpu"}
    model = dear.train(DATA, method=Turned, out=tmp_path / "run", **settings)
    assert model.method == "turned"
    assert any(value.abs().sum() for value in model.model.state_dict().values())
    assert dear.create(classes=["a", "b"], method=Turned).method == "turned"
    forgotten = registry.METHODS.pop("turned")
    with pytest.raises(DearError, match="install the package that brings it"):
        dear.load(tmp_path / "run")
    registry.METHODS["turned"] = forgotten


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Flat, r"flat.encode_image gives \[2, \d+\] in place of \[2, 1, \d+\]"),
        (OneMore, r"onemore.logits gives \[2, 24\] in place of \[2, 12\]"),
        (Gda, "already: give your class another name"),
        (nn.Linear, "a subclass of dear.methods.base.Method"),
    ],
)
def test_a_wrong_one_is_refused_before_any_work(method, sentence, model_folder, few_pictures, tmp_path, capsys) -> None:
    settings = {"model": f"local-dir:{model_folder}", "shots": 2, "device": "cpu"}
    with pytest.raises(DearError, match=sentence):
        dear.train(DATA, method=method, out=tmp_path / "run", **settings)
    assert "before training" not in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_an_entry_point_with_the_example_of_the_page(tmp_path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_blend.py").write_text(code)
    info = tmp_path / "my_blend-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-blend\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dear.methods]\nblend = my_blend:Blend\ngone = nowhere_at_all:Gone\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import dear; from dear.core.errors import DearError\n"
        "print(dear.create(classes=['a', 'b'], method='blend', share=0.5))\n"
        "try: dear.create(classes=['a'], method='gone')\nexcept DearError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "<dear blend on dear-mini" in done.stdout
    assert "cannot be imported" in done.stdout

"""dear-mini, the backbone that comes with the package, is what its card says."""

import re

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import MINI, Backbone, load_backbone
from dear.clip.load import MINI_FOLDER
from dear.core.metrics import accuracy
from dear.data.loading import evaluation_batches
from dear.data.world.tasks import world_task
from dear.data.world.vocabulary import VALUES
from dear.heads.check_causal import causal_check
from dear.heads.role_map import RoleMap

TASK_OF = {"color": "colors", "shape": "shapes", "texture": "textures", "object": "objects", "location": "places"}


@pytest.fixture(scope="module")
def mini() -> Backbone:
    return load_backbone(MINI)


def test_it_is_small_on_disk_and_large_enough_to_have_roles(mini: Backbone) -> None:
    assert sum(file.stat().st_size for file in MINI_FOLDER.iterdir()) <= 25e6
    assert mini.image.layers >= 8
    assert mini.image.heads >= 6


def test_its_card_names_these_very_weights(mini: Backbone) -> None:
    """The card holds one line `weights: <SHA-256>`, as `Backbone.identity` tells it."""
    card = (MINI_FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^weights: ([0-9a-f]{64})$", card, re.MULTILINE) == [mini.identity.weights]


def test_attributes_rest_on_heads_of_their_own(mini: Backbone) -> None:
    """An attribute is lost without its own heads, and is not without those of the others."""
    effects = {g.attribute: g.values for g in causal_check(mini, RoleMap.preset(MINI), pictures=160, draws=2).groups}
    for attribute in VALUES:
        others = max(effects[other][attribute] for other in VALUES if other != attribute)
        assert effects[attribute][attribute] > 10 + others


@pytest.fixture(scope="module")
def held_out(mini: Backbone) -> tuple[Tensor, list]:
    """Normalised features [images, dim] of a sample in which all attributes vary, and what each picture shows."""
    sample = world_task("objects").test[::2]
    with torch.no_grad():
        batches = evaluation_batches(sample, mini.preprocess, "held out")
        features = torch.cat([mini.image.encode(pixels) for pixels, _ in batches])
    return F.normalize(features, dim=-1), [example.picture.traits for example in sample]


@pytest.mark.parametrize("attribute", VALUES)
@torch.no_grad()
def test_it_knows_every_attribute_of_combinations_it_never_saw(mini: Backbone, held_out, attribute: str) -> None:
    features, traits = held_out
    text = F.normalize(mini.text.encode(world_task(TASK_OF[attribute]).prompts), dim=-1)
    truth = torch.tensor([VALUES[attribute].index(getattr(t, attribute)) for t in traits])
    assert accuracy(features @ text.T, truth) > 85

"""Kept states: the same as computing them anew, and the same training as on the pixels of the same views."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dear.backbone import Backbone
from dear.backbone.image import TrunkStates
from dear.data.augment import epoch_order
from dear.data.resolve import resolve_dataset
from dear.errors import DearError
from dear.methods.config import DearConfig
from dear.methods.dear import Dear
from dear.roles.rolemap import HeadRole, RoleMap
from dear.training.config import TrainConfig
from dear.training.states import KeptViews, StateStore, training_data

CORE = ("color", "shape", "texture", "object", "location")


@pytest.fixture
def model(tiny: Callable[..., Backbone]) -> Dear:
    backbone = tiny()
    roles = [HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("generalization"), HeadRole("mixed")]
    given = {(layer, head): roles[(layer + head) % 4] for layer in (3, 4) for head in range(4)}
    torch.manual_seed(0)
    dear = Dear(backbone, RoleMap(backbone.identity.to_json(), (3, 4), 4, CORE, CORE, given), DearConfig(first_layer=3))
    dear.set_prompts(resolve_dataset("world:colors").prompts)
    return dear


def _store(model: Dear, folder: Path) -> StateStore:
    return StateStore(folder, model.backbone, model.first_layer, workers=0)


def test_kept_evaluation_states_are_exact(model: Dear, tmp_path: Path) -> None:
    examples = resolve_dataset("world:colors").test[:5]
    pixels = torch.stack([model.backbone.preprocess(e.picture.open()) for e in examples])
    (kept, labels), *_ = _store(model, tmp_path).batches(examples, "test")
    assert labels.tolist() == [e.label for e in examples]
    with torch.no_grad():
        plain, entry = model.trunk(pixels), model.trunk(kept)
        torch.testing.assert_close(entry.x, plain.x, rtol=0, atol=0)
        torch.testing.assert_close(model.image_features(entry), model.image_features(plain), rtol=0, atol=0)
        torch.testing.assert_close(model.frozen_image(entry), model.frozen_image(plain), rtol=0, atol=1e-6)


def test_states_are_computed_once(model: Dear, tmp_path: Path, monkeypatch) -> None:
    examples = resolve_dataset("world:colors").train[:6]
    _store(model, tmp_path).prepare(examples[:4], 0, "views")
    seen: list[int] = []
    compute = StateStore._compute
    monkeypatch.setattr(StateStore, "_compute", lambda self, pixels: seen.append(len(pixels)) or compute(self, pixels))
    again = _store(model, tmp_path)
    again.prepare(examples, 0, "views")  # another run, which needs two more
    again.prepare(examples, 0, "views")
    assert seen == [2]


def test_loss_and_gradients_on_kept_views_are_those_of_their_pixels(model: Dear, tmp_path: Path, monkeypatch) -> None:
    """Views are kept in fp16, hence the tolerance."""
    examples = resolve_dataset("world:colors").train[:6]
    shown: list[torch.Tensor] = []
    compute = StateStore._compute
    monkeypatch.setattr(StateStore, "_compute", lambda self, pixels: shown.append(pixels) or compute(self, pixels))
    data = KeptViews(examples, _store(model, tmp_path), views=2, seed=5, batch=6)
    labels = torch.tensor([e.label for e in examples])
    for epoch in range(3):
        ((kept, given),) = data.epoch(epoch)
        assert isinstance(kept, TrunkStates)
        order = epoch_order(6, 5, epoch)
        assert given.tolist() == labels[order].tolist()
        results = []
        for images in (kept, shown[epoch % 2][order]):
            model.zero_grad()
            loss, _, _ = model.loss(model.trunk(images), given)
            loss.backward()
            results.append((loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
        torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-3, atol=1e-3)
        assert torch.cosine_similarity(results[0][1], results[1][1], dim=0) > 0.999
    assert not torch.equal(shown[0], shown[1])  # two views, not one


def test_a_view_does_not_depend_on_who_else_is_there(model: Dear, tmp_path: Path) -> None:
    examples = resolve_dataset("world:colors").train[:3]
    one, other = _store(model, tmp_path / "one"), _store(model, tmp_path / "other")
    one.prepare(examples, 1, "views")
    other.prepare(examples[2:], 1, "views")
    torch.testing.assert_close(
        one.read(examples[2:], 1).states, other.read(examples[2:], 1).states, rtol=1e-3, atol=1e-3
    )


def test_another_backbone_or_layer_has_its_own_states(tiny: Callable[..., Backbone], tmp_path: Path) -> None:
    folders = {StateStore(tmp_path, tiny(seed=s), layer).folder for s in (0, 1) for layer in (2, 3)}
    assert len(folders) == 4


def test_fixed_views_need_a_folder(model: Dear) -> None:
    examples = resolve_dataset("world:colors").train[:2]
    with pytest.raises(DearError, match="add --states"):
        training_data(examples, model.backbone, 3, TrainConfig(fixed_views=2), None)

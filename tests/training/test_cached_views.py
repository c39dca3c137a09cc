"""Training on kept states equals training on the pixels of the same views."""

from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dear.clip.layer_input import CachedStates
from dear.clip.masks import Masks
from dear.core.names import CORE_ATTRIBUTES
from dear.data.augment import CLEAN, RANDOM, Batches, FreshViews
from dear.data.resolve import resolve_dataset
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.dear import Dear, DearConfig
from dear.methods.experts import Experts, ExpertsConfig
from dear.training.adapt import adapt, predict_logits
from dear.training.config import TrainConfig
from dear.training.images import CachedViews, ImageSource, training_batches
from dear.training.shown import Stage
from dear.training.store import ImageStore


def test_loss_and_gradients_on_cached_views_equal_those_on_pixels(model: Dear, tmp_path: Path, computed) -> None:
    """Views are cached in fp16, hence the tolerance."""
    examples = resolve_dataset("world:colors").train[:6]
    labels = torch.tensor([e.label for e in examples])
    train = TrainConfig(augment="fixed:2", batch=6, workers=0)
    data = ImageSource(model.backbone, tmp_path, 0).training(examples, model, train, 3)
    views = torch.cat(computed).unflatten(0, (2, 6))
    for epoch in range(3):
        ((kept, given),) = data.epoch(epoch)
        assert isinstance(kept, CachedStates)
        (order,) = training_batches(examples, train).of_epoch(epoch)
        assert given.tolist() == labels[order].tolist()
        results = []
        for images in (kept, views[epoch % 2][order]):
            model.zero_grad()
            loss = model.loss(model.layer_input(images), given).total
            loss.backward()
            results.append((loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
        torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-3, atol=1e-3)
        assert torch.cosine_similarity(results[0][1], results[1][1], dim=0) > 0.999
    assert not torch.equal(*views)  # two views, not one


def test_views_of_a_batch_follow_each_other_with_the_clean_one_last(model: Dear) -> None:
    examples = resolve_dataset("world:colors").train[:4]
    batches = Batches([e.label for e in examples], 1, 4, False, False)
    store, views = ImageStore(model.backbone, workers=0), (RANDOM, RANDOM, CLEAN)
    (order,) = batches.of_epoch(1)
    shown = [examples[i] for i in order]
    expected = []
    for view in (2, 0, None):  # views 0 and 1 were those of the first epoch
        seen = [one.in_view(view, 0.5) for one in store.shown(shown)]
        store.encode(seen, [Stage(3)], "test")
        expected.append(store.read(seen, Stage(3)).states)
    read = partial(store.read, stage=Stage(3))
    ((kept, labels),) = CachedViews(store.shown(examples), read, batches, 3, views).epoch(1)
    torch.testing.assert_close(kept.states, torch.cat(expected))
    assert labels.tolist() == [e.label for e in shown]
    fresh = FreshViews(examples, model.backbone, batches, 0, views=views)
    ((pixels, same),) = fresh.epoch(1)
    assert pixels.shape == (12, 3, 32, 32)
    assert same.tolist() == labels.tolist()
    clean = torch.stack([model.backbone.preprocess(e.picture.open()) for e in shown])
    torch.testing.assert_close(pixels[8:], clean)
    assert not torch.equal(pixels[:4], pixels[4:8])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 8), st.booleans(), st.booleans())
def test_every_image_is_in_one_batch_of_an_epoch(labels, size, one_class, drop_last) -> None:
    batches = Batches(labels, 3, size, one_class, drop_last).of_epoch(2)
    seen = [index for batch in batches for index in batch]
    assert len(seen) == len(set(seen))
    assert max(map(len, batches)) <= size
    if not drop_last:
        assert sorted(seen) == list(range(len(labels)))
    if one_class and max(map(labels.count, labels)) >= size:  # else no class fills a batch, and they are mixed
        assert all(len({labels[i] for i in batch}) == 1 for batch in batches)
        assert {labels[i] for i in seen} == set(labels)  # no class is lost
    assert batches == Batches(labels, 3, size, one_class, drop_last).of_epoch(2)


def _experts(model: Dear, *attributes: str) -> Experts:
    """Expert tokens whose first heads have the given attributes; with the rest token, all heads are visible."""
    dealt = {(layer, head): HeadRole("mixed") for layer in (3, 4) for head in range(4)}
    dealt |= {(3, head): HeadRole("core_attribute", name) for head, name in enumerate(attributes)}
    roles = RoleMap(model.backbone.identity.to_json(), (3, 4), 4, CORE_ATTRIBUTES, CORE_ATTRIBUTES, dealt)
    torch.manual_seed(1)
    experts = Experts(model.backbone, ExpertsConfig(first_layer=3), roles)
    experts.set_classes(["red", "blue"], "{}")
    return experts


def test_methods_with_the_same_visible_heads_share_cached_keys_and_values(
    model: Dear, tmp_path: Path, monkeypatch
) -> None:
    examples = resolve_dataset("world:colors").test[:5]
    reads: list[int] = []
    read = ImageStore.read
    monkeypatch.setattr(ImageStore, "read", lambda *args: reads.append(1) or read(*args))
    kept, fresh = ImageSource(model.backbone, tmp_path, 0), ImageSource(model.backbone, None, 0)
    for methods, expected in ((("color", "shape"), 5), (("shape", "texture", "color"), 5)):
        experts = _experts(model, *methods)
        found, plain = (predict_logits(experts, examples, source, "test")["fusion"] for source in (kept, fresh))
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)
        assert len(reads) == expected  # the second takes what was held of the first
    few = Experts(model.backbone, ExpertsConfig(first_layer=3, rest=False), _experts(model, "color").roles)
    few.set_classes(["red", "blue"], "{}")
    predict_logits(few, examples, kept, "test")
    assert len(reads) == 10  # it reads in other heads
    monkeypatch.setattr("dear.training.store._LIMIT", 0)
    crowded = ImageSource(model.backbone, tmp_path, 0)
    for _ in range(2):
        torch.testing.assert_close(
            predict_logits(experts, examples, crowded, "test")["fusion"], plain, rtol=1e-5, atol=1e-5
        )
    assert len(reads) == 20  # what does not fit is made again


def test_states_that_do_not_fit_in_memory_are_not_cached(model: Dear, tmp_path: Path, monkeypatch) -> None:
    """Training uses the same images either way, in the same order."""
    examples, experts = resolve_dataset("world:colors").train[:6], _experts(model, "color")
    train = TrainConfig(augment="none", batch=4, workers=0)
    kept = ImageSource(model.backbone, None, 0).training(examples, experts, train, 2)
    assert isinstance(kept, CachedViews)
    monkeypatch.setattr("dear.training.store._LIMIT", 1000)
    fresh = ImageSource(model.backbone, None, 0).training(examples, experts, train, 2)
    assert isinstance(fresh, FreshViews)
    assert isinstance(ImageSource(model.backbone, tmp_path, 0).training(examples, experts, train, 2), CachedViews)
    for (reads, labels), (pixels, same) in zip(kept.epoch(1), fresh.epoch(1), strict=True):
        assert labels.tolist() == same.tolist()
        torch.testing.assert_close(reads.keys, experts.layer_input(pixels).cached.keys, rtol=1e-5, atol=1e-5)


SHOWN = {
    "clean view": {"augment": "none"},
    "fresh views": {},
    "fixed views": {"augment": "fixed:2"},
    "fixed views that do not fit": {"augment": "fixed:2"},
}


@pytest.mark.parametrize("shown", SHOWN)
def test_training_with_every_head_isolated_equals_the_full_form(
    model: Dear, shown: str, tmp_path: Path, monkeypatch
) -> None:
    """Constant tensors are cached, or computed per batch without a graph, or treated as if they were not constant."""
    data = resolve_dataset("world:colors").few_shot(2, 1)
    train = TrainConfig(**SHOWN[shown], batch=8, epochs=2, lr=0.01, workers=0)
    roles = model.roles.all_generalization()
    roles.save(tmp_path / "roles.json")
    config = DearConfig(first_layer=3, roles=str(tmp_path / "roles.json"), beta=0.5)
    # The full form takes CLS from the views' states, which are kept in fp16.
    monkeypatch.setattr(torch.Tensor, "half", lambda self: self)
    if "not fit" in shown:
        monkeypatch.setattr("dear.training.store._LIMIT", 1000)

    def trained(name: str) -> dict[str, torch.Tensor]:
        source = ImageSource(model.backbone, tmp_path / "states", 0)
        found = adapt(Dear, config, data, train, source, tmp_path / name)
        found.set_classes(data.classes, data.template)
        return {**found.state_dict(), **predict_logits(found, data.test[::40], source, "test")}

    kept = trained("kept")
    build = Dear.build_masks

    def seen_masks(self: Dear) -> Masks:
        masks = build(self)
        masks.visible_heads = None  # as if learned tokens were seen
        return masks

    monkeypatch.setattr(Dear, "build_masks", seen_masks)
    for name, expected in trained("full").items():
        torch.testing.assert_close(kept[name], expected, rtol=1e-6, atol=1e-6, msg=lambda said, n=name: f"{n}: {said}")


def test_no_more_views_are_computed_than_epochs_use(model: Dear) -> None:
    examples = resolve_dataset("world:colors").train[:3]
    for augment, epochs, expected in (("fixed:300", 2, 2), ("fixed:2", 5, 2), ("none", 5, 0)):
        train = TrainConfig(augment=augment, batch=4, workers=0)
        assert ImageSource(model.backbone, None, 0).training(examples, model, train, epochs).fixed == expected

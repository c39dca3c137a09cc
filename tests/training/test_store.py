"""Kept states equal computed ones, and training on them equals training on the pixels of the same views."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dear.clip import Backbone
from dear.clip.layer_input import CachedStates
from dear.clip.masks import Masks
from dear.data.augment import CLEAN, RANDOM, Batches, FreshViews
from dear.data.resolve import resolve_dataset
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.dear import Dear, DearConfig
from dear.methods.experts import Experts, ExpertsConfig
from dear.training import store as store_module
from dear.training.adapt import adapt, predict_logits
from dear.training.config import TrainConfig
from dear.training.images import CachedViews, ImageSource
from dear.training.store import ImageStore, Stage

CORE = ("color", "shape", "texture", "object", "location")


@pytest.fixture
def model(tiny: Callable[..., Backbone]) -> Dear:
    backbone = tiny()
    roles = [HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("generalization"), HeadRole("mixed")]
    dealt = {(layer, head): roles[(layer + head) % 4] for layer in (3, 4) for head in range(4)}
    torch.manual_seed(0)
    roles_found = RoleMap(backbone.identity.to_json(), (3, 4), 4, CORE, CORE, dealt)
    dear = Dear(backbone, DearConfig(first_layer=3), roles_found)
    data = resolve_dataset("world:colors")
    dear.set_classes(data.classes, data.template)
    return dear


def _store(model: Dear, folder: Path) -> StateCache:
    return StateCache(folder, model.backbone, model.first_layer, workers=0)


def test_cached_evaluation_states_are_exact(model: Dear, tmp_path: Path) -> None:
    examples = resolve_dataset("world:colors").test[:5]
    pixels = torch.stack([model.backbone.preprocess(e.picture.open()) for e in examples])
    (kept, labels), *_ = _store(model, tmp_path).batches(examples, "test")
    assert labels.tolist() == [e.label for e in examples]
    with torch.no_grad():
        plain, entry = model.layer_input(pixels), model.layer_input(kept)
        torch.testing.assert_close(entry.states, plain.states, rtol=0, atol=0)
        torch.testing.assert_close(model.encode_image(entry), model.encode_image(plain), rtol=0, atol=0)
        frozen = [model.backbone.image.frozen_feature(x) for x in (entry, plain)]
        torch.testing.assert_close(*frozen, rtol=0, atol=1e-6)


def test_states_are_computed_once(model: Dear, tmp_path: Path, monkeypatch) -> None:
    examples = resolve_dataset("world:colors").train[:6]
    _store(model, tmp_path).prepare(examples[:4], 0, "views")
    seen: list[int] = []
    compute = StateCache._compute
    monkeypatch.setattr(StateCache, "_compute", lambda self, pixels: seen.append(len(pixels)) or compute(self, pixels))
    again = _store(model, tmp_path)
    again.prepare(examples, 0, "views")  # another run, which needs two more
    again.prepare(examples, 0, "views")
    assert seen == [2]


def test_loss_and_gradients_on_cached_views_equal_those_on_pixels(model: Dear, tmp_path: Path, monkeypatch) -> None:
    """Views are cached in fp16, hence the tolerance."""
    examples = resolve_dataset("world:colors").train[:6]
    shown: list[torch.Tensor] = []
    compute = StateCache._compute
    monkeypatch.setattr(StateCache, "_compute", lambda self, pixels: shown.append(pixels) or compute(self, pixels))
    labels = torch.tensor([e.label for e in examples])
    batches = Batches(labels.tolist(), seed=5, batch=6, one_class=False, drop_last=False)
    data = CachedViews(examples, _store(model, tmp_path), batches, fixed=2)
    for epoch in range(3):
        ((kept, given),) = data.epoch(epoch)
        assert isinstance(kept, CachedStates)
        (order,) = batches.of_epoch(epoch)
        assert given.tolist() == labels[order].tolist()
        results = []
        for images in (kept, shown[epoch % 2][order]):
            model.zero_grad()
            loss = model.loss(model.layer_input(images), given).total
            loss.backward()
            results.append((loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
        torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-3, atol=1e-3)
        assert torch.cosine_similarity(results[0][1], results[1][1], dim=0) > 0.999
    assert not torch.equal(shown[0], shown[1])  # two views, not one


def test_a_view_does_not_depend_on_other_pictures(model: Dear, tmp_path: Path) -> None:
    examples = resolve_dataset("world:colors").train[:3]
    one, other = _store(model, tmp_path / "one"), _store(model, tmp_path / "other")
    one.prepare(examples, 1, "views")
    other.prepare(examples[2:], 1, "views")
    torch.testing.assert_close(
        one.read(examples[2:], 1).states, other.read(examples[2:], 1).states, rtol=1e-3, atol=1e-3
    )


def test_another_backbone_or_layer_has_its_own_states(tiny: Callable[..., Backbone], tmp_path: Path) -> None:
    folders = {StateCache(tmp_path, tiny(seed=s), layer).folder for s in (0, 1) for layer in (2, 3)}
    assert len(folders) == 4


def test_without_a_folder_states_are_cached_in_memory(model: Dear, tmp_path: Path) -> None:
    examples = resolve_dataset("world:colors").train[:3]
    stores = [StateCache(folder, model.backbone, 3, workers=0) for folder in (tmp_path, None)]
    for store in stores:
        store.prepare(examples, 1, "views")
    on_disk, in_memory = (store.read(examples, 1) for store in stores)
    torch.testing.assert_close(on_disk.states, in_memory.states, rtol=0, atol=0)
    torch.testing.assert_close(on_disk.frozen_cls, in_memory.frozen_cls, rtol=0, atol=0)


def test_after_the_last_layer_only_cls_is_cached(model: Dear) -> None:
    tower, examples = model.backbone.image, resolve_dataset("world:colors").test[:3]
    store = StateCache(None, model.backbone, tower.layers + 1, workers=0)
    (kept, _), *_ = store.batches(examples, "test")
    pixels = torch.stack([model.backbone.preprocess(e.picture.open()) for e in examples])
    assert kept.states.shape[1] == 1
    torch.testing.assert_close(tower.project(kept.frozen_cls), tower.encode(pixels).detach(), rtol=1e-5, atol=1e-5)


def test_after_the_last_layer_a_file_is_read_once(model: Dear, tmp_path: Path, monkeypatch) -> None:
    """Hundreds of epochs of a probe would else spend most of their time on opening files."""
    examples, layers = resolve_dataset("world:colors").train[:3], model.backbone.image.layers
    small, large = (StateCache(tmp_path, model.backbone, layer, workers=0) for layer in (layers + 1, layers))
    reads: list[Path] = []
    read = cache.read_tensors
    monkeypatch.setattr(cache, "read_tensors", lambda path, *args: reads.append(path) or read(path, *args))
    for store, times in ((small, 3), (large, 6)):  # the states of many tokens would fill the memory
        store.prepare(examples, None, "views")
        reads.clear()
        first, again = store.read(examples), store.read(examples[::-1])
        torch.testing.assert_close(first.states, again.states.flip(0), rtol=0, atol=0)
        assert len(reads) == times


def test_views_of_a_batch_follow_each_other_with_the_clean_one_last(model: Dear) -> None:
    examples = resolve_dataset("world:colors").train[:4]
    batches = Batches([e.label for e in examples], 1, 4, False, False)
    store = StateCache(None, model.backbone, 3, workers=0)
    ((kept, labels),) = CachedViews(examples, store, batches, 3, (RANDOM, RANDOM, CLEAN)).epoch(1)
    (order,) = batches.of_epoch(1)
    shown = [examples[i] for i in order]
    expected = [store.read(shown, view).states for view in (2, 0, None)]  # views 0 and 1 were the first epoch's
    torch.testing.assert_close(kept.states, torch.cat(expected))
    assert labels.tolist() == [e.label for e in shown]
    fresh = FreshViews(examples, model.backbone, batches, 0, views=(RANDOM, RANDOM, CLEAN))
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
    roles = RoleMap(model.backbone.identity.to_json(), (3, 4), 4, CORE, CORE, dealt)
    torch.manual_seed(1)
    experts = Experts(model.backbone, ExpertsConfig(first_layer=3), roles)
    experts.set_classes(["red", "blue"], "{}")
    return experts


def test_methods_with_the_same_visible_heads_share_cached_keys_and_values(
    model: Dear, tmp_path: Path, monkeypatch
) -> None:
    examples = resolve_dataset("world:colors").test[:5]
    reads: list[int] = []
    read = StateCache.read
    monkeypatch.setattr(StateCache, "read", lambda *args: reads.append(1) or read(*args))
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
    monkeypatch.setattr("dear.training.cache._LIMIT", 0)
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
    monkeypatch.setattr("dear.training.cache._LIMIT", 1000)
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
        monkeypatch.setattr("dear.training.cache._LIMIT", 1000)

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


def test_cls_after_the_last_layer_is_copied_from_states_of_another_layer(
    model: Dear, tmp_path: Path, monkeypatch
) -> None:
    examples = resolve_dataset("world:colors").test[:3]
    _store(model, tmp_path).prepare(examples[:2], None, "states")
    seen: list[int] = []
    compute = StateCache._compute
    monkeypatch.setattr(StateCache, "_compute", lambda self, pixels: seen.append(len(pixels)) or compute(self, pixels))
    last = model.backbone.image.layers + 1
    (found, _), *_ = StateCache(tmp_path, model.backbone, last, workers=0).batches(examples, "test")
    assert seen == [1]
    (plain, _), *_ = StateCache(None, model.backbone, last, workers=0).batches(examples, "test")
    torch.testing.assert_close(found.frozen_cls, plain.frozen_cls, rtol=1e-5, atol=1e-5)
    assert found.states.shape == plain.states.shape


def test_no_more_views_are_computed_than_epochs_use(model: Dear) -> None:
    examples = resolve_dataset("world:colors").train[:3]
    for augment, epochs, expected in (("fixed:300", 2, 2), ("fixed:2", 5, 2), ("none", 5, 0)):
        train = TrainConfig(augment=augment, batch=4, workers=0)
        assert ImageSource(model.backbone, None, 0).training(examples, model, train, epochs).fixed == expected

"""One store of what the frozen tower makes of images: exact, computed once, known by content."""

import gc
import weakref
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dear.clip import Backbone
from dear.core.errors import DearError
from dear.core.runtime import free_memory
from dear.core.tensors import read_tensors, save_tensors
from dear.data.dataset import Example, ImageFile
from dear.data.memory import labelled
from dear.data.resolve import resolve_dataset
from dear.methods.base import NoSettings
from dear.methods.dear import Dear
from dear.methods.registry import ZERO_SHOT, find_method
from dear.training import store as store_module
from dear.training.config import TrainConfig
from dear.training.images import ImageSource
from dear.training.shown import Stage
from dear.training.store import ImageStore

CLS = Stage(5)  # after the last of four layers


def _store(model: Dear, folder: Path | None) -> ImageStore:
    return ImageStore(model.backbone, folder, workers=0)


def _kept(store: ImageStore, examples: Sequence[Example], stage: Stage, view: int | None = None) -> Any:
    """The examples at a stage, computed if need be."""
    shown = [one.in_view(view, 0.5) for one in store.shown(examples)]
    store.encode(shown, [stage], "test")
    return store.read(shown, stage)


def test_kept_evaluation_states_are_exact(model: Dear, tmp_path: Path) -> None:
    examples = resolve_dataset("world:colors").test[:5]
    pixels = torch.stack([model.backbone.preprocess(e.picture.open()) for e in examples])
    ((kept, labels),) = ImageSource(model.backbone, tmp_path, 0).images(examples, model, "test")
    assert labels.tolist() == [e.label for e in examples]
    with torch.no_grad():
        plain, entry = model.layer_input(pixels), model.layer_input(kept)
        torch.testing.assert_close(entry.states, plain.states, rtol=0, atol=0)
        torch.testing.assert_close(model.encode_image(entry), model.encode_image(plain), rtol=0, atol=0)
        frozen = [model.backbone.image.frozen_feature(x) for x in (entry, plain)]
        torch.testing.assert_close(*frozen, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stages", [
    (CLS,), (Stage(3), CLS), (Stage(3, True), CLS), (Stage(3), Stage(3, True)), (Stage(2), Stage(4), Stage(3, True)),
    (Stage(2, True), Stage(4)), (Stage(2, True), Stage(4, True)),
], ids=str)  # fmt: skip
def test_stages_of_one_pass_equal_those_of_their_own(model: Dear, stages, tmp_path: Path, computed) -> None:
    examples, tower = resolve_dataset("world:colors").test[:3], model.backbone.image
    pixels = torch.stack([model.backbone.preprocess(e.picture.open()) for e in examples])
    for store in (_store(model, None), _store(model, tmp_path)):
        shown = store.shown(examples)
        store.encode(shown, stages, "test")
        for stage in (*stages, CLS):
            store.encode(shown, [stage], "test")
            kept = store.read(shown, stage)
            torch.testing.assert_close(tower.project(kept.frozen_cls), tower.encode(pixels).detach())
            if stage.heads:
                torch.testing.assert_close(kept.outputs, tower.head_outputs(pixels, stage.layer).outputs)
            elif stage != CLS:
                torch.testing.assert_close(kept.states, tower.layer_input(pixels, stage.layer).states)
            else:
                torch.testing.assert_close(kept.states, kept.frozen_cls[:, None])
    assert len(computed) == 2 * 3, "one pass in memory, one on disk"


def test_the_bits_of_an_image_do_not_depend_on_what_is_encoded_with_it(model: Dear) -> None:
    """Else a grid of cells that was killed, and so encodes other images together, would end with other numbers."""
    examples, threads = resolve_dataset("world:colors").train[:9], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        whole = _kept(_store(model, None), examples, Stage(3, True))
        for part in (slice(0, 1), slice(2, 9), slice(8, None, -3)):
            alone = _kept(_store(model, None), examples[part], Stage(3, True))
            rows = torch.arange(9).tolist()[part]
            assert all(torch.equal(one[rows], other) for one, other in zip(whole, alone, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_states_are_computed_once(model: Dear, tmp_path: Path, computed) -> None:
    examples = resolve_dataset("world:colors").train[:6]
    _kept(_store(model, tmp_path), examples[:4], Stage(3), 0)
    again = _store(model, tmp_path)  # another run, which needs two more
    for _ in range(2):
        _kept(again, examples, Stage(3), 0)
    assert len(computed) == 4 + 2


def test_a_view_does_not_depend_on_other_pictures(model: Dear, tmp_path: Path) -> None:
    examples = resolve_dataset("world:colors").train[:3]
    all_of_them = _kept(_store(model, tmp_path / "one"), examples, Stage(3), 1)
    alone = _kept(_store(model, tmp_path / "other"), examples[2:], Stage(3), 1)
    torch.testing.assert_close(all_of_them.states[2:], alone.states, rtol=1e-3, atol=1e-3)


def test_another_backbone_layer_or_crop_has_its_own_states(tiny: Callable[..., Backbone], tmp_path: Path) -> None:
    one = ImageStore(tiny()).shown(resolve_dataset("world:colors").train[:1])[0]
    views = [one, one.in_view(0, 0.5), one.in_view(1, 0.5), one.in_view(1, 0.3)]
    stores = [ImageStore(tiny(seed=seed), tmp_path) for seed in (0, 1)]
    stages = (Stage(2), Stage(3), Stage(3, True))
    assert len({store._path(view, stage) for store in stores for stage in stages for view in views}) == 2 * 3 * 4


def test_without_a_folder_states_are_kept_in_memory(model: Dear, tmp_path: Path) -> None:
    examples = resolve_dataset("world:colors").train[:3]
    on_disk, in_memory = (_kept(_store(model, folder), examples, Stage(3), 1) for folder in (tmp_path, None))
    torch.testing.assert_close(on_disk.states, in_memory.states, rtol=0, atol=0)
    torch.testing.assert_close(on_disk.frozen_cls, in_memory.frozen_cls, rtol=0, atol=0)


@pytest.mark.parametrize(("stage", "times"), [(CLS, 3), (Stage(3, True), 3), (Stage(4), 6)], ids=str)
def test_a_small_file_is_read_once(model: Dear, tmp_path: Path, monkeypatch, stage: Stage, times: int) -> None:
    """Hundreds of epochs of a probe would else spend most of their time on opening files."""
    examples = resolve_dataset("world:colors").train[:3]
    _kept(_store(model, tmp_path), examples, stage)
    reads: list[Path] = []
    read = store_module.read_tensors
    monkeypatch.setattr(store_module, "read_tensors", lambda path, *args: reads.append(path) or read(path, *args))
    store = _store(model, tmp_path)
    first, again = _kept(store, examples, stage), _kept(store, examples[::-1], stage)
    torch.testing.assert_close(first[0], again[0].flip(0), rtol=0, atol=0)
    assert len(reads) == times  # the states of many tokens would fill the memory


def test_kept_states_of_other_shapes_are_refused(model: Dear, tmp_path: Path) -> None:
    """Their checksum fits: only their use would tell."""
    examples = resolve_dataset("world:colors").train[:1]
    _kept(_store(model, tmp_path), examples, Stage(3))
    (file,) = tmp_path.rglob("*.safetensors")
    entry, _ = read_tensors(file, "")
    for changed in (
        {**entry, "states": entry["states"][:-1]}, {**entry, "states": entry["states"][:, :-1]},
        {**entry, "cls": entry["cls"][None]}, {"states": entry["states"]}, {**entry, "more": entry["cls"]},
    ):  # fmt: skip
        save_tensors(file, changed)
        with pytest.raises(DearError, match="does not contain cached states of this backbone: remove it"):
            _kept(_store(model, tmp_path), examples, Stage(3))


def test_views_of_an_earlier_training_do_not_stay_in_memory(model: Dear) -> None:
    examples, train = resolve_dataset("world:colors").train, TrainConfig(augment="fixed:2", workers=0)
    source = ImageSource(model.backbone, None, 0)
    for part, kept in ((examples[:3], 3), (examples[1:4], 3), (examples[1:3], 2)):
        source.encode(part, [find_method(ZERO_SHOT)(model.backbone, NoSettings())])
        source.training(part, model, train, 2)
        views = [key for key, stage in source.store._kept if stage == Stage(3)]
        assert len(views) == 2 * kept
    assert sum(key.endswith("eval") for key, _ in source.store._kept) == 4, "these may be evaluated again"


def test_a_damaged_file_is_computed_again(model: Dear, tmp_path: Path, computed) -> None:
    examples = resolve_dataset("world:colors").train[:2]
    expected = _kept(_store(model, tmp_path), examples, Stage(3))
    file = next(tmp_path.rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    torch.testing.assert_close(_kept(_store(model, tmp_path), examples, Stage(3)).states, expected.states)
    assert len(computed) == 2 + 1


def test_cls_is_copied_from_the_file_of_another_stage(model: Dear, tmp_path: Path, computed) -> None:
    examples = resolve_dataset("world:colors").test[:3]
    _kept(_store(model, tmp_path), examples[:2], Stage(3))
    found = _kept(_store(model, tmp_path), examples, CLS)
    assert len(computed) == 2 + 1
    torch.testing.assert_close(found.frozen_cls, _kept(_store(model, None), examples, CLS).frozen_cls)


# --- which picture it is -----------------------------------------------------------------------------------------


def test_a_replaced_file_and_another_working_directory_are_other_pictures(
    model: Dear, tmp_path: Path, monkeypatch
) -> None:
    source, method = ImageSource(model.backbone, None, 0), find_method(ZERO_SHOT)(model.backbone, NoSettings())
    example = Example(ImageFile(Path("x.png")), 0)

    def feature() -> torch.Tensor:
        source.store.files.clear()  # another command
        ((images, _),) = source.images([example], method, "test")
        return images.frozen_cls

    found = []
    for folder, color in (("one", "red"), ("two", "blue"), ("one", "green")):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        Image.new("RGB", (9, 9), color).save("x.bmp")  # of one size, whatever the color
        Path("x.bmp").replace("x.png")
        found.append(feature())
        torch.testing.assert_close(feature(), found[-1], rtol=0, atol=0)
    assert not any(torch.allclose(one, other) for one, other in combinations(found, 2))


def test_images_in_memory_are_known_by_content_and_not_kept_alive(model: Dear, computed) -> None:
    source, method = ImageSource(model.backbone, None, 0), find_method(ZERO_SHOT)(model.backbone, NoSettings())

    def pass_by() -> weakref.ref:
        images = [Image.new("RGB", (9, 9), color) for color in ("red", "blue")]
        examples = [Example(picture, 0) for picture in labelled(images, [0, 0], "X").pictures]
        assert len(list(source.images(examples, method, "test"))) == 1
        return weakref.ref(examples[0].picture)

    first, again = pass_by(), pass_by()
    gc.collect()
    assert first() is None
    assert again() is None
    assert len(computed) == 2


def _grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "changes": (lambda path: Image.new("RGB", (9, 9), "green").save(path), "changed while this command was at work"),
    "grows": (_grow, "changed while this command was at work"),
    "shrinks": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "changed while this command|cannot be read"),
    "vanishes": (Path.unlink, "changed while this command|cannot be read"),
    "becomes a folder": (lambda path: (path.unlink(), path.mkdir()), "changed while this command|cannot be read"),
}


@pytest.mark.parametrize("when", ["between two passes", "before it is decoded"])
@pytest.mark.parametrize("what", CHANGES)
def test_a_file_that_changes_under_a_command_is_named(
    model: Dear, what: str, when: str, tmp_path: Path, monkeypatch
) -> None:
    """Else features of one picture would be kept as those of another, for all runs that share the cache."""
    path, (change, sentence) = tmp_path / "x.bmp", CHANGES[what]
    Image.new("RGB", (9, 9), "red").save(path)
    source, method = ImageSource(model.backbone, tmp_path / "cache", 0), find_method(ZERO_SHOT)
    needs = [method(model.backbone, NoSettings())]
    if when == "between two passes":
        source.encode([Example(ImageFile(path), 0)], needs)
        change(path)
    else:
        shown = source.store.shown
        monkeypatch.setattr(source.store, "shown", lambda examples: [shown(examples), change(path)][0])
    with pytest.raises(DearError, match=sentence) as found:
        source.encode([Example(ImageFile(path), 0)], needs)
    assert "x.bmp" in str(found.value)
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    Image.new("RGB", (9, 9), "red").save(path)  # what is kept is what the picture is
    again, alone = (ImageSource(model.backbone, folder, 0) for folder in (tmp_path / "cache", None))
    features = [next(iter(one.images([Example(ImageFile(path), 0)], needs[0], "test")))[0] for one in (again, alone)]
    torch.testing.assert_close(features[0].frozen_cls, features[1].frozen_cls, rtol=0, atol=0)


def test_states_take_at_most_half_of_the_memory_that_is_free(model: Dear, monkeypatch) -> None:
    examples = resolve_dataset("world:colors").train[:4]
    store = _store(model, None)
    size = model.backbone.image.originals * model.backbone.image.width * 4
    for free, room in ((8 * size, True), (7 * size, False), (0, False)):
        monkeypatch.setattr(store_module, "free_memory", lambda *_, free=free: free)
        assert store.has_room(store.shown(examples), [Stage(3)]) is room
    assert 0 < free_memory() < 2**50

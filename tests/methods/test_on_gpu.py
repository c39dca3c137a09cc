"""Every method on a pretended GPU: trained, resumed, saved, loaded, asked, and without making the host wait."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_every_method import config_of, killed_after_one_epoch, logits
from torch import Tensor

from dear.clip import Backbone, exact_copy
from dear.clip.layer_input import LayerInput
from dear.core.errors import DearError, os_errors_as_dear_errors
from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.gallery.encoders import HeadEncoder
from dear.heads.role_map import RoleMap
from dear.methods.base import Loss, Method
from dear.methods.coop import CoOp
from dear.methods.registry import METHODS, find_method
from dear.model.predictor import Predictor
from dear.training import loop
from dear.training.adapt import adapt, predict_logits
from dear.training.adapter import load_adapter, save_adapter
from dear.training.images import ImageSource
from dear.training.loop import EpochSums
from dear.training.run_folder import RunFolder
from pretended_gpu import Gpu, pretend_gpu

ROUNDING = {"fp32": 1e-4, "fp16": 0.01, "bf16": 0.05}  # of the loss in the first epoch, or of answers without training


@pytest.fixture(scope="module")
def data() -> Dataset:
    whole = resolve_dataset("world:colors")
    base = whole.few_shot(1, 1).base()
    return replace(base, test=base.test[:2])


pytestmark = pytest.mark.usefixtures("few_rounds")


class Watch:
    """Waits and casts of the last step; in the first one, constants are computed."""

    def __init__(self, gpu: Gpu, patch: pytest.MonkeyPatch) -> None:
        watch, self.casts = self, 0
        self.waits: dict[str, int] = {}

        class Sums(EpochSums):
            def __init__(self, *of_epoch: Any) -> None:
                super().__init__(*of_epoch)
                gpu.reset()

            def add(self, *step: Any) -> None:
                super().add(*step)
                watch.waits, watch.casts = dict(gpu.waits), gpu.casts
                gpu.reset()

            def means(self) -> dict[str, float]:
                means = super().means()
                assert gpu.waits.total() == 1, "losses are read once in many steps"
                gpu.reset()
                return means

        patch.setattr(loop, "EpochSums", Sums)


def train(
    name: str, source: ImageSource, data: Dataset, role_file: Path, out: Path, in_two_parts: bool = False
) -> Method:
    """Two epochs of one step each, at once or the second one from the checkpoint of the first.

    SkipT has smaller batches: where these have more images than it samples classes, it must count their labels.
    """
    batch = 3 if name == "skipt" else len(data.train)
    config, settings = config_of(name, role_file, epochs=2, warmup_epochs=0, batch=batch)
    if METHODS[name].trained and in_two_parts:
        with killed_after_one_epoch():
            adapt(find_method(name), config, data, settings, source, out)
    return adapt(find_method(name), config, data, settings, source, out)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_runs_and_does_not_wait(
    name: str, backbones: dict[str, Backbone], role_file: Path, data: Dataset, tmp_path: Path
) -> None:
    source = ImageSource(backbones["cpu"], workers=0)
    expected = logits(train(name, source, data, role_file, tmp_path / "cpu"), data, source)
    history = RunFolder(tmp_path / "cpu").history()
    for precision, rounding in ROUNDING.items():
        with only_deterministic() if precision == "fp32" else nullcontext():
            found = on_gpu(name, backbones[precision], role_file, data, tmp_path / precision)
        difference = (found - expected).norm() / expected.norm()
        if history:
            loss, same = history[0]["loss"], RunFolder(tmp_path / precision).history()[0]["loss"]
            after_a_teacher = 10 if METHODS[name].transductive else 1
            assert same == pytest.approx(loss, rel=rounding * after_a_teacher), precision
        assert difference < (rounding if not history else 0.01 if precision == "fp32" else 1), precision


def on_gpu(name: str, backbone: Backbone, role_file: Path, data: Dataset, out: Path) -> torch.Tensor:
    with pretend_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        scaler = torch.amp.GradScaler  # a small scale, so that none of these few steps is skipped
        patch.setattr(torch.amp, "GradScaler", lambda device, enabled: scaler(device, 2.0**7, enabled=enabled))
        gpu.watch(backbone.model)
        watch, source = Watch(gpu, patch), ImageSource(backbone, workers=0)
        # In two parts the last step computes constants, and waits.
        in_two_parts = backbone.precision in (torch.bfloat16, torch.float16 if name == "coop" else None)
        model = train(name, source, data, role_file, out, in_two_parts)
        assert watch.casts == 0, "a frozen weight is cast in every step"
        assert in_two_parts or not watch.waits, "the host waits for the GPU in every step"
        found = logits(model, data, source)
        save_adapter(out, name, model, data.template)
        predictor = Predictor(load_adapter(out, backbone=backbone))
        picture = data.test[0].picture.open()
        predictor.predict(picture)
        for attention in predictor.model.attention_maps(
            predictor.preprocess(picture)[None].to(backbone.device)
        ).values():
            assert 0 < attention.sum().item() < 1.01
    return found


@contextmanager
def only_deterministic() -> Iterator[None]:
    """Deterministic algorithms, as --deterministic switches them on, until the end of the test."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def planted(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Lets CoOp's loss do something that it must not."""
    loss = CoOp.loss

    def changed(self: CoOp, x: LayerInput, labels: Tensor) -> Loss:
        computed = loss(self, x, labels)
        return computed._replace(total=change(self, computed.total))

    monkeypatch.setattr(CoOp, "loss", changed)


def test_a_planted_mix_of_devices_is_refused(monkeypatch, backbones, role_file, data, tmp_path) -> None:
    planted(monkeypatch, lambda _, total: (total * torch.ones(2)).mean())
    with pytest.raises(RuntimeError, match="on the same device"):
        on_gpu("coop", backbones["fp32"], role_file, data, tmp_path)


def test_a_planted_operation_without_a_deterministic_form_is_refused(
    monkeypatch, backbones, role_file, data, tmp_path
) -> None:
    planted(monkeypatch, lambda _, total: total[None].cumsum(0).sum())
    sentence = pytest.raises(DearError, match=r"no deterministic form.*leave out --deterministic")
    with only_deterministic(), sentence, os_errors_as_dear_errors():  # the last one as every command does
        on_gpu("coop", backbones["fp32"], role_file, data, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda _, total: total if total.item() > 0 else 2 * total,
        lambda _, total: total[None][total[None] > 0].sum(),
        lambda _, total: total * torch.tensor([1.0], device=total.device)[0],
        lambda _, total: total * total.new_ones(2)[[0]][0],
    ],
    ids=["item", "boolean index", "tensor from the host", "index from the host"],
)
def test_a_planted_wait_is_noticed(change, monkeypatch, backbones, role_file, data, tmp_path) -> None:
    planted(monkeypatch, change)
    with pytest.raises(AssertionError, match="the host waits"):
        on_gpu("coop", backbones["fp32"], role_file, data, tmp_path)


def test_a_planted_cast_of_a_frozen_weight_is_noticed(monkeypatch, backbones, role_file, data, tmp_path) -> None:
    planted(monkeypatch, lambda self, total: total + 0 * self.backbone.image.visual.proj.half().sum())
    with pytest.raises(AssertionError, match="is cast"):
        on_gpu("coop", backbones["bf16"], role_file, data, tmp_path)


def test_the_host_does_not_wait_for_a_batch_of_images(backbones, role_file: Path, data: Dataset, monkeypatch) -> None:
    """More batches are no more waits: for logits, for kept features, and for the vectors of a gallery."""
    monkeypatch.setattr(ImageSource, "evaluation", lambda self, *examples: self.images(*examples, batch=2))
    pixels = torch.rand(2, 3, 32, 32)
    with pretend_gpu() as gpu:
        for name in ("coop", "maple", "head-gains"):
            source = ImageSource(backbones["bf16"], workers=0)
            model = find_method(name)(backbones["bf16"], config_of(name, role_file)[0])
            model.set_classes(data.classes, data.template)
            waits = []
            for count in (2, 2, 6):  # in the first pass, constants are computed
                source.store._kept.clear()
                gpu.reset()
                predict_logits(model, data.train[:count], source, "test")
                waits.append(gpu.waits.total())
            assert waits[2] == waits[1], (name, gpu.waits)
        encoder = head_encoder(backbones["bf16"], role_file)
        encoder.encode_image(pixels)
        gpu.reset()
        encoder.encode_image(pixels)
        assert not gpu.waits


def head_encoder(backbone: Backbone, role_file: Path) -> HeadEncoder:
    roles = RoleMap.load(role_file)
    return HeadEncoder(backbone, {attribute: roles.heads_for(attribute) for attribute in roles.core})


def test_weights_of_blocks_are_half_and_their_exact_values_are_not_lost(backbones: dict[str, Backbone]) -> None:
    exact, backbone = backbones["cpu"], backbones["fp16"]
    with pretend_gpu():
        half = [name for name, p in backbone.model.named_parameters() if p.dtype is torch.float16]
        assert half == [name for name, _ in exact.model.named_parameters() if "resblocks" in name and "ln_" not in name]
        copy = exact_copy(backbone.image.blocks[0])
        for name, parameter in exact.image.blocks[0].named_parameters():
            assert torch.equal(dict(copy.named_parameters())[name].cpu(), parameter), name


def test_a_compiled_step_computes_the_same(monkeypatch, backbones, role_file, data, tmp_path) -> None:
    """Traced by torch.compile, but without its code generator, which needs a compiler and minutes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    source = ImageSource(backbones["cpu"], workers=0)
    weights = []
    for compiled in (False, True):
        config, train = config_of("coop", role_file, epochs=2, batch=3, compile=compiled)
        model = adapt(CoOp, config, data, train, source, tmp_path / str(compiled))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)

"""Methods fitted at once, on a pretended GPU: in fp32 whatever the weights are, and without fp64 if need be."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_every_method import config_of
from torch import Tensor

from dear.data.dataset import Dataset
from dear.data.resolve import resolve_dataset
from dear.methods.registry import find_method
from dear.model.predictor import Predictor
from dear.training.adapt import adapt, predict_logits
from dear.training.adapter import Adapter
from dear.training.config import TrainConfig
from dear.training.images import ImageSource
from pretended_gpu import pretend_gpu

ROUNDING = {"fp32": 1e-4, "fp16": 0.01, "bf16": 0.05}  # of the logarithms of gains


@pytest.fixture(scope="module")
def data() -> Dataset:
    whole = resolve_dataset("world:colors")
    base = whole.few_shot(4, 1).base()
    return replace(base, test=base.test[:2])


@pytest.mark.parametrize("precision", ROUNDING)
def test_gains_are_learned_in_fp32(precision: str, backbones, role_file: Path, data: Dataset, tmp_path: Path) -> None:
    """Head outputs are half where the weights of the blocks are: so would be means and gains, and steps to them."""
    config, train = config_of("head-gains", role_file)
    found = []
    for backbone, where in ((backbones["cpu"], nullcontext()), (backbones[precision], pretend_gpu())):
        with where:
            source = ImageSource(backbone, workers=0)
            model = adapt(find_method("head-gains"), config, data, train, source, tmp_path)
            assert model.gains.dtype is model.head_means.dtype is torch.float32
            found.append(model.gains.log().cpu())
    assert found[0].abs().max() > 0.01
    assert (found[1] - found[0]).norm() < ROUNDING[precision] * found[0].norm()


@pytest.mark.parametrize("name", ["gda", "proker", "ss-text", "head-gains"])
def test_a_device_without_fp64_is_enough(
    name: str, backbones, role_file: Path, data: Dataset, tmp_path: Path, monkeypatch
) -> None:
    """The GPU of a Mac, which `auto` takes there, is one: fits, answers, and novel classes."""
    double = Tensor.double

    def refused(x: Tensor) -> Tensor:
        if x.is_cuda:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support it.")
        return double(x)

    config = replace(config_of(name, role_file)[0], **({"neighbours": 4} if name == "gda" else {}))
    found = []
    for backbone, where in ((backbones["cpu"], nullcontext()), (backbones["fp32"], pretend_gpu())):
        with where, monkeypatch.context() as patch:
            patch.setattr("dear.core.runtime._WITHOUT_FP64", ("cuda",))
            patch.setattr(Tensor, "double", refused)
            source = ImageSource(backbone, workers=0)
            model = adapt(find_method(name), config, data, TrainConfig(), source, tmp_path)
            predictor = Predictor(Adapter(model, name, data.classes, data.template))
            found.append([predictor.predict(data.test[0].picture.open()).probability])
            model.set_classes(["tree", "house"], data.template)
            found[-1] += predict_logits(model, data.test, source, "novel")["plain"][0].tolist()
    assert found[1] == pytest.approx(found[0], rel=1e-3)

"""Towers of all kinds on a pretended GPU: half weights are cast once, features are fp32 and those of the CPU."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dear.clip import Backbone, wrap
from dear.core.runtime import pick_precision
from dear.heads.contributions import decompose
from pretended_gpu import CUDA, pretend_gpu
from small_models import CALLED, WHOLE, called, of_hugging_face, small

ROUNDING = {"fp32": 1e-5, "fp16": 0.01, "bf16": 0.06}  # of normalised features
TEXTS = ["a cat", "a small dog on a mat"]


def of_family(family: str) -> Backbone:
    if family in CALLED:
        return called(family)
    text, tokenizer = WHOLE.get(family, ({}, None))
    exact = small(family, tokenizer=tokenizer, **text)
    return wrap(exact.model.float(), exact.text.tokenizer, family)


@pytest.fixture(scope="module", params=[*CALLED, "bert", "SigLIP", "EVA02-B"])
def exact(request, tmp_path_factory) -> Backbone:
    if request.param != "bert":
        return of_family(request.param)
    transformers = pytest.importorskip("transformers", reason="text towers of Hugging Face need it")
    sizes = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=64, pad_token_id=0)
    return of_hugging_face(config, "cls_last_hidden_state_pooler", "mlp", tmp_path_factory.mktemp("bert"))[0]


def features(backbone: Backbone) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(2, 3, *backbone.image.image_size, generator=generator).to(backbone.device)
    image, text = backbone.image.encode(pixels), backbone.text.encode(TEXTS)
    assert image.dtype is text.dtype is backbone.temperature.dtype is torch.float32
    return F.normalize(image, dim=-1).cpu(), F.normalize(text, dim=-1).cpu()


@torch.no_grad()
@pytest.mark.parametrize("precision", ROUNDING)
def test_features_are_those_of_the_cpu(exact: Backbone, precision: str) -> None:
    expected = features(exact)
    with pretend_gpu() as gpu:
        model = deepcopy(exact.model).to("cuda")
        backbone = wrap(model, exact.text.tokenizer, exact.name, precision=pick_precision(precision, CUDA))
        layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d) or hasattr(m, "in_proj_weight")]
        gpu.watch(nn.ModuleList(layers))  # what is no layer may be cast: embeddings, and OpenCLIP's projections
        found = features(backbone)
        weights = [parameter for parameter in model.visual.parameters() if parameter.dim() > 1]
        share = sum(p.numel() for p in weights if p.dtype is backbone.precision) / sum(p.numel() for p in weights)
        assert gpu.casts == 0, "a weight is cast in every batch"
        assert backbone.normal(2).dtype is torch.float32, "what is learned is fp32"
        if exact.image.layers and exact.image.read == "cls":
            whole = decompose(backbone, torch.zeros(1, 3, *exact.image.image_size)).feature().cpu()
            assert whole.norm() == pytest.approx(1, abs=ROUNDING[precision])
    assert share > 0.5 or exact.name == "EVA02-B", "most weights follow --precision"
    for values, true in zip(found, expected, strict=True):
        torch.testing.assert_close(values, true, rtol=0, atol=ROUNDING[precision])

"""Towers of all kinds on a pretended GPU: half weights are cast once, features are fp32 and those of the CPU."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dear.clip import Backbone, wrap
from dear.core.runtime import pick_precision
from dear.heads.contributions import decompose
from small_models import WHOLE, WordTokenizer, small

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from test_features import CONFIGS, config_of, shaken

from pretended_gpu import CUDA, pretend_gpu

ROUNDING = {"fp32": 1e-5, "fp16": 0.01, "bf16": 0.06}  # of normalised features
TEXTS = ["a cat", "a small dog on a mat"]


def called(kind: str) -> Backbone:
    torch.manual_seed(0)
    model = shaken(open_clip.CLIP(**config_of(kind)))
    return wrap(model, open_clip.SimpleTokenizer(context_length=20), kind)


def of_hugging_face(_: str, folder: Path) -> Backbone:
    transformers = pytest.importorskip("transformers", reason="text towers of Hugging Face need it")
    sizes = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    transformers.BertConfig(**sizes, intermediate_size=64, pad_token_id=0).save_pretrained(folder)
    text = {"hf_model_name": str(folder), "hf_model_pretrained": False, "hf_proj_type": "mlp", "context_length": 20,
            "hf_pooler_type": "cls_last_hidden_state_pooler"}  # fmt: skip
    tokenizer = WordTokenizer(20, begin=2, end=3)
    tokenizer.pad = 0
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"embed_dim": 24, **CONFIGS["ConvNeXt"], "text_cfg": text}
    return wrap(shaken(open_clip.CustomTextCLIP(**arguments)), tokenizer, "bert")


def of_family(family: str) -> Backbone:
    text, tokenizer = WHOLE.get(family, ({}, None))
    exact = small(family, tokenizer=tokenizer, **text)
    return wrap(exact.model.float(), exact.text.tokenizer, family)


@pytest.fixture(scope="module", params=[*CONFIGS, "bert", "SigLIP", "EVA02-B"])
def exact(request, tmp_path_factory) -> Backbone:
    if request.param == "bert":
        return of_hugging_face(request.param, tmp_path_factory.mktemp("bert"))
    return called(request.param) if request.param in CONFIGS else of_family(request.param)


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

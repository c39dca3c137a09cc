"""Every trained method equals its naive twin: loss, logits and all gradients, in fp64 to 1e-10.

A twin is written from the published algorithm, with full sequences, all layers and textbook attention; nothing in it
uses the package's engine. A trained method without one fails here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dear_cases
import naive_experts
import naive_text
import naive_tokens as tokens
import naive_words as words
import pytest
import token_cases
import torch
from torch import Tensor

import naive
from dear.methods.base import Method
from dear.methods.optional import targets_of
from dear.methods.registry import METHODS

Naive = Callable[[Method, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Method, pixels and labels -> the loss and, where the twin has them, the logits."""


@dataclass(frozen=True)
class Twin:
    naive: Naive
    make: Callable[..., Method]  # (tiny, dtype, **settings): the method, away from its start
    batch: Callable[[torch.dtype], tuple[Tensor, Tensor]]
    cases: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    without_gradient: tuple[str, ...] = ()  # parameters that BatchNorm takes away again: their gradient is rounding
    fp32: tuple[float, float] = (1e-6, 1e-5)  # tolerance of the loss and of gradients


def text_batch(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return naive_text.pixels(dtype), naive_text.LABELS


def on_words(name: str, naive_form: Callable[[Method, Tensor], tuple[Tensor, Tensor]], **settings: Any) -> Twin:
    def make(tiny, dtype, **case):
        method = naive_text.make(tiny, name, dtype, **case)
        if name in ("tip-adapter-f", "zs-lp", "clap"):
            method.before_training(words.LabelledImages(naive_text.pixels(dtype).flip(3)))
        if name in ("zs-lp", "clap"):
            with torch.no_grad():  # away from its texts, where the pull has no gradient
                method.prototypes += 0.3 * torch.randn_like(method.prototypes)
        return method

    rounding = ("projector.0.bias",) if name == "textrefiner" else ()
    return Twin(lambda m, x, _: naive_form(m, x), make, text_batch, {"default": settings}, rounding)


def on_tokens(name: str, naive_form: Callable[[Method, Tensor, Tensor], Tensor], **settings: Any) -> Twin:
    def make(tiny, dtype, **case):
        return token_cases.make(tiny, name, dtype, **case)

    def batch(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        pixels, labels = token_cases.batch(dtype)
        return pixels, labels[:2] if name == "tac" else labels  # two views of each image, and the clean one

    return Twin(lambda m, x, y: (naive_form(m, x, y), None), make, batch, {"default": settings})


def two_stages(tiny, dtype, stage: int) -> Method:
    method = token_cases.make(tiny, "2sfs", dtype)
    if stage == 2:
        method.done = 0.6
        method.loss(method.layer_input(token_cases.batch(dtype)[0]), token_cases.batch(dtype)[1])  # its first step
        with torch.no_grad():
            method.classifier += 0.3 * torch.randn_like(method.classifier)
    for name, parameter in method.named_parameters():  # the other stage's
        parameter.requires_grad_((name == "classifier") == (stage == 2))
    return method


def naive_dear(method: Method, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    backbone = method.backbone
    return naive.loss(backbone.model, backbone.text.tokenizer, pixels, labels, dear_cases.PROMPTS, method)


def naive_expert_tokens(method: Method, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    _, means = naive_experts.naive_means(method, naive_experts.images(5, pixels.dtype, seed=1))
    return naive_experts.naive_loss(method, pixels, labels, means)


DEAR_CASES = {
    "default": {},
    "two_way": {"isolation": "two_way"},
    "strict": {"routing": "strict"},
    "strict two_way": {"routing": "strict", "isolation": "two_way"},
    "two tokens": {"tokens_per_attribute": 2, "text_tokens": 2},
    "re-inject": {"beta": 1.0},
    "carry on": {"beta": 0.0},
    "last layer only": {"first_layer": 4},
    "first layer": {"first_layer": 1},
    "log fusion": {"fusion_loss": "log", "lambda_reg": 0.3, "projection_start": "random"},
}
EXPERT_CASES = {
    "default": {},
    "two tokens": {"tokens_per_attribute": 2},
    "no rest": {"rest": False},
    "last layer only": {"first_layer": 4},
    "first layer": {"first_layer": 1},
    "with L_fusion": {"lambda_fusion": 0.7, "pull": 0.0},
}

TWINS: dict[str, Twin] = {
    "coop": on_words("coop", words.slow_coop),
    "kgcoop": on_words("kgcoop", words.slow_kgcoop),
    "prograd": on_words("prograd", words.slow_coop, context_tokens=4),
    "tcp": on_words("tcp", words.slow_tcp),
    "atprompt": on_words("atprompt", words.slow_atprompt, attributes="color playfulness"),
    "prolip": on_words("prolip", words.slow_prolip, pull=0.5),
    "clip-adapter": on_words("clip-adapter", words.slow_adapter),
    "tip-adapter-f": on_words("tip-adapter-f", words.slow_tip),
    "zs-lp": on_words("zs-lp", words.slow_zs_lp),
    "clap": on_words("clap", words.slow_clap),
    "cocoop": on_words("cocoop", words.slow_cocoop),
    "textrefiner": on_words("textrefiner", words.slow_refiner),
    "promptkd": Twin(
        lambda m, x, _: words.slow_promptkd(m, x),
        words.taught,
        lambda dtype: (naive_text.pixels(dtype), words.ROWS),
        {"default": {"image_depth": 3}},
        ("projector.0.bias",),
        (1e-5, 1e-4),
    ),
    "vpt-deep": on_tokens("vpt-deep", tokens.vpt),
    "vpt-shallow": on_tokens("vpt-shallow", tokens.vpt, image_depth=1),
    "ivlp": on_tokens("ivlp", tokens.ivlp, image_depth=3, text_depth=2),
    "maple": on_tokens("maple", tokens.maple, depth=3),
    "maple-atprompt": on_tokens("maple-atprompt", tokens.maple_atprompt, depth=3, text_tokens=2),
    "promptsrc": on_tokens("promptsrc", tokens.promptsrc, text_depth=3),
    "provp": on_tokens("provp", tokens.provp, image_tokens=3),
    "mmrl": on_tokens("mmrl", tokens.mmrl, space=16),
    "mmrlpp": on_tokens("mmrlpp", tokens.mmrlpp, space=16, rank=2, projection_rank=4, beta=0.6),
    "clip-lora": on_tokens("clip-lora", tokens.clip_lora),
    "clip-svd": on_tokens("clip-svd", tokens.clip_svd),
    "2sfs": Twin(
        lambda m, x, y: (tokens.two_stage(m, x, y), None),
        two_stages,
        token_cases.batch,
        {"first stage": {"stage": 1}, "second stage": {"stage": 2}},
    ),
    "tac": on_tokens("tac", tokens.tac, tokens=2, views=2),
    "skipt": on_tokens("skipt", tokens.skipt, class_share=1.0),
    "fine-tune": on_tokens("fine-tune", tokens.fine_tune),
    "dear": Twin(naive_dear, dear_cases.make, token_cases.batch, DEAR_CASES),
    "experts": Twin(
        naive_expert_tokens,
        naive_experts.make,
        lambda dtype: (naive_experts.images(6, dtype), torch.tensor([0, 1, 2, 3, 4, 0])),
        EXPERT_CASES,
        fp32=(2e-5, 2e-5),
    ),
}
CASES = [(name, case) for name, twin in TWINS.items() for case in twin.cases]


def test_every_trained_method_has_a_twin() -> None:
    assert TWINS.keys() == {name for name, info in METHODS.items() if info.trained}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize(("name", "case"), CASES)
def test_equals_the_naive_form(tiny, name: str, case: str, dtype: torch.dtype) -> None:
    twin = TWINS[name]
    tolerance, grad_tolerance = (1e-10, 1e-10) if dtype is torch.float64 else twin.fp32
    method = twin.make(tiny, dtype, **twin.cases[case])
    pixels, labels = twin.batch(dtype)
    slow, slow_logits = twin.naive(method, pixels, labels)
    parameters = {name: p for name, p in method.named_parameters() if p.requires_grad}
    gradients = partial(torch.autograd.grad, inputs=list(parameters.values()))
    expected = dict(zip(parameters, gradients(slow), strict=True))
    fast = method.loss(method.layer_input(pixels), targets_of(method, labels))
    computed = dict(zip(parameters, gradients(fast.total), strict=True))
    torch.testing.assert_close(fast.total, slow, rtol=tolerance, atol=tolerance)
    if slow_logits is not None:
        torch.testing.assert_close(fast.logits, slow_logits, rtol=grad_tolerance, atol=10 * grad_tolerance)
    for key in twin.without_gradient:
        assert max(computed.pop(key).abs().max(), expected.pop(key).abs().max()) < 1e3 * tolerance
    for key, gradient in expected.items():
        assert gradient.abs().max() > 0, f"{key} gets no gradient: the comparison would say nothing"
        # In fp32 a gradient that nearly cancels (a shift of all texts alike) is rounding: the whole is compared there.
        if dtype is torch.float64:
            assert (computed[key] - gradient).norm() < grad_tolerance * gradient.norm(), key
    whole, reference = (torch.cat([g.flatten() for g in values.values()]) for values in (computed, expected))
    assert (whole - reference).norm() < grad_tolerance * reference.norm()

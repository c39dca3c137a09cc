"""Masks alone decide what is constant, and cached tensors equal the whole tower."""

import pytest
import torch

from dear.clip import LearnedTokens
from dear.clip.masks import Masks

ORIGINALS, TOKENS, HEADS = 17, 2, 4
KEYS = ORIGINALS + TOKENS
HIDDEN = torch.arange(KEYS)[None] < ORIGINALS  # learned tokens are


def masks(*pairs) -> Masks:
    """Masks of layers 3 and 4."""
    return Masks(dict(zip((3, 4), pairs, strict=True)), HEADS, ORIGINALS)


def one_head(seen: torch.Tensor, head: int, others: torch.Tensor, queries: int = 1) -> torch.Tensor:
    mask = others.repeat(1, HEADS, queries, 1)
    mask[0, head, -1] = seen  # by one query
    return mask


def additive(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


@pytest.mark.parametrize("given", [HIDDEN, HIDDEN[None, None], HIDDEN.expand(1, HEADS, ORIGINALS, -1)])
@pytest.mark.parametrize("form", [torch.Tensor.clone, additive])
def test_visible_heads_are_the_same_for_every_form_of_mask(given, form) -> None:
    everywhere = tuple(range(HEADS))
    assert masks(*[(form(given), None)] * 2).visible_heads == ((3, everywhere), (4, everywhere))
    nothing = form(~HIDDEN)
    assert masks((form(given), nothing), (form(given), None)).visible_heads == ((3, ()), (4, everywhere))
    some = form(one_head(HIDDEN, 2, ~HIDDEN, TOKENS))
    assert masks((form(given), some), (form(given), nothing)).visible_heads == ((3, (2,)), (4, ()))


@pytest.mark.parametrize("form", [torch.Tensor.clone, additive])
def test_visible_heads_are_none_if_one_original_query_attends_to_a_token(form) -> None:
    last = torch.arange(KEYS)[None] != ORIGINALS  # the second token is seen
    assert masks((form(HIDDEN), None), (form(one_head(last, 3, HIDDEN, ORIGINALS)), None)).visible_heads is None
    assert masks((form(HIDDEN), None), (None, None)).visible_heads is None
    assert masks((form(HIDDEN), None), (form(torch.ones(1, 1, 1, 1, dtype=torch.bool)), None)).visible_heads is None


LIVES = {
    "mixed": ((3, 4), 0.4), "carried": ((3,), 1.0), "beta 0": ((3, 4), 0.0), "replaced": ((1, 2, 3, 4), 1.0),
    "replaced, then carried": ((1, 2), 1.0), "a gap": ((1, 4), 1.0), "last layer": ((4,), 1.0),
}  # fmt: skip
OF_LEARNED = {
    "all": None,
    "no head": ~HIDDEN,
    "one head": one_head(torch.ones(1, KEYS, dtype=torch.bool), 1, ~HIDDEN),
    "one token in one head": one_head(HIDDEN, 2, ~HIDDEN, TOKENS),
}


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("read", OF_LEARNED)
def test_cached_keys_and_values_equal_the_whole_tower(tiny, life: str, read: str) -> None:
    tower, (layers, beta) = tiny().image, LIVES[life]
    tower.visual.double()
    first, pixels = layers[0], torch.randn(3, 3, 32, 32, dtype=torch.float64)
    raw = {at: torch.randn(TOKENS, tower.width, dtype=torch.float64, requires_grad=True) for at in layers}
    seen = (HIDDEN, OF_LEARNED[read])
    given = Masks(dict.fromkeys(range(first, 5), seen), HEADS, ORIGINALS)
    entry = tower.layer_input(pixels, first)
    kept = tower.layer_input(pixels, first, given)
    (cls, added), (of_whole, expected) = (
        tower.with_tokens(one, LearnedTokens(raw, beta), given) for one in (kept, entry)
    )
    torch.testing.assert_close(cls, of_whole, rtol=0, atol=1e-10)
    torch.testing.assert_close(added, expected, rtol=0, atol=1e-10)
    assert added.shape == (3, TOKENS, tower.width)
    weights = torch.randn_like(added)
    got, wanted = (
        torch.autograd.grad((values * weights).sum(), list(raw.values()), allow_unused=True, materialize_grads=True)
        for values in (added, expected)
    )
    assert any(gradient.abs().max() > 0 for gradient in wanted)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert torch.equal(tower.with_tokens(kept, LearnedTokens(raw, beta), given, False)[0], tower.cls_state(entry))

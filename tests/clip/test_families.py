"""Every family of image towers: the engine equals OpenCLIP's own forward, with and without learned tokens."""

import pytest
import torch
from PIL import Image

from dear.clip import LearnedTokens, wrap
from dear.clip.layer_input import CachedStates
from dear.clip.masks import Masks
from dear.clip.support import judge, sums_heads
from naive import same_with_gradients
from small_models import STEMS, VISION, config_of, small

READS = {
    "plain": "cls", "CLIPA": "mean", "SigLIP": "probe", "CoCa": "probe", "PE-Core": "probe", "EVA02-B": "cls",
    "gap": "mean",
}  # fmt: skip


def pixels_for(backbone, count: int = 2) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(count, 3, *backbone.image.image_size, dtype=torch.float64)


@pytest.mark.parametrize("family", [*VISION, *STEMS])
def test_features_equal_open_clip(family: str) -> None:
    backbone = small(family)
    tower, pixels = backbone.image, pixels_for(backbone, 1 if family in STEMS else 2)
    assert tower.tier == "full" == judge(config_of(family)).image
    assert tower.read == READS.get(family, tower.read)
    assert (not tower.why_no_sum) == sums_heads(config_of(family))
    expected = backbone.model.encode_image(pixels)
    torch.testing.assert_close(tower.encode(pixels), expected, atol=1e-10, rtol=1e-10)
    assert backbone.dim == expected.shape[1]
    for first in range(1, tower.layers + 2):  # cut anywhere, and read from cached states
        entry = tower.layer_input(pixels, first)
        torch.testing.assert_close(tower.project(tower.cls_state(entry)), expected, atol=1e-10, rtol=1e-10)
        again = tower.layer_input(CachedStates(entry.states, tower.cls_state(entry)), first)
        torch.testing.assert_close(tower.project(tower.cls_state(again)), expected, atol=1e-10, rtol=1e-10)


def plain_blocks(backbone):
    """OpenCLIP's and timm's own blocks, which know nothing of this project."""
    visual = backbone.model.visual
    return visual.trunk.blocks if hasattr(visual, "trunk") else visual.transformer.resblocks


def naive_with_tokens(backbone, pixels, raw: dict, beta: float, mask):
    """Full sequences through each block's parts, one picture at a time, with tokens appended and mixed by beta."""
    tower, features, states = backbone.image, [], []
    for picture in pixels[:, None]:
        x, first = tower.embed(picture), min(raw)
        originals = x.shape[1]
        for layer, block in enumerate(plain_blocks(backbone), 1):
            if layer in raw:
                given = raw[layer][None]
                given = given if layer == first else beta * given + (1 - beta) * x[:, originals:]
                x = torch.cat([x[:, :originals], given], 1)
            x = naive_block(backbone, block, x, originals, mask if layer >= first else None)
        features.append(tower.project(tower.pool(x[:, :originals], None if mask is not None else x[:, originals:])))
        states.append(tower.norm_out(x[:, originals:]))
    return torch.cat(features), torch.cat(states)


def naive_block(backbone, block, x, originals: int, mask):
    """Textbook attention with a loop over heads, on the block's own matrices."""
    if not hasattr(backbone.model.visual, "trunk"):
        attn, heads = block.attn, block.attn.num_heads
        q, k, v = torch.nn.functional.linear(block.ln_1(x), attn.in_proj_weight, attn.in_proj_bias).chunk(3, -1)
        out = textbook(q, k, v, heads, mask)
        x = x + block.ls_1(attn.out_proj(out))
        return x + block.ls_2(block.mlp(block.ln_2(x)))
    vit, attn = backbone.model.visual.trunk, block.attn
    post = type(block).__name__ == "EvaBlockPostNorm"
    y = x if post else block.norm1(x)
    if attn.qkv is not None:
        q, k, v = attn.qkv(y).chunk(3, -1)
        if getattr(attn, "q_bias", None) is not None:
            q, v = q + attn.q_bias, v + attn.v_bias
    else:
        q, k, v = attn.q_proj(y), attn.k_proj(y), attn.v_proj(y)
    if getattr(vit, "rope", None) is not None:
        table, prefix = vit.rope.get_embed().double(), vit.num_prefix_tokens
        sin, cos = table.chunk(2, -1)
        q, k = (rotated(part, attn.num_heads, sin, cos, prefix, originals) for part in (q, k))
    out = attn.proj(getattr(attn, "norm", torch.nn.Identity())(textbook(q, k, v, attn.num_heads, mask)))
    if post:
        x = x + block.norm1(out)
        return x + block.norm2(block.mlp(x))
    gammas = [getattr(block, name, None) for name in ("gamma_1", "gamma_2")]
    scale_1, scale_2 = (
        (lambda value, g=gamma, n=name: value if g is None and not hasattr(block, n) else
         (value * g if g is not None else getattr(block, n)(value)))
        for gamma, name in zip(gammas, ("ls1", "ls2"), strict=True)
    )  # fmt: skip
    x = x + scale_1(out)
    return x + scale_2(block.mlp(block.norm2(x)))


def rotated(x, heads: int, sin, cos, prefix: int, originals: int):
    """Pairs of neighbours turned by the angle of their patch; CLS and learned tokens stay."""
    parts = x.unflatten(-1, (heads, -1)).clone()
    patches = parts[:, prefix:originals]
    turned = torch.stack([-patches[..., 1::2], patches[..., ::2]], -1).flatten(-2)
    parts[:, prefix:originals] = patches * cos[None, :, None] + turned * sin[None, :, None]
    return parts.flatten(-2)


def textbook(q, k, v, heads: int, mask):
    out = []
    for head, (a, b, c) in enumerate(zip(*(part.chunk(heads, -1) for part in (q, k, v)), strict=True)):
        scores = a @ b.mT / a.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[head], -torch.inf)
        out.append(scores.softmax(-1) @ c)
    return torch.cat(out, -1)


LIVES = {
    "mixed": ((2, 3), 0.4), "carried": ((2,), 1.0), "beta 0": ((2, 3), 0.0), "replaced": ((1, 2, 3), 1.0),
    "replaced, then carried": ((1, 2), 1.0), "mixed, then carried": ((1, 2), 0.99), "a gap": ((1, 3), 1.0),
    "last layer": ((3,), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize(("family", "life"), [*((f, "mixed") for f in VISION), *(("plain", life) for life in LIVES)])
def test_learned_tokens_equal_the_naive_form(family: str, life: str, masked: bool) -> None:
    """Appended, without a place; a probe attends to them unless masks hide them."""
    backbone, (layers, beta) = small(family), LIVES[life]
    tower, pixels, first = backbone.image, pixels_for(backbone), layers[0]
    torch.manual_seed(2)
    raw = {layer: torch.randn(2, tower.width, dtype=torch.float64, requires_grad=True) for layer in layers}
    n, mask, masks = tower.originals, None, None
    if masked:  # in head 0 nobody attends to the second token; in head 1 tokens do not attend to the image
        by_original = torch.ones(1, tower.heads, n, n + 2, dtype=torch.bool)
        by_learned = torch.ones(1, tower.heads, 2, n + 2, dtype=torch.bool)
        by_original[0, 0, :, n + 1] = by_learned[0, 0, :, n + 1] = by_learned[0, 1, :, :n] = False
        by_original[:, :, 1:, n] = False  # of the image, only its first place attends to the first token
        masks = Masks(dict.fromkeys(range(first, 4), (by_original, by_learned)), tower.heads, n)
        mask = torch.cat([by_original[0], by_learned[0]], 1)
    feature, states = naive_with_tokens(backbone, pixels, raw, beta, mask)
    entry, tokens = tower.layer_input(pixels, first), LearnedTokens(raw, beta)
    out = tower.features(entry, tokens, masks, read_tokens=True)
    same_with_gradients(torch.cat([out.cls, out.tokens.flatten(1)], 1), torch.cat([feature, states.flatten(1)], 1), raw)
    alone = tower.features(entry, tokens, masks)
    assert alone.tokens is None
    same_with_gradients(alone.cls, feature, raw)


@pytest.mark.parametrize("family", [*VISION])
def test_tokens_that_nobody_sees_leave_the_feature(family: str) -> None:
    """Then the whole tower is constant: cached keys and values of the visible heads give the same tokens."""
    backbone = small(family)
    tower, pixels = backbone.image, pixels_for(backbone)
    n = tower.originals
    hidden = torch.arange(n + 2) < n
    by_learned = torch.zeros(1, tower.heads, 2, n + 2, dtype=torch.bool)
    by_learned[0, 1, :, :n] = by_learned[0, 2] = True  # and in the other heads, only themselves
    by_learned[..., n:] = True
    masks = Masks(dict.fromkeys((2, 3), (hidden[None], by_learned)), tower.heads, n)
    raw = {2: torch.randn(2, tower.width, dtype=torch.float64)}
    entry = tower.layer_input(pixels, 2, masks)
    assert entry.cached is not None
    out = tower.features(entry, LearnedTokens(raw), masks, read_tokens=True)
    torch.testing.assert_close(out.cls, backbone.model.encode_image(pixels), atol=1e-10, rtol=1e-10)
    slow = tower.features(tower.layer_input(pixels, 2), LearnedTokens(raw), masks, read_tokens=True)
    torch.testing.assert_close(out.tokens, slow.tokens, atol=1e-10, rtol=1e-10)


def test_pictures_have_the_size_of_the_tower_not_of_its_config() -> None:
    """The config of ViTamin-XL-384 names another size than timm builds."""
    backbone = small("SigLIP")
    backbone.model.visual.image_size = (32, 32)
    again = wrap(backbone.model, backbone.text.tokenizer, "other")
    assert again.image.image_size == tuple(again.pictures["size"]) == (64, 64)
    assert again.preprocess(Image.new("RGB", (80, 50))).shape == (3, 64, 64)

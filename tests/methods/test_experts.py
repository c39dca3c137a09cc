"""Expert tokens equal their naive form; what they promise holds for all of it."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from dear.core.errors import DearError
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.experts import Experts, ExpertsConfig

sys.path.append(str(Path(__file__).parents[1]))
import naive

CORE = ("color", "shape", "texture")
PROMPTS = [f"a photo of a {name}." for name in ("cat", "polar bear", "dog", "fire truck", "tabby")]
ROLES = [
    HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("generalization"),
    HeadRole("core_attribute", "shape"), HeadRole("core_attribute", "texture"), HeadRole("core_attribute", "color"),
    HeadRole("other_specialized", "animal"), HeadRole("core_attribute", "color"),
]  # fmt: skip


def role_map(first: int = 3, roles=ROLES) -> RoleMap:
    positions = [(layer, h) for layer in range(first, 5) for h in range(4)]
    chosen = {at: roles[i % len(roles)] for i, at in enumerate(positions)}
    return RoleMap({}, tuple(range(first, 5)), 4, (*CORE, "animal"), CORE, chosen)


class LabelledImages:
    """Training images in two batches of different size."""

    classes = tuple(PROMPTS)

    def __init__(self, pixels) -> None:
        self.pixels = pixels

    def train(self):
        yield self.pixels[:3], None
        yield self.pixels[3:], None


def make(tiny, dtype=torch.float64, roles=None, moved: bool = True, **settings) -> Experts:
    backbone = tiny(quick_gelu=True)
    backbone.model.to(dtype)
    config = ExpertsConfig(**{"first_layer": 3, "token_std": 0.5, **settings})
    torch.manual_seed(5)
    experts = Experts(backbone, config, {"roles": (roles or role_map(config.first_layer)).to_json()})
    experts.look(LabelledImages(images(5, dtype, seed=1)))
    with torch.no_grad():  # away from the start, where gradients could vanish
        if moved:
            experts.projection += 0.05 * torch.randn_like(experts.projection)
            experts.fusion += 0.5 * torch.randn_like(experts.fusion)
    experts.set_classes(PROMPTS, "{}")
    return experts


def images(count: int, dtype=torch.float64, seed: int = 0):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# --- the naive form: full sequences, textbook attention, head by head ------------------------------------


def head_outputs(attn, x):
    """[batch, tokens, width] -> what each head puts out at each token, before the output projection."""
    q, k, v = (F.linear(x, w, b) for w, b in zip(attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3), strict=True))
    size = attn.embed_dim // attn.num_heads
    parts = [slice(h * size, (h + 1) * size) for h in range(attn.num_heads)]
    return q, k, v, parts


def attended(q, k, v, part):
    scores = q[..., part] @ k[..., part].transpose(-1, -2) / (part.stop - part.start) ** 0.5
    return scores.softmax(-1) @ v[..., part]


def finish(layer, x, out):
    x = x + layer.ls_1(F.linear(out, layer.attn.out_proj.weight, layer.attn.out_proj.bias))
    return x + layer.ls_2(layer.mlp(layer.ln_2(x)))


def naive_means(experts, pixels):
    """CLS before layer J and every head's output at CLS, means over images."""
    visual, x, means, start = experts.backbone.model.visual, None, {}, None
    x = visual._embeds(pixels)
    for number, layer in enumerate(visual.transformer.resblocks, 1):
        if number == experts.first_layer:
            start = x[:, 0].mean(0)
        q, k, v, parts = head_outputs(layer.attn, layer.ln_1(x))
        heads = [attended(q, k, v, part) for part in parts]
        for h, head in enumerate(heads):
            means[number, h] = head[:, 0].mean(0)
        x = finish(layer, x, torch.cat(heads, -1))
    return start, means


def naive_states(experts, pixels, means, tokens, mean_image: bool):
    """Token states behind ln_post: originals and tokens in one sequence, means filled in head by head."""
    visual = experts.backbone.model.visual
    x = visual._embeds(pixels)
    originals, names = x.shape[1], experts.token_of
    for number, layer in enumerate(visual.transformer.resblocks, 1):
        if number == experts.first_layer:
            x = torch.cat([x, tokens.expand(len(x), -1, -1)], 1)
        q, k, v, parts = head_outputs(layer.attn, layer.ln_1(x))
        heads = []
        for h, part in enumerate(parts):
            out = attended(q, k[:, :originals], v[:, :originals], part)  # nobody sees a token
            if number >= experts.first_layer:
                role = experts.roles[number, h]
                reader = role.concept if role.role == "core_attribute" else "rest"
                own = [reader == name for name in names]
                rows = [
                    out[:, originals + i] if mine and not mean_image else means[number, h].expand(len(x), -1)
                    for i, mine in enumerate(own)
                ]
                out = torch.cat([out[:, :originals], torch.stack(rows, 1)], 1)
            heads.append(out)
        x = finish(layer, x, torch.cat(heads, -1))
    return visual.ln_post(x[:, originals:]), F.normalize(visual.ln_post(x[:, 0]) @ visual.proj, dim=-1)


def naive_loss(experts, pixels, labels, means):
    model, config = experts.backbone.model, experts.config
    said, cls = naive_states(experts, pixels, means, experts.tokens, mean_image=False)
    of_mean, _ = naive_states(experts, pixels, means, experts.tokens, mean_image=True)
    per = (len(experts.attributes), config.tokens_per_attribute)
    read = ((said - of_mean) @ experts.projection).unflatten(1, per).mean(2)
    features = torch.cat([cls[:, None], F.normalize(read, dim=-1)], 1)
    text = F.normalize(naive.text_features(model, experts.backbone.text.tokenizer, PROMPTS, experts), dim=-1)
    votes = model.logit_scale.exp() * features @ text.T
    alpha = experts.fusion.softmax(0)
    logits = (alpha[None, :, None] * votes).sum(1)
    frozen = F.normalize(model.encode_text(experts.backbone.text.tokenizer(PROMPTS)), dim=-1)
    total = F.cross_entropy(logits, labels)
    total = total + config.lambda_reg * (1 - (text * frozen).sum(-1).mean())
    total = total + config.pull * ((experts.projection - model.visual.proj) ** 2).sum()
    return total + config.lambda_fusion * (1 - alpha[0]), logits


CONFIGS = {
    "default": {},
    "two tokens": {"tokens_per_attribute": 2},
    "no rest": {"rest": False},
    "last layer only": {"first_layer": 4},
    "first layer": {"first_layer": 1},
    "with L_fusion": {"lambda_fusion": 0.7, "pull": 0.0},
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_equals_the_naive_form(tiny, settings, dtype, tolerance) -> None:
    experts = make(tiny, dtype, **settings)
    pixels, labels = images(6, dtype), torch.tensor([0, 1, 2, 3, 4, 0])
    _, means = naive_means(experts, images(5, dtype, seed=1))
    slow, slow_logits = naive_loss(experts, pixels, labels, means)
    expected = torch.autograd.grad(slow, list(experts.parameters()))
    found = experts.loss(experts.trunk(pixels), labels)
    fast, logits = found.total, found.logits
    got = torch.autograd.grad(fast, list(experts.parameters()))
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(logits, slow_logits, rtol=tolerance, atol=10 * tolerance)
    for name, value, gradient in zip(dict(experts.named_parameters()), got, expected, strict=True):
        assert gradient.abs().max() > 0, f"{name} gets no gradient: the comparison would say nothing"
        assert (value - gradient).norm() / gradient.norm() < tolerance, f"the gradient of {name} differs"


def test_tokens_start_at_the_mean_cls_state(tiny) -> None:
    experts = make(tiny, token_std=0.0, moved=False)
    start, _ = naive_means(experts, images(5, seed=1))
    torch.testing.assert_close(experts.tokens, start.expand_as(experts.tokens), rtol=0, atol=1e-10)


def test_the_class_feature_is_frozen_clips_bit_for_bit(tiny) -> None:
    experts, pixels = make(tiny, torch.float32), images(4, torch.float32)
    tower = experts.backbone.image
    clip = F.normalize(tower.project(tower.read_cls(tower.enter(tower.trunk(pixels, 2), 3))), dim=-1)
    features = experts.image_features(experts.trunk(pixels))
    assert torch.equal(features[:, 0], clip)
    text = experts.text_features()
    assert torch.equal(experts.logits(features, text, "decoupled"), experts.backbone.temperature * clip @ text.T)


@pytest.mark.parametrize("which", range(4))
def test_a_token_never_changes_with_what_other_tokens_do(tiny, which) -> None:
    experts, pixels = make(tiny, tokens_per_attribute=2), images(2)
    before = experts.image_features(experts.trunk(pixels))
    with torch.no_grad():
        own = slice(2 * which, 2 * which + 2)
        kept = experts.tokens[own].clone()
        experts.tokens += torch.randn_like(experts.tokens)
        experts.tokens[own] = kept
    after = experts.image_features(experts.trunk(pixels))
    moved = (after - before).abs().amax((0, 2))
    assert moved[1 + which] < 1e-12
    assert all(moved[1 + other] > 1e-6 for other in range(4) if other != which)


def test_an_image_is_read_alone(tiny) -> None:
    """Neither the batch nor its order matters."""
    experts, pixels = make(tiny), images(5)
    together = experts.image_features(experts.trunk(pixels))
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(experts.image_features(experts.trunk(pixels[order])), together[order])
    torch.testing.assert_close(experts.image_features(experts.trunk(pixels[2:3])), together[2:3])


def test_a_head_that_is_no_expert_says_nothing(tiny) -> None:
    """Other values in the heads of other roles leave attribute features as they are; in an expert they do not."""
    experts, pixels = make(tiny, first_layer=4, rest=False), images(3)
    attn = experts.backbone.image.blocks[3].attn
    before = experts.image_features(experts.trunk(pixels))
    experts_there = [h for h in range(4) if experts.roles[4, h].role == "core_attribute"]
    assert 0 < len(experts_there) < 4
    for head in range(4):
        rows = slice(2 * 48 + 12 * head, 2 * 48 + 12 * head + 12)
        with torch.no_grad():
            kept = attn.in_proj_weight[rows].clone()
            attn.in_proj_weight[rows] += 1
        moved = (experts.image_features(experts.trunk(pixels)) - before)[:, 1:].abs().max()
        assert moved > 1e-6 if head in experts_there else moved == 0
        with torch.no_grad():
            attn.in_proj_weight[rows] = kept


def test_attributes_without_a_head_get_no_token(tiny) -> None:
    roles = [HeadRole("core_attribute", "shape"), *[HeadRole("mixed")] * 3]
    assert make(tiny, roles=role_map(roles=roles)).components == ("cls", "shape", "rest")
    assert make(tiny, roles=role_map(roles=roles), rest=False).components == ("cls", "shape")
    with pytest.raises(DearError, match="No head from layer 3 on has a core attribute"):
        make(tiny, roles=role_map().all_mixed())


def test_attention_maps_are_shares_of_the_image(tiny) -> None:
    experts = make(tiny)
    maps = experts.attention_maps(images(2))
    assert list(maps) == [*CORE, "rest"]
    for seen in maps.values():
        assert seen.shape == (2, 4, 4)
        assert (seen >= 0).all()
        assert (seen.sum((1, 2)) < 1).all()
        assert (seen.sum((1, 2)) > 0.3).all()


def test_held_reads_give_the_same_loss(tiny) -> None:
    """What is held behind the trunk is taken as it is."""
    experts, labels = make(tiny), torch.tensor([0, 1])
    held, made = (experts.trunk(given) for given in (experts.reads(images(2)), images(2)))
    assert torch.equal(experts.loss(held, labels).total, experts.loss(made, labels).total)

"""Expert tokens the slow, readable way: originals and tokens in one sequence, means filled in head by head."""

import torch
from torch.nn import functional as F

import naive
from dear.heads.head_role import HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.experts import Experts, ExpertsConfig

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
    experts = Experts(backbone, config, (roles or role_map(config.first_layer)))
    experts.before_training(LabelledImages(images(5, dtype, seed=1)))
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
    """Queries, keys and values of states [batch, tokens, width], and the columns of each head."""
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
    """Token states after ln_post: originals and tokens in one sequence, means filled in head by head."""
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

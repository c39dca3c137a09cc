"""Expert tokens the slow, readable way: originals and tokens in one sequence, means filled in head by head."""

import torch
from dear_cases import PROMPTS, role_map
from torch.nn import functional as F

import naive
from dear.heads.head_role import HeadRole
from dear.methods.experts import Experts, ExpertsConfig

ROLES = [
    HeadRole("core_attribute", "color"), HeadRole("mixed"), HeadRole("generalization"),
    HeadRole("core_attribute", "shape"), HeadRole("core_attribute", "texture"), HeadRole("core_attribute", "color"),
    HeadRole("other_specialized", "animal"), HeadRole("core_attribute", "color"),
]  # fmt: skip


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
    experts = Experts(backbone, config, roles or role_map(config.first_layer, roles=ROLES))
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


def naive_means(experts, pixels):
    """CLS before layer J and every head's output at CLS, means over images."""
    visual, x, means, start = experts.backbone.model.visual, None, {}, None
    x = visual._embeds(pixels)
    for number, layer in enumerate(visual.transformer.resblocks, 1):
        if number == experts.first_layer:
            start = x[:, 0].mean(0)
        heads = naive.head_outputs(layer.attn, layer.ln_1(x))
        for h, head in enumerate(heads):
            means[number, h] = head[:, 0].mean(0)
        x = naive.finish(layer, x, heads)
    return start, means


def naive_states(experts, pixels, means, tokens, mean_image: bool):
    """Token states after ln_post: originals and tokens in one sequence, means filled in head by head."""
    visual = experts.backbone.model.visual
    x = visual._embeds(pixels)
    originals, names = x.shape[1], experts.token_of
    for number, layer in enumerate(visual.transformer.resblocks, 1):
        if number == experts.first_layer:
            x = torch.cat([x, tokens.expand(len(x), -1, -1)], 1)
        allowed = torch.ones(layer.attn.num_heads, x.shape[1], x.shape[1], dtype=torch.bool)
        allowed[:, :, originals:] = False  # nobody sees a token
        heads = []
        for h, out in enumerate(naive.head_outputs(layer.attn, layer.ln_1(x), allowed)):
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
        x = naive.finish(layer, x, heads)
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

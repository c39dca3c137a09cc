"""VPT, IVLP, MaPLe, PromptSRC, ProVP, MMRL, MMRL++ and CLIP-LoRA equal their naive forms; their identities hold."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.methods.base import Method
from dear.methods.registry import find_method

sys.path.append(str(Path(__file__).parent))
import peers_naive as plain

NAMES = ("cat", "polar bear", "dog", "fire truck", "tabby")
TEMPLATE = "a photo of a {}, a type of thing."
OWN = [f"a photo of a {name}." for name in NAMES]  # the sentence of methods that have their own
GIVEN = [TEMPLATE.format(name) for name in NAMES]


def make(tiny, name: str, dtype=torch.float64, spread: float = 0.2, **settings) -> Method:
    backbone = tiny(quick_gelu=True)
    backbone.model.to(dtype)
    kind = find_method(name)
    own = {key: value for key, value in kind.recipe.items() if key in kind.Settings.__dataclass_fields__}
    torch.manual_seed(5)
    method = kind(backbone, kind.Settings(**{**own, **settings}))
    with torch.no_grad():  # away from the start, where zeros would hide what is wrong
        for parameter in method.parameters():
            parameter += spread * torch.randn_like(parameter)
    method.set_classes(NAMES, TEMPLATE)
    method.look(Named())
    return method.eval()


class Named:
    """All that these methods look at before training."""

    classes = NAMES


def batch(dtype=torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 3, 32, 32, dtype=dtype), torch.tensor([0, 1, 2, 3, 4, 0])


def deep(tokens: Tensor, first: Tensor) -> dict[int, Tensor]:
    return {1: first, **{number: tokens[number - 1] for number in range(2, len(tokens) + 1)}}


def ivlp_features(m, pixels, coupled=None) -> tuple[Tensor, Tensor]:
    model, tokenizer = m.backbone.model, m.backbone.text.tokenizer
    of_image = m.image_tokens if coupled is None else coupled
    cls, _ = plain.image(model, pixels, deep(of_image, model.visual.ln_pre(of_image[0])))
    count = m.text_tokens.shape[1]
    placed = m.text_tokens[0] + model.positional_embedding[1 : 1 + count]
    texts = plain.text(model, tokenizer, OWN, deep(m.text_tokens, placed), slots=range(1, 1 + count))
    return plain.image_feature(model, cls), texts


def frozen(m, pixels, sentences) -> tuple[Tensor, Tensor]:
    model = m.backbone.model
    with torch.no_grad():
        return model.encode_image(pixels), model.encode_text(m.backbone.text.tokenizer(list(sentences)))


def vpt(m, pixels, labels) -> Tensor:
    model = m.backbone.model
    cls, _ = plain.image(model, pixels, deep(m.image_tokens, model.visual.ln_pre(m.image_tokens[0])))
    _, texts = frozen(m, pixels, GIVEN)
    return F.cross_entropy(plain.logits(model, plain.image_feature(model, cls), texts), labels)


def ivlp(m, pixels, labels) -> Tensor:
    return F.cross_entropy(plain.logits(m.backbone.model, *ivlp_features(m, pixels)), labels)


def maple(m, pixels, labels) -> Tensor:
    pairs = zip(m.couplings, m.text_tokens, strict=True)
    coupled = torch.stack([tokens @ couple.weight.T + couple.bias for couple, tokens in pairs])
    return F.cross_entropy(plain.logits(m.backbone.model, *ivlp_features(m, pixels, coupled)), labels)


def maple_atprompt(m, pixels, labels) -> Tensor:
    """The sentence is written out by hand: BOT, two tokens, color, two tokens, shape, two tokens, the name."""
    model, tokenizer = m.backbone.model, m.backbone.text.tokenizer
    coupled = torch.stack([t @ c.weight.T + c.bias for c, t in zip(m.couplings, m.text_tokens, strict=True)])
    cls, _ = plain.image(model, pixels, deep(coupled, model.visual.ln_pre(coupled[0])))
    ids = tokenizer([f"X X color X X shape X X {name}." for name in NAMES])
    rows, x = list(model.token_embedding(ids).unbind(1)), None
    for places, learned in ((1, m.of_attributes[0]), (4, m.of_attributes[1]), (7, m.text_tokens[0])):
        for i in range(2):
            rows[places + i] = learned[i].expand(len(NAMES), -1)
    x = torch.stack(rows, 1) + model.positional_embedding
    for number, layer in enumerate(model.transformer.resblocks):
        if 0 < number < len(m.text_tokens):  # only the last two are replaced
            x = torch.cat([x[:, :7], m.text_tokens[number].expand(len(x), -1, -1), x[:, 9:]], 1)
        x = plain.naive.block(layer, x, plain.everything(layer, x.shape[1]).tril())
    texts = model.ln_final(x[torch.arange(len(x)), ids.argmax(-1)]) @ model.text_projection
    return F.cross_entropy(plain.logits(model, plain.image_feature(model, cls), texts), labels)


def promptsrc(m, pixels, labels) -> Tensor:
    import open_clip

    model, tokenizer = m.backbone.model, m.backbone.text.tokenizer
    image, texts = ivlp_features(m, pixels)
    with torch.no_grad():
        templates = open_clip.OPENAI_IMAGENET_TEMPLATES[:60]
        rows = [torch.stack([model.encode_text(tokenizer([t(name)]))[0] for t in templates]).mean(0) for name in NAMES]
    target, image0 = F.normalize(torch.stack(rows), dim=-1), F.normalize(model.encode_image(pixels), dim=-1).detach()
    student, teacher = plain.logits(model, image, texts), plain.logits(model, image0, target).detach()
    loss = F.cross_entropy(student, labels)
    loss = loss + 25 * (F.normalize(texts, dim=-1) - target).abs().sum() / target.numel()
    loss = loss + 10 * (F.normalize(image, dim=-1) - image0).abs().sum() / image0.numel()
    p, q = teacher.softmax(-1), student.softmax(-1)
    return loss + (p * (p.log() - q.log())).sum() / (len(labels) * len(NAMES))


def provp(m, pixels, labels) -> Tensor:
    model = m.backbone.model
    cls, _ = plain.image(model, pixels, deep(m.image_tokens, m.image_tokens[0]), beta=0.99)
    image, (image0, texts) = plain.image_feature(model, cls), frozen(m, pixels, GIVEN)
    similar = F.cosine_similarity(image[:, None], image0[None], dim=-1)
    contrast = torch.stack([similar[i].logsumexp(0) - similar[i, i] for i in range(len(similar))]).mean()
    return F.cross_entropy(plain.logits(model, image, texts), labels) + contrast


def mmrl_loss(m, pixels, labels, into_image, into_text, projection, beta) -> Tensor:
    model = m.backbone.model
    cls, added = plain.image(model, pixels, into_image, beta)
    texts = plain.text(model, m.backbone.text.tokenizer, GIVEN, into_text, beta=beta)
    image, tokens = plain.image_feature(model, cls), (model.visual.ln_post(added) @ projection).mean(1)
    image0, texts0 = frozen(m, pixels, GIVEN)
    loss = 0.7 * F.cross_entropy(plain.logits(model, image, texts), labels)
    loss = loss + 0.3 * F.cross_entropy(plain.logits(model, tokens, texts), labels)
    moved = (
        1 - F.cosine_similarity(image, image0, dim=-1).mean() + 1 - F.cosine_similarity(texts, texts0, dim=-1).mean()
    )
    return loss + m.config.lambda_reg * moved


def mmrl(m, pixels, labels) -> Tensor:
    into = [{layer: m.space @ f.weight.T + f.bias for layer, f in zip((2, 3, 4), fs, strict=True)}
            for fs in (m.into_image, m.into_text)]  # fmt: skip
    return mmrl_loss(m, pixels, labels, *into, m.projection, 1.0)


def mmrlpp(m, pixels, labels) -> Tensor:
    into = [
        {layer: m.space @ (f.weight + f.down[i] @ f.up[i]).T + f.bias[i] for i, layer in enumerate((2, 3, 4))}
        for f in (m.of_image, m.of_text)
    ]
    return mmrl_loss(m, pixels, labels, *into, m.backbone.model.visual.proj + m.down @ m.up, m.config.beta)


class Merged:
    """A block whose attention has W + s B A in the place of W."""

    def __init__(self, block, down: Tensor, up: Tensor, scale: float) -> None:
        self.ln_1, self.ln_2, self.ls_1, self.ls_2, self.mlp = block.ln_1, block.ln_2, block.ls_1, block.ls_2, block.mlp
        old, terms = block.attn, [b @ a for a, b in zip(down, up, strict=True)]
        self.attn = type("attn", (), {})()
        self.attn.embed_dim, self.attn.num_heads, self.attn.out_proj = old.embed_dim, old.num_heads, old.out_proj
        self.attn.in_proj_weight = old.in_proj_weight + scale * torch.cat(terms)
        self.attn.in_proj_bias = old.in_proj_bias


def clip_lora(m, pixels, labels) -> Tensor:
    model, scale = m.backbone.model, 1 / 2**0.5
    towers = ((model.visual.transformer, m.image_terms), (model.transformer, m.text_terms))
    merged = [[Merged(b, terms.down[i], terms.up[i], scale) for i, b in enumerate(t.resblocks)] for t, terms in towers]
    cls, _ = plain.image(model, pixels, {}, blocks=merged[0])
    texts = plain.text(model, m.backbone.text.tokenizer, GIVEN, {}, blocks=merged[1])
    return F.cross_entropy(plain.logits(model, plain.image_feature(model, cls), texts), labels)


def tac(m, pixels, labels) -> Tensor:
    """pixels: two views of each image, then the clean ones."""
    model, count = m.backbone.model, m.text_tokens.shape[1]
    task = m.centres @ m.into_image.weight.T + m.into_image.bias
    raw = {i + 1: torch.cat([task, own]) for i, own in enumerate(m.image_tokens)}
    raw[1] = model.visual.ln_pre(raw[1])
    size = 17 + 5 + count
    allowed = torch.ones(size, size, dtype=torch.bool)
    allowed[1:17, 17:22] = False  # patches do not see tokens of the task
    cls, _ = plain.image(model, pixels[: 2 * len(labels)], raw, allowed=allowed)
    task = m.centres @ m.into_text.weight.T + m.into_text.bias
    raw = {i + 1: torch.cat([task, own]) for i, own in enumerate(m.text_tokens)}
    raw[1] = raw[1] + model.positional_embedding[1 : 6 + count]
    sentences = [" ".join(["X"] * (5 + count)) + " " + sentence for sentence in OWN]
    texts = plain.text(model, m.backbone.text.tokenizer, sentences, raw, slots=range(1, 6 + count))
    image, image0 = plain.image_feature(model, cls), frozen(m, pixels[2 * len(labels) :], OWN)[0].repeat(2, 1)
    loss = F.cross_entropy(plain.logits(model, image, texts), labels.repeat(2))
    loss = loss + 20 * (F.normalize(texts, dim=-1) - m._embeddings).abs().mean()
    return loss + 25 * (F.normalize(image, dim=-1) - F.normalize(image0, dim=-1)).abs().mean()


def skipt(m, pixels, labels) -> Tensor:
    model, tokenizer = m.backbone.model, m.backbone.text.tokenizer
    blocks = [*model.visual.transformer.resblocks[:2], *m.image_blocks]
    cls, _ = plain.image(model, pixels, {}, blocks=blocks)
    image = m.image_norm(cls) @ m.projection
    kept = m.kept_classes(F.normalize(image, dim=-1)[:, None].detach(), labels).tolist()
    ids = tokenizer([GIVEN[i] for i in kept])
    x = model.token_embedding(ids) + model.positional_embedding
    for layer in [*model.transformer.resblocks[:2], *m.text_blocks]:
        x = plain.naive.block(layer, x, plain.everything(layer, x.shape[1]).tril())
    texts = m.text_norm(x[torch.arange(len(x)), ids.argmax(-1)]) @ m.text_projection
    return F.cross_entropy(plain.logits(model, image, texts), torch.tensor([kept.index(i) for i in labels]))


TWINS = {
    "vpt-deep": (vpt, {}), "vpt-shallow": (vpt, {"image_depth": 1}),
    "ivlp": (ivlp, {"image_depth": 3, "text_depth": 2}),
    "maple": (maple, {"depth": 3}), "maple-atprompt": (maple_atprompt, {"depth": 3, "text_tokens": 2}),
    "promptsrc": (promptsrc, {"text_depth": 3}), "provp": (provp, {"image_tokens": 3}),
    "mmrl": (mmrl, {"space": 16}), "mmrlpp": (mmrlpp, {"space": 16, "rank": 2, "projection_rank": 4, "beta": 0.6}),
    "clip-lora": (clip_lora, {}), "tac": (tac, {"tokens": 2}), "skipt": (skipt, {"class_share": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance", "grad_tolerance"), [
    (torch.float32, 1e-6, 1e-5), (torch.float64, 1e-10, 1e-10),
])  # fmt: skip
@pytest.mark.parametrize("name", TWINS)
def test_equals_the_naive_form(tiny, name, dtype, tolerance, grad_tolerance) -> None:
    twin, settings = TWINS[name]
    method = make(tiny, name, dtype, **settings)
    pixels, labels = batch(dtype)
    if name == "tac":
        labels = labels[:2]
    slow = twin(method, pixels, labels)
    parameters = dict(method.named_parameters())
    expected = torch.autograd.grad(slow, list(parameters.values()))
    fast = method.loss(method.trunk(pixels), labels).total
    got = torch.autograd.grad(fast, list(parameters.values()))
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    for key, one, other in zip(parameters, got, expected, strict=True):
        assert other.abs().max() > 0, f"{key} gets no gradient: the comparison would say nothing"
        # In fp32 a gradient that nearly cancels (a shift of all texts alike) is rounding: the whole is compared there.
        if dtype is torch.float64:
            assert (one - other).norm() / other.norm() < grad_tolerance, key
    whole, reference = (torch.cat([g.flatten() for g in gradients]) for gradients in (got, expected))
    assert (whole - reference).norm() / reference.norm() < grad_tolerance


# What is learned on a backbone of these widths (image, text, joint) and depth 12, by the published tables.
COUNTS = {
    "vpt-deep": ({}, 73_728, lambda v, t, d, L: 8 * v * L),
    "vpt-shallow": ({}, 6_144, lambda v, t, d, L: 8 * v),
    "ivlp": ({}, 46_080, lambda v, t, d, L: 4 * min(9, L) * (v + t)),
    "maple": ({}, 3_555_072, lambda v, t, d, L: min(9, L) * (2 * t + t * v + v)),
    "promptsrc": ({}, 46_080, lambda v, t, d, L: 4 * min(9, L) * (v + t)),
    "provp": ({}, 147_456, lambda v, t, d, L: 16 * v * L),
    "mmrl": ({}, 4_992_256, lambda v, t, d, L: 5 * 512 + (L - L // 2 + 1) * (513 * v + 513 * t) + v * d),
    "mmrlpp": (
        {}, 813_312,
        lambda v, t, d, L: 5 * 512 + 512 * (v + t) + (L - L // 2 + 1) * (4 * (v + t + 2 * 512) + v + t) + 64 * (v + d),
    ),
    "clip-lora": ({}, 184_320, lambda v, t, d, L: L * 3 * 2 * 2 * (v + t)),
    "tac": ({}, 733_440, lambda v, t, d, L: 5 * L * (v + t) + (d + 1) * (v + t)),
    "skipt": (
        {}, 62_099_456,
        lambda v, t, d, L: sum((L - L // 2) * (12 * w * w + 13 * w) + 2 * w + w * d for w in (v, t)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_learns_as_many_numbers_as_published(tiny, name) -> None:
    settings, published, formula = COUNTS[name]
    assert formula(768, 512, 512, 12) == published
    assert make(tiny, name, **settings).learned() == formula(48, 32, 24, 4)


def features(method, pixels) -> Tensor:
    return method.image_features(method.trunk(pixels))[:, 0]


def test_text_of_shallow_prompts_starts_as_zero_shot(tiny) -> None:
    """The words themselves are in their own slots; the deep tokens of other layers are not words."""
    for name, settings in (("ivlp", {"text_depth": 1}), ("maple", {"depth": 1})):
        method = make(tiny, name, spread=0.0, **settings)
        with torch.no_grad():
            expected = method.backbone.model.encode_text(method.backbone.text.tokenizer(OWN), normalize=True)
        torch.testing.assert_close(method.text_features(), expected, atol=1e-12, rtol=0)


def test_order_of_image_tokens_does_not_matter(tiny) -> None:
    method, (pixels, _) = make(tiny, "vpt-deep"), batch()
    before = features(method, pixels)
    with torch.no_grad():
        method.image_tokens.copy_(method.image_tokens.flip(1))
    torch.testing.assert_close(features(method, pixels), before, atol=1e-12, rtol=0)


def test_low_rank_terms_start_as_clip_and_only_b_gets_a_gradient(tiny) -> None:
    method, (pixels, labels) = make(tiny, "clip-lora", spread=0.0), batch()
    clip = method.backbone.model.encode_image(pixels, normalize=True)
    torch.testing.assert_close(features(method, pixels), clip, atol=1e-12, rtol=0)
    method.train()  # with dropout, too
    torch.testing.assert_close(features(method, pixels), clip, atol=1e-12, rtol=0)
    method.loss(method.trunk(pixels), labels).total.backward()
    assert method.image_terms.down.grad.abs().max() == 0 == method.text_terms.down.grad.abs().max()
    assert min(method.image_terms.up.grad.abs().max(), method.text_terms.up.grad.abs().max()) > 0


def test_dropout_changes_training_only(tiny) -> None:
    method, (pixels, _) = make(tiny, "clip-lora"), batch()
    assert torch.equal(features(method, pixels), features(method, pixels))
    method.train()
    assert not torch.equal(features(method, pixels), features(method, pixels))


def test_mmrl_fuses_features_as_it_fuses_answers(tiny) -> None:
    for name in ("mmrl", "mmrlpp"):
        method, (pixels, _) = make(tiny, name, space=16), batch()
        found, text = method.image_features(method.trunk(pixels)), method.text_features()
        of_cls, of_tokens = method.votes(found, text).unbind(1)
        torch.testing.assert_close(method.logits(found, text), 0.7 * of_cls + 0.3 * of_tokens)
        torch.testing.assert_close(method.logits(found, text, "decoupled"), of_cls)


def test_mmrlpp_with_beta_one_is_mmrl_on_merged_projections(tiny) -> None:
    plus, one = make(tiny, "mmrlpp", space=16, beta=1.0), make(tiny, "mmrl", space=16)
    with torch.no_grad():
        one.space.copy_(plus.space)
        for into, of in ((one.into_image, plus.of_image), (one.into_text, plus.of_text)):
            for i, linear in enumerate(into):
                linear.weight.copy_(of.weight + of.down[i] @ of.up[i])
                linear.bias.copy_(of.bias[i])
        one.projection.copy_(plus.read_out())
    pixels, _ = batch()
    torch.testing.assert_close(one.image_features(one.trunk(pixels)), plus.image_features(plus.trunk(pixels)))
    torch.testing.assert_close(one.text_features(), plus.text_features())


def test_at_their_start_all_layers_of_mmrl_get_the_same_tokens(tiny) -> None:
    for name in ("mmrl", "mmrlpp"):
        method = make(tiny, name, spread=0.0, space=16)
        for layers in (method.image_layers(), method.text_layers()):
            first, *others = layers.values()
            assert others
            assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(method.read_out(), method.backbone.image.visual.proj)


def test_a_student_that_is_its_teacher_has_no_promptsrc_penalty(tiny, monkeypatch) -> None:
    method, (pixels, labels) = make(tiny, "promptsrc"), batch()
    entry = method.trunk(pixels)
    kind = type(method)
    monkeypatch.setattr(kind, "image_features", lambda self, entry, observe=None: self.frozen_image(entry)[:, None])
    monkeypatch.setattr(kind, "text_features", lambda self, texts=None: self.texts.frozen)
    parts = method.loss(entry, labels).parts
    for name in ("text", "image", "answers"):
        assert parts[name].abs() < 1e-12, name


def test_provp_contrast_of_one_image_is_nothing(tiny) -> None:
    method, (pixels, labels) = make(tiny, "provp"), batch()
    assert method.loss(method.trunk(pixels[:1]), labels[:1]).parts["contrast"] == 0
    assert method.loss(method.trunk(pixels), labels).parts["contrast"] > 0


def test_task_tokens_are_centres_of_the_classes_trained_on(tiny) -> None:
    method = make(tiny, "tac")
    torch.testing.assert_close(method.centres.norm(dim=-1), torch.ones(5, dtype=torch.float64))
    # Five classes and five centres: each class is one.
    assert sorted((method._embeddings @ method.centres.T).argmax(-1).tolist()) == [0, 1, 2, 3, 4]
    before = method.centres.clone()
    method.set_classes(["lynx", "ocelot"], TEMPLATE)
    assert torch.equal(method.centres, before)


def test_few_classes_still_make_five_centres() -> None:
    from dear.methods.tac import centres

    found = centres(F.normalize(torch.randn(2, 6), dim=-1), 5)
    assert found.shape == (5, 6)
    assert torch.isfinite(found).all()


def test_tac_drops_features_in_training_only(tiny) -> None:
    method, (pixels, _) = make(tiny, "tac"), batch()
    assert torch.equal(features(method, pixels), features(method, pixels))
    method.train()
    assert not torch.equal(features(method, pixels), features(method, pixels))


def test_skipt_starts_as_clip_and_leaves_the_backbone_alone(tiny) -> None:
    method, (pixels, labels) = make(tiny, "skipt", spread=0.0), batch()
    clip = method.backbone.model.encode_image(pixels, normalize=True)
    torch.testing.assert_close(features(method, pixels), clip, atol=1e-12, rtol=0)
    torch.testing.assert_close(method.text_features(), method.texts.frozen, atol=1e-12, rtol=0)
    method.loss(method.trunk(pixels), labels).total.backward()
    assert all(p.grad is None for p in method.backbone.model.parameters())
    assert all(p.grad is not None for p in method.parameters())
    groups = method.parameter_groups(1.0)
    assert [group["lr"] for group in groups] == [1.0, 0.25]
    assert sum(p.numel() for group in groups for p in group["params"]) == method.learned()


def test_a_step_of_skipt_keeps_its_own_classes_and_skips_others(tiny) -> None:
    method, (pixels, _) = make(tiny, "skipt", spread=0.0, class_share=0.4), batch()
    labels = torch.tensor([3, 3, 4, 3, 3, 3])
    entry = method.trunk(pixels)
    seen = [method.kept_classes(method.image_features(entry), labels).tolist() for _ in range(20)]
    assert all({3, 4} <= set(kept) for kept in seen)
    assert min(map(len, seen)) == 3  # two always, and the next one, whose chance is one
    loss = method.loss(entry, labels)
    kept = torch.isfinite(loss.logits[0])
    assert loss.logits.shape == (6, 5)
    assert kept[[3, 4]].all()
    whole = F.cross_entropy(method.logits(method.image_features(entry), method.text_features()), labels)
    assert loss.total <= whole  # fewer classes to be mistaken for

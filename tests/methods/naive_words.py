"""Methods on words and features the slow, readable way: every class and image alone. Each returns loss and logits."""

from collections.abc import Iterator

import naive_text
import peers_naive
import torch
from naive_text import LABELS, NAMES, TEMPLATE, make, slow_logits, slow_text, template_text
from torch import Tensor
from torch.nn import functional as F

from dear.methods.base import Method

SLOTS = [1, 2, 3, 4]


class LabelledImages:
    """One batch of training images, and one of validation images if any are given."""

    classes, template = NAMES, TEMPLATE

    def __init__(self, images: Tensor, labels: Tensor = LABELS, shots: int = 2, val: Tensor | None = None) -> None:
        self.images, self.labels, self.shots, self.held_out = images, labels, shots, val

    def train(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.images, self.labels

    def val(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.held_out is not None:
            yield self.held_out, LABELS


def slow_adapter(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    plain = method.backbone.model.encode_image(images).detach()
    first, second = (layer.weight for layer in method.adapter[::2])
    added = torch.relu(torch.relu(plain @ first.T) @ second.T)
    features = F.normalize(0.2 * added + 0.8 * plain, dim=-1)
    logits = method.backbone.model.logit_scale.exp() * features @ template_text(method).T
    return F.cross_entropy(logits, LABELS), logits


def slow_prolip(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    visual = method.backbone.model.visual
    with torch.no_grad():
        cls, _ = peers_naive.image(method.backbone.model, images, {})
    features = F.normalize(visual.ln_post(cls) @ method.projection, dim=-1)
    logits = method.backbone.model.logit_scale.exp() * features @ template_text(method).T
    distance = sum((p - q) ** 2 for p, q in zip(method.projection.flatten(), visual.proj.flatten(), strict=True))
    return F.cross_entropy(logits, LABELS) + 0.5 * distance, logits


def slow_tip(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    features = naive_text.frozen_image(method.backbone.model, images)
    logits = list(slow_logits(method, images, template_text(method)))
    for i, image in enumerate(features):
        for key, label in zip(method.keys, LABELS, strict=True):
            logits[i] = logits[i] + 1.17 * torch.exp(-(1 - image @ key)) * F.one_hot(label, len(NAMES))
    return F.cross_entropy(torch.stack(logits), LABELS), torch.stack(logits)


def slow_zs_lp(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    features = naive_text.frozen_image(method.backbone.model, images)
    vectors = torch.stack([p / p.norm() for p in method.prototypes])
    logits = method.backbone.model.logit_scale.exp() * features @ vectors.T
    return F.cross_entropy(logits, LABELS), logits


def slow_clap(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    loss, logits = slow_zs_lp(method, images)
    model, sentences = method.backbone.model, [TEMPLATE.format(name) for name in NAMES]
    texts = model.encode_text(method.backbone.text.tokenizer(sentences)).detach()
    known = slow_logits(method, images.flip(3), template_text(method)).softmax(1)  # of the shots
    pull = 0.0
    for c, (vector, text) in enumerate(zip(method.prototypes, texts, strict=True)):
        trust = torch.stack([known[i, c] for i, label in enumerate(LABELS) if label == c]).mean()
        pull = pull + trust * ((vector - text) ** 2).sum() / len(NAMES)
    return loss + pull, logits


def slow_cocoop(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    first, _, last = method.network
    rows = []
    for image in naive_text.frozen_image(method.backbone.model, images):
        shift = torch.relu(image @ first.weight.T + first.bias) @ last.weight.T + last.bias
        text = slow_text(method, "x x x x {}.", method.context + shift, SLOTS)
        rows.append(method.backbone.model.logit_scale.exp() * image @ text.T)
    return F.cross_entropy(torch.stack(rows), LABELS), torch.stack(rows)


def slow_refiner(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    visual, scale = method.backbone.model.visual, method.backbone.model.logit_scale.exp()
    first, norm, _, last = method.projector
    with torch.no_grad():
        x = visual._embeds(images)
        size, blocks = x.shape[1], visual.transformer.resblocks
        heads = blocks[0].attn.num_heads
        for layer in blocks:
            before, allowed = x, torch.ones(heads, size, size, dtype=torch.bool)
            x = peers_naive.naive.block(layer, x, allowed)
        tokens = visual.ln_post(x) @ visual.proj
        normed, attn = blocks[-1].ln_1(before), blocks[-1].attn
        weights = attn(normed, normed, normed, need_weights=True, average_attn_weights=True)[1][:, 0, 1:]
    rows = tokens.flatten(0, 1) @ first.weight.T + first.bias
    rows = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt() * norm.weight + norm.bias
    projected = (torch.relu(rows) @ last.weight.T + last.bias).view_as(tokens)
    text = slow_text(method, "x x x x {}.", method.context, SLOTS)
    read = torch.stack([(t @ method.cache.T).softmax(0) @ method.cache for t in text])
    corrected = text + 0.2 * torch.cat([text, read], 1) @ method.extractor.weight.T
    logits = scale * F.normalize(tokens[:, 0], dim=-1) @ corrected.T
    local, labels = [], []
    for i, label in enumerate(LABELS):
        best = sorted(range(size - 1), key=lambda p: -weights[i, p])[:5]
        local += [projected[i, 0], *(projected[i, 1 + p] for p in best), projected[i].mean(0)]
        labels += [label] * 7
    method.expected_tokens = projected.flatten(0, 1).detach()  # what is written: all tokens, not the 7
    near = F.cross_entropy(scale * torch.stack(local) @ text.T, torch.stack(labels))
    stay = (F.normalize(corrected, dim=-1) - text).abs().mean()
    return F.cross_entropy(logits, LABELS) + near / 50 + 20 * stay, logits


def slow_coop(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    text = slow_text(method, "x x x x {}.", method.context, [1, 2, 3, 4])
    logits = slow_logits(method, images, text)
    return F.cross_entropy(logits, LABELS), logits


def slow_kgcoop(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    loss, logits = slow_coop(method, images)
    text = slow_text(method, "x x x x {}.", method.context, [1, 2, 3, 4])
    return loss + 8 * naive_text.cosine_distance(text, template_text(method)), logits


def slow_tcp(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    frozen, (first, _, last) = template_text(method), method.network
    hidden = F.linear(frozen, first.weight, first.bias)
    made = F.linear(hidden * torch.sigmoid(1.702 * hidden), last.weight, last.bias)
    deeper = {4: torch.stack([row.reshape(4, 32) for row in made])}  # the last third of 4 layers
    text = slow_text(method, "x x x x {}, a type of thing.", method.context, [1, 2, 3, 4], deeper)
    logits = slow_logits(method, images, text)
    return F.cross_entropy(logits, LABELS) + 8 * naive_text.cosine_distance(text, frozen), logits


def slow_atprompt(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    learned = torch.cat([*method.of_attributes, method.context])
    text = slow_text(method, "x x color x x playfulness x x {}.", learned, [1, 2, 4, 5, 8, 9])  # play-fulness: 2 tokens
    logits = slow_logits(method, images, text)
    return F.cross_entropy(logits, LABELS), logits


def taught(tiny, dtype=torch.float64, dim: int = 20, **settings) -> Method:
    """A student of a teacher with features of another width and two more classes."""
    method = make(tiny, "promptkd", dtype, **settings)
    names = (*NAMES, "whale", "tree")
    texts = F.normalize(torch.randn(len(names), dim, dtype=dtype), dim=-1)
    method.set_teacher(names, texts, 3 * torch.randn(10, len(names), dtype=dtype))
    method.set_classes(NAMES, TEMPLATE)
    return method


ROWS = torch.tensor([3, 9, 1, 0, 4, 7, 2, 5])


def slow_promptkd(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    """Three sets of tokens in four layers: replaced twice, then carried on. `ROWS` are the labels."""
    model, (first, norm, _, last) = method.backbone.model, method.projector
    entering, second, third = method.image_tokens
    cls, _ = peers_naive.image(model, images, {1: model.visual.ln_pre(entering), 2: second, 3: third})
    hidden = peers_naive.image_feature(model, cls) @ first.weight.T + first.bias
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt() * norm.weight + norm.bias
    features = F.normalize(torch.relu(hidden) @ last.weight.T + last.bias, dim=-1)
    logits = model.logit_scale.exp() * features @ method.class_texts.T
    divergence = torch.zeros((), dtype=images.dtype)
    for teacher, student in zip(method.probabilities[ROWS], logits.log_softmax(-1), strict=True):
        for p, q in zip(teacher, student, strict=True):
            divergence = divergence + p * (p.log() - q)
    return 1000 * divergence / (8 * 7), logits

"""Token methods the slow, readable way: full sequences, all layers, textbook attention. Each returns the loss."""

from copy import deepcopy

import peers_naive as plain
import torch
from token_cases import GIVEN, NAMES, OWN
from torch import Tensor
from torch.nn import functional as F


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
    """A block with W + s B A in place of W in its attention."""

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


def clip_svd(m, pixels, labels) -> Tensor:
    """Blocks whose matrices have the learned singular values, in the bases of the frozen ones."""
    model = m.backbone.model

    def rescaled(matrix: Tensor, values: Tensor) -> Tensor:
        left, _, right = torch.svd(matrix.detach())
        return sum(s * torch.outer(u, v) for s, u, v in zip(values, left.T, right.T, strict=True))

    def blocks(transformer, values: Tensor) -> list:
        changed = []
        for block, own in zip(transformer.resblocks, values, strict=True):
            copy = deepcopy(block)
            attn, mlp = copy.attn, copy.mlp
            parts = [*block.attn.in_proj_weight.chunk(3), attn.out_proj.weight, mlp.c_fc.weight, mlp.c_proj.weight]
            q, k, v, out, fc, proj = (rescaled(part, row) for part, row in zip(parts, own, strict=True))
            del attn.in_proj_weight, attn.out_proj.weight, mlp.c_fc.weight, mlp.c_proj.weight
            attn.in_proj_weight, attn.out_proj.weight = torch.cat([q, k, v]), out
            mlp.c_fc.weight, mlp.c_proj.weight = fc, proj
            changed.append(copy)
        return changed

    cls, _ = plain.image(model, pixels, {}, blocks=blocks(model.visual.transformer, m.image_values))
    texts = plain.text(model, m.backbone.text.tokenizer, GIVEN, {}, blocks=blocks(model.transformer, m.text_values))
    return F.cross_entropy(plain.logits(model, plain.image_feature(model, cls), texts), labels)


def two_stage(m, pixels, labels) -> Tensor:
    """Stage 1: own LayerNorms in both towers, against texts; stage 2: the classifier in place of the texts."""
    model = m.backbone.model

    def blocks(transformer, norms) -> list:
        changed = []
        for block, (ln_1, ln_2) in zip(transformer.resblocks, norms, strict=True):
            copy = deepcopy(block)
            copy.ln_1, copy.ln_2 = ln_1, ln_2
            changed.append(copy)
        return changed

    cls, _ = plain.image(model, pixels, {}, blocks=blocks(model.visual.transformer, m.image_norms))
    image = plain.image_feature(model, cls)
    if m.second:
        return F.cross_entropy(plain.logits(model, image.detach(), m.classifier), labels)
    texts = plain.text(model, m.backbone.text.tokenizer, GIVEN, {}, blocks=blocks(model.transformer, m.text_norms))
    return F.cross_entropy(plain.logits(model, image, texts), labels)


def tac(m, pixels, labels) -> Tensor:
    """TAC's loss of pixels: two views of each image, then the clean ones."""
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
    kept = m.sample_classes(F.normalize(image, dim=-1)[:, None].detach(), labels).tolist()
    ids = tokenizer([GIVEN[i] for i in kept])
    x = model.token_embedding(ids) + model.positional_embedding
    for layer in [*model.transformer.resblocks[:2], *m.text_blocks]:
        x = plain.naive.block(layer, x, plain.everything(layer, x.shape[1]).tril())
    texts = m.text_norm(x[torch.arange(len(x)), ids.argmax(-1)]) @ m.text_projection
    return F.cross_entropy(plain.logits(model, image, texts), torch.tensor([kept.index(i) for i in labels]))


def fine_tune(m, pixels, labels) -> Tensor:
    cls, _ = plain.image(m.backbone.model, pixels, {}, blocks=m.image_blocks)
    image = F.normalize(m.image_norm(cls) @ m.projection, dim=-1)
    vectors, bias = m.classifier.split([image.shape[1], 1], 1)
    return F.cross_entropy(m.backbone.model.logit_scale.exp() * (image @ vectors.T + bias.T), labels)

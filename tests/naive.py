"""DeAR written the slow, readable way: full sequences, all layers, 77 + n text places, a second frozen pass,
textbook attention head by head. The package must equal it; nothing here imports the package's engine."""

import torch
from torch import Tensor
from torch.nn import functional as F


def head_outputs(attn, x: Tensor, allowed: Tensor | None = None) -> list[Tensor]:
    """The output of each head, [batch, tokens, head_dim], of x [batch, tokens, width].

    allowed [heads, tokens, tokens], True: the query (row) may see the key (column).
    """
    q, k, v = (F.linear(x, w, b) for w, b in zip(attn.in_proj_weight.chunk(3), attn.in_proj_bias.chunk(3), strict=True))
    size = attn.embed_dim // attn.num_heads
    heads = []
    for h in range(attn.num_heads):
        part = slice(h * size, (h + 1) * size)
        scores = q[..., part] @ k[..., part].transpose(-1, -2) / size**0.5
        if allowed is not None:
            scores = scores.masked_fill(~allowed[h], -torch.inf)
        heads.append(scores.softmax(-1) @ v[..., part])
    return heads


def finish(layer, x: Tensor, heads: list[Tensor]) -> Tensor:
    """The states after a layer, from those before it and the outputs of its heads."""
    x = x + layer.ls_1(F.linear(torch.cat(heads, -1), layer.attn.out_proj.weight, layer.attn.out_proj.bias))
    return x + layer.ls_2(layer.mlp(layer.ln_2(x)))


def block(layer, x: Tensor, allowed: Tensor) -> Tensor:
    return finish(layer, x, head_outputs(layer.attn, layer.ln_1(x), allowed))


def allowed_by_role(
    role: str, concept: str | None, token_names: list[str], originals: int, isolation: str, routing: str
):
    """The truth table of Eq. 8 and 9 for one head, entry by entry: [tokens, tokens]."""
    names = [None] * originals + list(token_names)  # None: an original token
    table = torch.zeros(len(names), len(names), dtype=torch.bool)
    for i, query in enumerate(names):
        for j, key in enumerate(names):
            if role == "mixed":
                table[i, j] = True
            elif role == "core_attribute":
                sees = key is None or key == concept
                if routing == "strict" and query is not None and key is None:
                    sees = query == concept
                table[i, j] = sees
            else:
                sees = not (query is None and key is not None)
                if (isolation == "two_way" or routing == "strict") and query is not None and key is None:
                    sees = False
                table[i, j] = sees
    return table


def image_features(model, pixels: Tensor, dear) -> tuple[Tensor, Tensor]:
    """Adapted class feature [batch, dim] and attribute features [batch, attributes, dim], not normalised."""
    visual, config = model.visual, dear.config
    x = visual._embeds(pixels)
    originals = x.shape[1]
    per = config.tokens_per_attribute
    names = [a for a in dear.attributes for _ in range(per)]
    heads = visual.transformer.resblocks[0].attn.num_heads
    for number, layer in enumerate(visual.transformer.resblocks, 1):
        if number < dear.first_layer:
            allowed = torch.ones(heads, originals, originals, dtype=torch.bool)
        else:
            if number == dear.first_layer:
                tokens = dear.tokens.expand(len(x), -1, -1)
            else:
                tokens = config.beta * dear.tokens + (1 - config.beta) * x[:, originals:]
            x = torch.cat([x[:, :originals], tokens], 1)
            roles = [dear.roles[number, h] for h in range(heads)]
            tables = [
                allowed_by_role(r.role, r.concept, names, originals, config.isolation, config.routing) for r in roles
            ]
            allowed = torch.stack(tables)
        x = block(layer, x, allowed)
    f_cls = visual.ln_post(x[:, 0]) @ visual.proj
    groups = x[:, originals:].unflatten(1, (len(dear.attributes), per))
    f_attributes = (visual.ln_post(groups) @ dear.projection).mean(2)
    return f_cls, f_attributes


def text_features(model, tokenizer, prompts: list[str], dear) -> Tensor:
    """Adapted text features [classes, dim], not normalised: all 77 + n places of every prompt."""
    ids = tokenizer(prompts)
    x = model.token_embedding(ids) + model.positional_embedding
    count, heads = len(dear.text_tokens), model.transformer.resblocks[0].attn.num_heads
    for number, layer in enumerate(model.transformer.resblocks, 1):
        if number == dear.first_text_layer:
            x = torch.cat([x[:, :1], dear.text_tokens.expand(len(x), -1, -1), x[:, 1:]], 1)
        elif number > dear.first_text_layer:
            mixed = dear.config.beta * dear.text_tokens + (1 - dear.config.beta) * x[:, 1 : 1 + count]
            x = torch.cat([x[:, :1], mixed, x[:, 1 + count :]], 1)
        size = x.shape[1]
        x = block(layer, x, torch.ones(heads, size, size, dtype=torch.bool).tril())
    eot = ids.argmax(-1) + count  # the EOT index moves by the number of text tokens
    return model.ln_final(x[torch.arange(len(x)), eot]) @ model.text_projection


def loss(model, tokenizer, pixels: Tensor, labels: Tensor, prompts: list[str], dear) -> tuple[Tensor, Tensor]:
    """Eq. 12-19, with a second pass of the unmodified model for the regulariser. Returns loss and logits."""
    config = dear.config
    f_cls, f_attributes = image_features(model, pixels, dear)
    w = text_features(model, tokenizer, prompts, dear)
    tau = model.logit_scale.exp()
    alpha = dear.fusion.softmax(0)
    logits = alpha[0] * tau * F.cosine_similarity(f_cls[:, None], w[None], dim=-1)
    for i in range(f_attributes.shape[1]):
        logits = logits + alpha[1 + i] * tau * F.cosine_similarity(f_attributes[:, i, None], w[None], dim=-1)
    with torch.no_grad():
        frozen_image, frozen_text = model.encode_image(pixels), model.encode_text(tokenizer(prompts))
    moved = 1 - F.cosine_similarity(f_cls, frozen_image, dim=-1).mean()
    moved = moved + 1 - F.cosine_similarity(w, frozen_text, dim=-1).mean()
    fusion = 1 - alpha[0] if config.fusion_loss == "linear" else -alpha[0].log()
    total = F.cross_entropy(logits, labels) + config.lambda_reg * moved + config.lambda_fusion * fusion
    return total, logits


def same_with_gradients(fast: Tensor, plain: Tensor, raw: dict) -> None:
    """Both outputs, and their gradients by the values of `raw`, are equal in fp64."""
    torch.testing.assert_close(fast, plain, atol=1e-10, rtol=1e-10)
    weights = torch.randn_like(fast)
    got, expected = (
        torch.autograd.grad((values * weights).sum(), list(raw.values()), allow_unused=True, retain_graph=True)
        for values in (fast, plain)
    )
    for one, other in zip(got, expected, strict=True):
        one, other = (torch.zeros(()) if g is None else g for g in (one, other))  # of beta 0
        torch.testing.assert_close(one, other.expand_as(one) if one.dim() else one, atol=1e-10, rtol=1e-10)

"""The peers written the slow, readable way: full sequences, all 77 places, all queries, textbook attention.

Nothing here imports the package's engine; blocks and attention are those of `naive`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

import naive


def everything(layer, size: int) -> Tensor:
    return torch.ones(layer.attn.num_heads, size, size, dtype=torch.bool)


def image(model, pixels: Tensor, tokens: dict[int, Tensor], beta: float = 1.0, allowed=None, blocks=None):
    """CLS state [batch, width] and token states: tokens of layer l are appended, replaced, mixed or carried."""
    x = model.visual._embeds(pixels)
    originals, there = x.shape[1], False
    for number, layer in enumerate(blocks or model.visual.transformer.resblocks, 1):
        if number in tokens:
            given = tokens[number].expand(len(x), -1, -1)
            if there:
                given = beta * given + (1 - beta) * x[:, originals:]
            x, there = torch.cat([x[:, :originals], given], 1), True
        mask = everything(layer, x.shape[1]) if allowed is None else allowed.expand(layer.attn.num_heads, -1, -1)
        x = naive.block(layer, x, mask)
    return x[:, 0], x[:, originals:]


def image_feature(model, cls: Tensor) -> Tensor:
    return model.visual.ln_post(cls) @ model.visual.proj


def text(model, tokenizer, sentences, tokens: dict[int, Tensor], slots=None, beta: float = 1.0, blocks=None) -> Tensor:
    """Text features, not normalised: tokens stand in `slots`, or are inserted behind BOT where they enter."""
    ids = tokenizer(list(sentences))
    x, eot = model.token_embedding(ids) + model.positional_embedding, ids.argmax(-1)
    first = min(tokens) if tokens else 0
    for number, layer in enumerate(blocks or model.transformer.resblocks, 1):
        if number in tokens:
            given = tokens[number].expand(len(x), -1, -1)
            count = given.shape[1]
            if number == first and slots is None:
                x, eot = torch.cat([x[:, :1], given, x[:, 1:]], 1), eot + count
            else:
                places = list(range(1, 1 + count) if slots is None else slots)
                if number > first:
                    given = beta * given + (1 - beta) * x[:, places]
                x = x.index_copy(1, torch.tensor(places), given)
        x = naive.block(layer, x, everything(layer, x.shape[1]).tril())
    return model.ln_final(x[torch.arange(len(x)), eot]) @ model.text_projection


def logits(model, features: Tensor, texts: Tensor) -> Tensor:
    return model.logit_scale.exp() * F.cosine_similarity(features[:, None], texts[None], dim=-1)

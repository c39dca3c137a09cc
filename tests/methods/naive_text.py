"""Text-side methods the slow, readable way: all 77 places of every class, all layers, textbook attention. Nothing here
imports the package."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parents[1]))
import naive


def text_features(
    model, tokenizer, sentences: Sequence[str], learned: Tensor, slots: Sequence[int], deeper: Mapping[int, Tensor]
) -> Tensor:
    """Normalised, [classes, dim]: `learned` [tokens, width] in the place of the words at `slots`; deeper: layer, from 1
    -> [classes, tokens, width], what the states there are overwritten with."""
    ids = tokenizer(sentences)
    words = [list(row) for row in model.token_embedding(ids)]
    for row in words:
        for place, token in zip(slots, learned, strict=True):
            row[place] = token
    x = torch.stack([torch.stack(row) for row in words]) + model.positional_embedding
    heads = model.transformer.resblocks[0].attn.num_heads
    for number, layer in enumerate(model.transformer.resblocks, 1):
        if number in deeper:
            first, last = slots[0], slots[-1] + 1
            x = torch.cat([x[:, :first], deeper[number], x[:, last:]], 1)
        x = naive.block(layer, x, torch.ones(heads, 77, 77, dtype=torch.bool).tril())
    eot = ids.argmax(-1)
    return F.normalize(model.ln_final(x[torch.arange(len(x)), eot]) @ model.text_projection, dim=-1)


def frozen_text(model, tokenizer, sentences: Sequence[str]) -> Tensor:
    with torch.no_grad():
        return model.encode_text(tokenizer(sentences), normalize=True)


def frozen_image(model, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        return model.encode_image(pixels, normalize=True)


def cosine_distance(text: Tensor, frozen: Tensor) -> Tensor:
    return 1 - F.cosine_similarity(text, frozen, dim=-1).mean()

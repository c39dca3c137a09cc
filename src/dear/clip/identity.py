"""The hashes in the identity of a backbone (`dear.core.identity`)."""

import hashlib
import json
from typing import Any

import torch
from torch import nn

_TEXTS = (
    "", "a", "X X X X", "A Photo of a Cat!", "a photo of a cat.", "Don't", "3.14 + 2", "  spaces  ", "naïve café",
    "Größe", "一只猫", "кошка", "قط", "🐈", "well-known", "snake_case", "C++ / C#", '"quoted"', "word " * 200,
    "the end</s>",
)  # fmt: skip


def hash_words(tokenizer: Any) -> str:
    """SHA-256 of the tokens of texts with capitals, marks, accents, other scripts, and one that is too long."""
    return hashlib.sha256(json.dumps(tokenizer(list(_TEXTS)).tolist()).encode()).hexdigest()


def hash_weights(model: nn.Module) -> str:
    """SHA-256 over names, shapes and fp32 bytes of all weights; independent of device and precision casts."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()

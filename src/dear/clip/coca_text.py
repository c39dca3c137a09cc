"""CoCa's text tower: causal, with a CLS token behind the words that is read in place of EOT.

OpenCLIP masks padding one place too late, and its weights were trained so. The result, for a text that is shorter than
the context: CLS sees all words, EOT and the first padding token, and nobody sees CLS, not even CLS itself. If a text
fills the context there is no padding token, and CLS sees itself. So two tokens more than in other causal towers are
packed for each prompt, and nothing else changes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip.prompts import Prompts
from dear.clip.text import TextTower
from dear.core.errors import DearError


class CocaText(TextTower):
    """OpenCLIP's text transformer with `embed_cls`."""

    layout = "text causal, read by CLS"

    def __init__(self, module: Any, tokenizer: Callable[..., Tensor]) -> None:
        super().__init__(module, tokenizer, None)
        self.context = module.context_length  # CLS has the place behind it
        self._cls: int = module.vocab_size  # stands for CLS among the ids

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        tokens, eot = super().tokenize(texts)
        words = torch.arange(self.context, device=eot.device) < eot[:, None]
        for i in ((tokens == self.module.pad_id) & words).any(1).nonzero().flatten().tolist():
            raise DearError(
                f"In the text {texts[i]!r} is a token that this backbone takes for padding: leave out its '!'."
            )
        return tokens, eot

    def prompts(self, texts: Sequence[str], slots: Sequence[int] = ()) -> Prompts:
        if not texts:
            return super().prompts(texts)
        tokens, eot = self.tokenize(texts)
        last = (eot + 2).clamp(max=self.context)  # the place of CLS: behind EOT and one padding token, if there is room
        tokens = F.pad(tokens, (0, 1)).scatter(1, last[:, None], self._cls)
        return Prompts.pack(tokens, last, slots, blind=eot < self.context - 1)

    def embed(self, prompts: Prompts) -> Tensor:
        is_cls = (prompts.ids == self._cls)[:, None]
        places = self.module.positional_embedding
        words = self.module.token_embedding(prompts.ids.clamp(max=self._cls - 1)) + places[prompts.positions]
        return torch.where(is_cls, self.module.cls_emb + places[self.context], words)

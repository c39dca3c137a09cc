"""Text towers of Hugging Face: called as a whole, with learned words at their first layer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip.features import FeatureText, tokens_of
from dear.clip.half import in_own_precision
from dear.clip.tokens import LearnedTokens
from dear.clip.whole_text import WholePrompts, first_word_of, require_same_words
from dear.core.runtime import autocast
from dear.parallel import processes


class WordsText(FeatureText):
    """OpenCLIP's `HFTextEncoder`. Padding is masked, and positions are added inside.

    Learned words take the place of words in front of the class name, among the embeddings [prompts, places, width].
    """

    tier = "words"

    def __init__(self, model: Any, tokenizer: Callable[..., Tensor]) -> None:
        super().__init__(model, tokenizer)
        self.module = model.text
        self._embedding = self.module.transformer.get_input_embeddings()
        self.width: int = self._embedding.weight.shape[1]
        self.first_word, self._after_words = first_word_of(tokenizer)

    def prompts(self, texts: Sequence[str], slots: Sequence[int] = ()) -> WholePrompts:
        """`slots`: positions, counted from 1, of the words that learned tokens replace."""
        tokens = tokens_of(self.tokenizer, texts, self.context).to(self._embedding.weight.device)
        tokens = tokens[:, : int(self._seen(tokens).sum(1).max())]  # masked padding changes nothing
        if not slots:
            return WholePrompts(tokens, tokens[:, 0])
        at = torch.tensor([slot - 1 + self.first_word for slot in slots], device=tokens.device)
        require_same_words(tokens, at)
        return WholePrompts(tokens, tokens[:, 0], at)

    def word_embeddings(self, text: str) -> Tensor:
        """Embeddings of the tokens of `text` alone, [tokens, width]."""
        tokens = tokens_of(self.tokenizer, [text], self.context)[0, self.first_word :]
        count = int((tokens == self._after_words).int().argmax())
        return self._embedding(tokens[:count].to(self._embedding.weight.device)).detach()

    def embed(self, prompts: WholePrompts) -> Tensor:
        """[prompts, places, width]"""
        return self._embedding(prompts.ids)

    def add_positions(self, raw: Tensor, prompts: WholePrompts) -> Tensor:
        return raw

    @in_own_precision
    def features(self, classes: Any, tokens: LearnedTokens | None = None) -> Tensor:
        """Class features, normalised, [classes, dim], with learned words in the slots."""
        x, prompts = classes.states, classes.prompts
        if processes.in_step():
            own, rows, chosen = prompts.own
            tokens = tokens if tokens is None else tokens.of(chosen)
            return processes.gather(self._run(x[rows], own, tokens), len(prompts))
        return self._run(x, prompts, tokens)

    def _run(self, x: Tensor, prompts: WholePrompts, tokens: LearnedTokens | None) -> Tensor:
        if tokens is not None and prompts.slots is not None:
            x = x.index_copy(1, prompts.slots, tokens.raw[1].expand(len(x), -1, -1).to(x.dtype))
        mask = self._seen(prompts.ids)
        with autocast(x.device, self.precision):
            out = self.module.transformer(inputs_embeds=x, attention_mask=mask)
            features = self.module.proj(self.module.pooler(out, mask))
        return F.normalize(features.to(x.dtype), dim=-1)

    def _seen(self, ids: Tensor) -> Tensor:
        return (ids != self.module.config.pad_token_id).long()

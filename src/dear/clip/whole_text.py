"""Text towers without a causal mask, in which every token attends to all others.

SigLIP, CLIPA and MobileCLIP were trained with texts padded to the full context, without a mask for the padding. After
the first layer the padding of each prompt has states of its own, so no token can be left out or shared, and the context
cannot be shortened, without a change of the features. The cost is that of all places of all prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip.attention import finish_block, merge_heads, normed_input, project_keys_values, project_queries
from dear.clip.features import FeatureText
from dear.clip.half import in_own_precision
from dear.clip.prompts import tokens_of
from dear.clip.text import TextTower, recomputed
from dear.clip.tokens import LearnedTokens
from dear.core.errors import DearError
from dear.core.runtime import autocast
from dear.parallel import processes


@dataclass(frozen=True)
class WholePrompts:
    """Tokenised texts with their padding. The interface is that of `Prompts`."""

    ids: Tensor  # [prompts, context]
    read: Tensor  # the place of each prompt whose state becomes its feature, [prompts]
    slots: Tensor | None = None  # places of the words that learned tokens replace, [tokens]
    places: processes.Places | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, chosen: Tensor) -> tuple["WholePrompts", Tensor]:
        """Some of the prompts, and the positions of their states among all: x[places]."""
        return replace(self, ids=self.ids[chosen], read=self.read[chosen]), chosen

    @cached_property
    def own(self) -> tuple["WholePrompts", Tensor, Tensor]:
        """`subset` of the local prompts, and their indices."""
        chosen = torch.tensor(processes.local_rows(range(len(self))), device=self.ids.device)
        own, _ = self.subset(chosen)
        return replace(own, places=lambda rows: (chosen, len(self))), chosen, chosen


class WholeText(TextTower):
    """OpenCLIP's text transformer without a mask. States are [prompts, places, width].

    Learned tokens are in the slots of words, or behind the sequence, without a position: under no mask the order of
    keys does not matter, and the place that is read stays.
    """

    layout = "text whole"

    def __init__(self, module: Any, tokenizer: Callable[..., Tensor], pool: str, eos_id: int | None) -> None:
        super().__init__(module, tokenizer, eos_id if pool == "eos" else None)
        self.pool = pool
        self.first_word, self._after_words = first_word_of(tokenizer)

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        tokens, read = super().tokenize(texts)
        if self.pool in ("last", "first"):
            read = torch.full_like(read, self.context - 1 if self.pool == "last" else 0)
        return tokens, read

    def prompts(self, texts: Sequence[str], slots: Sequence[int] = ()) -> Any:
        tokens, read = self.tokenize(texts)
        return WholePrompts(tokens, read, word_places(tokens, slots, self.first_word))

    def put_words(self, states: Tensor, slots: Tensor, raw: Tensor) -> Tensor:
        at = slots - 1 + self.first_word
        placed = raw + self.module.positional_embedding[at].detach()
        return states.index_copy(1, at, placed.expand(len(states), -1, -1).to(states.dtype))

    def word_embeddings(self, text: str) -> Tensor:
        tokens = self.tokenize([text])[0][0, self.first_word :]
        count = int((tokens == self._after_words).int().argmax())
        return self.module.token_embedding(tokens[:count]).detach()

    def embed(self, prompts: Any) -> Tensor:
        return self.module.token_embedding(prompts.ids) + self.module.positional_embedding

    def run(self, x: Tensor, prompts: Any, first: int, last: int) -> Tensor:
        for block in self.blocks[first - 1 : last]:
            x = self._run_whole(block, x)
        return x

    def _eot_states(self, x: Tensor, prompts: Any, first: int, tokens: LearnedTokens | None) -> Tensor:
        run = recomputed(self._run_whole, x.shape[0] * x.shape[1], prompts.places)
        slots = prompts.slots
        if tokens is not None and slots is None:
            slots = torch.arange(x.shape[1], x.shape[1] + len(tokens), device=x.device)
            x = F.pad(x, (0, 0, 0, len(tokens)))
        for layer in range(first, self.layers + 1):
            if tokens is not None and layer in tokens.raw:
                learned = tokens.into(layer, None if layer == first else x.index_select(1, slots))
                x = x.index_copy(1, slots, learned.expand(len(x), -1, -1).to(x.dtype))
            x = run(self.blocks[layer - 1], x, prompts.read if layer == self.layers else None)
        return x

    def _run_whole(self, block: Any, x: Tensor, read: Tensor | None = None) -> Tensor:
        """One block on [prompts, places, width]; with `read` only the state at that place, [prompts, width]."""
        normed = normed_input(block, x)
        keys, values = project_keys_values(block.attn, normed)
        if read is None:
            out = F.scaled_dot_product_attention(project_queries(block.attn, normed), keys, values)
            return finish_block(block, x, merge_heads(out))
        at = read[:, None, None].expand(-1, 1, x.shape[-1])
        out = F.scaled_dot_product_attention(project_queries(block.attn, normed.gather(1, at)), keys, values)
        return finish_block(block, x.gather(1, at), merge_heads(out))[:, 0]


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
        return WholePrompts(tokens, tokens[:, 0], word_places(tokens, slots, self.first_word))

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


def first_word_of(tokenizer: Callable[..., Tensor]) -> tuple[int, int]:
    """The place of the first word (1 where there is a token before the words), and the token behind the last one."""
    one, other, empty = tokenizer(["a", "b", ""])
    first = int(one[0] == other[0])
    return first, int(empty[first])


def word_places(tokens: Tensor, slots: Sequence[int], first_word: int) -> Tensor | None:
    """The places of slots, counted from 1, which must be the same word in all prompts [prompts, context]."""
    if not slots:
        return None
    at = torch.tensor(slots, device=tokens.device) - 1 + first_word
    if bool((tokens[:, at] != tokens[:1, at]).any()):
        raise DearError("Learned tokens can only replace words before the class name, which are one token each.")
    return at

"""The text tower, without repeated computation and without tokens after EOT.

Under a causal mask a token attends only to tokens before it. So tokens after EOT do not matter, and the prefix that all
prompts share (BOT, learned tokens, the template's first words) has the same states in every prompt: it is computed
once, and the few remaining tokens of each prompt attend to it. All tokens are packed into one matrix,
[shared + own, width], so that every linear layer is one product; only attention unfolds the own tokens to
[prompts, longest, ...].
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dear.clip.attention import finish_block, merge_heads, project_keys_values, project_queries
from dear.clip.tokens import LearnedTokens
from dear.core.errors import DearError, TextTooLongError
from dear.parallel import processes

_MANY = 2000  # packed tokens, of about 400 classes, whose activations take over a gigabyte: then checkpointing is used


@dataclass(frozen=True)
class Prompts:
    """Tokenised texts, packed: first the tokens that all share, then each prompt's own, EOT last."""

    ids: Tensor  # [packed]
    positions: Tensor  # [packed]
    shared: int
    filled: Tensor  # [prompts, longest], True at an own token, False at padding
    slots: Tensor | None = None  # positions of the words that learned tokens replace, [tokens], all in the shared part
    places: processes.Places | None = None  # of local prompts: their positions among those of all processes

    @classmethod
    def pack(cls, tokens: Tensor, eot: Tensor, slots: Sequence[int] = ()) -> "Prompts":
        """tokens [prompts, context]; eot [prompts], the position of each EOT."""
        shortest = int(eot.min())  # at least EOT is each prompt's own
        same = (tokens[:, :shortest] == tokens[:1, :shortest]).all(0)
        shared = int(same.int().cumprod(0).sum())
        if any(slot >= shared for slot in slots):
            raise DearError("Learned tokens can only replace words before the class name.")
        device = tokens.device
        lengths = eot + 1 - shared
        filled = torch.arange(int(lengths.max()), device=device) < lengths[:, None]
        own = tokens[:, shared : shared + filled.shape[1]][filled]
        place = (shared + torch.arange(filled.shape[1], device=device)).expand_as(filled)
        return cls(
            torch.cat([tokens[0, :shared], own]),
            torch.cat([torch.arange(shared, device=device), place[filled]]),
            shared,
            filled,
            torch.tensor(slots, device=device) if slots else None,
        )

    def __len__(self) -> int:
        return len(self.filled)

    @property
    def longest(self) -> int:
        return self.filled.shape[1]

    @cached_property
    def eot(self) -> Tensor:
        """The position of each EOT among the own tokens, [prompts]."""
        return self.filled.sum(1).cumsum(0) - 1

    def subset(self, chosen: Tensor) -> tuple["Prompts", Tensor]:
        """Some of the prompts, and the positions of their packed states among all: x[places]."""
        filled = self.filled[chosen]
        index = torch.zeros_like(self.filled, dtype=torch.long)
        index[self.filled] = torch.arange(self.shared, len(self.ids), device=index.device)
        places = torch.cat([torch.arange(self.shared, device=index.device), index[chosen][filled]])
        filled = filled[:, : int(filled.sum(1).max())]
        return Prompts(self.ids[places], self.positions[places], self.shared, filled, self.slots), places

    @cached_property
    def own(self) -> tuple["Prompts", Tensor, Tensor]:
        """`subset` of the local prompts, and their indices."""
        chosen = torch.tensor(processes.local_rows(range(len(self))), device=self.ids.device)
        own, packed = self.subset(chosen)

        def places(rows: int) -> tuple[Tensor, int]:
            return (packed, len(self.ids)) if rows == len(packed) else (chosen, len(self))

        return replace(own, places=places), packed, chosen


def second_pass_places(places: processes.Places | None) -> tuple[Any, Any]:
    """Contexts of a checkpointed block: dropout of the recomputation takes the same rows as in the first pass."""
    return nullcontext(), processes.row_places(places)


def unshare(x: Tensor, prompts: Prompts, shared: int, places: Tensor) -> tuple[Tensor, Prompts, Tensor]:
    """Repacks states [shared + own, width] so that prompts may differ at shared places [tokens]; only BOT stays shared.

    `shared` includes inserted learned tokens. Returns the new states, their prompts, and the places, now one row per
    prompt, [prompts, tokens].
    """
    device, extra = x.device, shared - 1
    lengths = prompts.filled.sum(1)
    starts = shared + lengths.cumsum(0) - lengths
    before = torch.arange(1, shared, device=device).expand(len(prompts), -1)
    index = torch.cat([before, starts[:, None] + torch.arange(prompts.longest, device=device)], 1)
    filled = F.pad(prompts.filled, (extra, 0), value=True)
    order = torch.cat([torch.zeros(1, dtype=torch.long, device=device), index[filled]])
    lengths = lengths + extra
    own = 1 + (lengths.cumsum(0) - lengths)[:, None] + places - 1
    return x[order], replace(prompts, shared=1, filled=filled), own


class ClassTexts(NamedTuple):
    """The constant part of the text tower for some class names (or sentences)."""

    names: tuple[str, ...]
    prompts: Any  # Prompts; None, as the states, where there is no text tower to run
    first_layer: int  # the first adapted text layer
    states: Any  # packed, before that layer, [packed, width]
    frozen: Tensor  # features of unadapted CLIP, normalised, [names, dim]


class TextTower:
    """OpenCLIP's causal text transformer as a list of blocks. Layers count from 1."""

    tier = "full"
    first_word = 1  # behind BOT
    layout = "text causal"

    def __init__(self, module: Any, tokenizer: Callable[..., Tensor], end: int | None) -> None:
        """`module` has token_embedding, transformer, ...; `end` is the id of EOT, None: the largest id."""
        self.module, self.tokenizer, self.end = module, tokenizer, end
        self.blocks: Sequence[Any] = module.transformer.resblocks
        self.layers = len(self.blocks)
        self.heads: int = self.blocks[0].attn.num_heads
        self.width: int = self.blocks[0].attn.out_proj.in_features
        self.context: int = module.positional_embedding.shape[0]

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Texts -> tokens [prompts, context] and the positions of EOT [prompts]; refuses texts that are too long."""
        tokens = self.tokenizer(list(texts))
        eot = self._find_eot(tokens)
        for i in (eot == self.context - 1).nonzero().flatten().tolist():
            # The tokenizer truncates silently: with one more place, EOT moves if the text was cut.
            if int(self._find_eot(self.tokenizer([texts[i]], self.context + 1))) >= self.context:
                raise TextTooLongError(
                    f"The text {texts[i]!r} is longer than the {self.context} tokens this backbone reads: shorten it."
                )
        device = self.module.positional_embedding.device
        return tokens.to(device), eot.to(device)

    def _find_eot(self, tokens: Tensor) -> Tensor:
        return tokens.argmax(-1) if self.end is None else (tokens == self.end).int().argmax(-1)

    def prompts(self, texts: Sequence[str], slots: Sequence[int] = ()) -> Prompts:
        """`slots`: positions (BOT has 0) of the words that learned tokens replace."""
        if not texts:
            raise DearError("There is no text to encode: give at least one class name or phrase.")
        return Prompts.pack(*self.tokenize(texts), slots)

    def word_embeddings(self, text: str) -> Tensor:
        """Embeddings of the tokens of `text` alone, without BOT, EOT and positions, [tokens, width]."""
        tokens, eot = self.tokenize([text])
        return self.module.token_embedding(tokens[0, 1 : int(eot)]).detach()

    def add_positions(self, raw: Tensor, prompts: Prompts) -> Tensor:
        """Learned tokens [..., tokens, width] plus the positional embeddings of the words they replace, for layer 1."""
        return raw + self.module.positional_embedding[prompts.slots].detach()

    def put_words(self, states: Tensor, slots: Sequence[int], raw: Tensor) -> Tensor:
        """Embeddings of prompts with other words [tokens, width] in some shared slots (BOT has 0), for layer 1."""
        places = torch.tensor(slots, dtype=torch.long, device=states.device)
        placed = raw + self.module.positional_embedding[places].detach()
        return states.index_copy(0, places, placed.to(states.dtype))

    def embed(self, prompts: Prompts) -> Tensor:
        """Packed token embeddings with their positions, [packed, width]."""
        return self.module.token_embedding(prompts.ids) + self.module.positional_embedding[prompts.positions]

    def run(self, x: Tensor, prompts: Prompts, first: int, last: int) -> Tensor:
        """Layers first..last on packed states [packed, width], without learned tokens."""
        for block in self.blocks[first - 1 : last]:
            x = self._run_block(block, x, prompts, x.shape[0] - len(prompts.ids) + prompts.shared)
        return x

    @torch.no_grad()
    def trunk(self, prompts: Prompts, last: int) -> Tensor:
        """Packed states after layer `last`, without a graph, [packed, width]; constant for a list of classes."""
        return self.run(self.embed(prompts), prompts, 1, last)

    def eot_states(self, x: Tensor, prompts: Prompts, first: int, tokens: LearnedTokens | None = None) -> Tensor:
        """Layers first..L on packed states -> EOT states [prompts, width]; in the last layer only EOT is a query.

        Learned tokens, if any, enter at `first`: in the slots of the prompts if there are any, else right after BOT,
        which moves the words (Eq. 6). Either way they are in the shared part, until a layer gets different tokens per
        prompt, [prompts, tokens, width]. In a training step each process computes its local prompts.
        """
        if processes.in_step():
            own, packed, chosen = prompts.own
            tokens = tokens if tokens is None else tokens.of(chosen)
            with processes.row_places(own.places):
                return processes.gather(self._eot_states(x[packed], own, first, tokens), len(prompts))
        return self._eot_states(x, prompts, first, tokens)

    def _eot_states(self, x: Tensor, prompts: Prompts, first: int, tokens: LearnedTokens | None) -> Tensor:
        shared, places, run = prompts.shared, prompts.slots, self._run_block
        if len(x) > _MANY and torch.is_grad_enabled():
            contexts = partial(second_pass_places, prompts.places)
            run = partial(checkpoint, self._run_block, use_reentrant=False, context_fn=contexts)
        if tokens is not None and places is None:
            x = torch.cat([x[:1], tokens.into(first, None), x[1:]])
            places = torch.arange(1, 1 + len(tokens), device=x.device)
            shared += len(tokens)
        for layer in range(first, self.layers + 1):
            if tokens is not None and places is not None and layer in tokens.raw:
                if tokens.raw[layer].dim() == 3 and places.dim() == 1:
                    x, prompts, places = unshare(x, prompts, shared, places)
                    shared = prompts.shared
                learned = tokens.into(layer, None if layer == first else x[places])
                x = x.index_copy(0, places.flatten(), learned.expand(*places.shape, -1).flatten(0, -2).to(x.dtype))
            queries = prompts.eot if layer == self.layers else None
            x = run(self.blocks[layer - 1], x, prompts, shared, queries)
        return x

    def project(self, eot: Tensor) -> Tensor:
        """EOT states [prompts, width] -> text features [prompts, dim], not normalised."""
        eot, projection = self.module.ln_final(eot), self.module.text_projection
        if projection is None:
            return eot
        return projection(eot) if isinstance(projection, nn.Linear) else eot @ projection

    def features(self, classes: ClassTexts, tokens: LearnedTokens | None = None) -> Tensor:
        """Class features, normalised, [classes, dim], with learned tokens from the first adapted layer on."""
        eot = self.eot_states(classes.states, classes.prompts, classes.first_layer, tokens)
        return F.normalize(self.project(eot), dim=-1)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Texts -> text features [texts, dim], as OpenCLIP's `encode_text`, not normalised."""
        prompts = self.prompts(texts)
        return self.project(self.eot_states(self.embed(prompts), prompts, 1))

    def _run_block(self, block: Any, x: Tensor, prompts: Prompts, shared: int, eot: Tensor | None = None) -> Tensor:
        """One block on packed states [shared + own, width].

        With `eot` (positions of EOT among the own tokens) it returns only those states, [prompts, width].
        """
        normed = block.ln_1(x)
        keys, values = project_keys_values(block.attn, normed)  # [heads, packed, head_dim]
        own_keys, own_values = (self._unfold(t[:, shared:], prompts, t[:, :shared]) for t in (keys, values))
        if eot is not None:  # the last own token: it attends to all but padding
            q = project_queries(block.attn, normed[shared:][eot][:, None])  # [prompts, heads, 1, head_dim]
            mask = F.pad(prompts.filled, (shared, 0), value=True)[:, None, None]
            out = F.scaled_dot_product_attention(q, own_keys, own_values, attn_mask=mask)
            return finish_block(block, x[shared:][eot], merge_heads(out)[:, 0])
        q = project_queries(block.attn, normed)
        shared_out = F.scaled_dot_product_attention(
            q[None, :, :shared], keys[None, :, :shared], values[None, :, :shared], is_causal=True
        )
        own = self._unfold(q[:, shared:], prompts)  # [prompts, heads, longest, head_dim]
        mask = self._causal(prompts, shared, x)
        own_out = F.scaled_dot_product_attention(own, own_keys, own_values, attn_mask=mask)
        packed = torch.cat([merge_heads(shared_out)[0], merge_heads(own_out)[prompts.filled]])
        return finish_block(block, x, packed)

    def _unfold(self, own: Tensor, prompts: Prompts, before: Tensor | None = None) -> Tensor:
        """Packed own tokens [heads, own, d] -> [prompts, heads, (shared +) longest, d], padded with zeros."""
        heads, _, dim = own.shape
        unfolded = own.new_zeros(len(prompts), prompts.longest, heads, dim)
        unfolded = unfolded.masked_scatter(prompts.filled[..., None, None], own.transpose(0, 1)).transpose(1, 2)
        if before is None:
            return unfolded
        return torch.cat([before.expand(len(prompts), -1, -1, -1), unfolded], dim=2)

    @staticmethod
    def _causal(prompts: Prompts, shared: int, like: Tensor) -> Tensor:
        """Own token i attends to all shared tokens and to own tokens up to i: [longest, shared + longest], boolean."""
        size = prompts.longest
        return torch.ones(size, shared + size, dtype=torch.bool, device=like.device).tril(shared)

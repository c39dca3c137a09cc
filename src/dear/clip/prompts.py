"""Tokenised prompts, packed into one row of tokens, and the integer positions that follow from their lengths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.core.errors import DearError, TextTooLongError
from dear.core.runtime import once
from dear.parallel import processes


def tokens_of(tokenizer: Callable[..., Tensor], texts: Sequence[str], context: int) -> Tensor:
    """Texts -> tokens [texts, context]; refuses texts that are too long.

    Tokenizers cut without a word: with more room, the tokens of a text that was cut are others, or go on.
    """
    if not texts:
        raise DearError("There is no text to encode: give at least one class name or phrase.")
    tokens, padding = tokenizer(list(texts), context), tokenizer([""], context + 2)[0, -1]
    filled = (tokens[:, -2:] != padding).any(1)  # the last one alone may be an end-of-text that is also the padding
    for i in filled.nonzero().flatten().tolist():
        longer = tokenizer([texts[i]], context + 2)[0]
        if bool((longer[:context] != tokens[i]).any() | (longer[context:] != padding).any()):
            raise TextTooLongError(
                f"The text {texts[i]!r} is longer than the {context} tokens this backbone reads: shorten it."
            )
    return tokens


@dataclass(frozen=True)
class Prompts:
    """Tokenised texts, packed: first the tokens that all share, then each prompt's own, EOT last.

    Everything that follows from the lengths of the prompts is computed once, as integer positions: a boolean index in
    every step would make the host wait for a GPU, to learn how many rows it selects.
    """

    ids: Tensor  # [packed]
    positions: Tensor  # [packed]
    shared: int
    filled: Tensor  # [prompts, longest], True at an own token, False at padding
    slots: Tensor | None = None  # positions of the words that learned tokens replace, [tokens], all in the shared part
    places: processes.Places | None = None  # of local prompts: their positions among those of all processes
    blind: Tensor | None = None  # True where the last token (CoCa's CLS) does not attend to itself, [prompts]
    padded: bool = False  # each prompt takes `longest` places of the packed states, whatever its length
    _by_shared: dict[tuple[str, int], Any] = field(default_factory=dict, repr=False)  # masks and orders, computed once

    @classmethod
    def pack(cls, tokens: Tensor, eot: Tensor, slots: Sequence[int] = (), blind: Tensor | None = None) -> "Prompts":
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
            blind=blind,
        )

    def __len__(self) -> int:
        return len(self.filled)

    @property
    def longest(self) -> int:
        return self.filled.shape[1]

    @cached_property
    def own_places(self) -> Tensor:
        """The positions of the own tokens in [prompts * longest], as `filled` has them."""
        filled = self.filled.flatten()
        return torch.arange(len(filled), device=filled.device) if self.padded else filled.nonzero()[:, 0]

    @cached_property
    def eot(self) -> Tensor:
        """The position of each EOT among the own tokens, [prompts]."""
        lengths = self.filled.sum(1)
        if self.padded:
            return torch.arange(len(self), device=lengths.device) * self.longest + lengths - 1
        return lengths.cumsum(0) - 1

    def causal_mask(self, shared: int) -> Tensor:
        """Own token i attends to all shared tokens and to own tokens up to i: [longest, shared + longest], boolean;
        [prompts, 1, longest, shared + longest] where a last token is blind."""

        def compute() -> Tensor:
            shape = (self.longest, shared + self.longest)
            causal = torch.ones(shape, dtype=torch.bool, device=self.filled.device).tril(shared)
            return causal if self.blind is None else causal & self._seen(shared)

        return self._once("causal", shared, compute)

    def eot_mask(self, shared: int) -> Tensor:
        """EOT attends to all but padding: [prompts, 1, 1, shared + longest], boolean."""
        return self._once("eot", shared, lambda: self._seen(shared))

    def _seen(self, shared: int) -> Tensor:
        """The tokens that somebody attends to: [prompts, 1, 1, shared + longest]."""
        seen = self.filled
        if self.blind is not None:
            last = seen.sum(1, keepdim=True) - 1
            seen = seen.scatter(1, last, ~self.blind[:, None])
        return F.pad(seen, (shared, 0), value=True)[:, None, None]

    def unshared(self, shared: int, places: Tensor) -> tuple[Tensor, "Prompts", Tensor]:
        """The plan of `unshare`: the order of states [packed], the new prompts, and the places [prompts, tokens]."""

        def compute() -> tuple[Tensor, Prompts, Tensor]:
            device, extra = self.filled.device, shared - 1
            lengths = self.filled.sum(1)
            starts = shared + lengths.cumsum(0) - lengths
            before = torch.arange(1, shared, device=device).expand(len(self), -1)
            index = torch.cat([before, starts[:, None] + torch.arange(self.longest, device=device)], 1)
            filled = F.pad(self.filled, (extra, 0), value=True)
            order = torch.cat([torch.zeros(1, dtype=torch.long, device=device), index[filled]])
            lengths = lengths + extra
            own = 1 + (lengths.cumsum(0) - lengths)[:, None] + places - 1
            return order, replace(self, shared=1, filled=filled, _by_shared={}), own

        return self._once("unshared", shared, compute)

    def _once(self, what: str, shared: int, compute: Callable[[], Any]) -> Any:
        return once(self._by_shared, (what, shared), compute)

    def subset(self, chosen: Tensor) -> tuple["Prompts", Tensor]:
        """Some of the prompts, and the positions of their packed states among all: x[places].

        Prompts that are chosen on a GPU are padded, so that the host need not wait to learn their lengths.
        """
        index = torch.zeros_like(self.filled, dtype=torch.long).flatten()
        index = index.index_copy(0, self.own_places, torch.arange(self.shared, len(self.ids), device=index.device))
        filled, index = self.filled[chosen], index.view_as(self.filled)[chosen]
        padded = not chosen.is_cpu
        packed = index.flatten() if padded else index[filled]
        places = torch.cat([torch.arange(self.shared, device=index.device), packed])
        filled = filled if padded else filled[:, : int(filled.sum(1).max())]
        blind = None if self.blind is None else self.blind[chosen]
        own = Prompts(self.ids[places], self.positions[places], self.shared, filled, self.slots, None, blind, padded)
        return own, places

    @cached_property
    def own(self) -> tuple["Prompts", Tensor, Tensor]:
        """`subset` of the local prompts, and their indices."""
        chosen = torch.tensor(processes.local_rows(range(len(self))))
        own, packed = self.subset(chosen)
        chosen = chosen.to(self.ids.device)

        def places(rows: int) -> tuple[Tensor, int]:
            return (packed, len(self.ids)) if rows == len(packed) else (chosen, len(self))

        return replace(own, places=places), packed, chosen


def unshare(x: Tensor, prompts: Prompts, shared: int, places: Tensor) -> tuple[Tensor, Prompts, Tensor]:
    """Repacks states [shared + own, width] so that prompts may differ at shared places [tokens]; only BOT stays shared.

    `shared` includes inserted learned tokens. Returns the new states, their prompts, and the places, now one row per
    prompt, [prompts, tokens].
    """
    order, prompts, places = prompts.unshared(shared, places)
    return x[order], prompts, places

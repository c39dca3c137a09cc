"""The text tower, without repeated computation and without tokens after EOT.

Under a causal mask a token attends only to tokens before it. So tokens after EOT do not matter, and the prefix that all
prompts share (BOT, learned tokens, the template's first words) has the same states in every prompt: it is computed
once, and the few remaining tokens of each prompt attend to it. All tokens are packed into one matrix,
[shared + own, width], so that every linear layer is one product; only attention unfolds the own tokens to
[prompts, longest, ...].
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dear.clip.attention import finish_block, merge_heads, normed_input, project_keys_values, project_queries
from dear.clip.half import halve_blocks, in_own_precision
from dear.clip.prompts import Prompts, tokens_of, unshare
from dear.clip.tokens import LearnedTokens
from dear.core.errors import DearError
from dear.parallel import processes

_MANY = 2000  # packed tokens, of about 400 classes, whose activations take over a gigabyte: then checkpointing is used


def recomputed(run: Callable[..., Tensor], tokens: int, places: processes.Places | None) -> Callable[..., Tensor]:
    """`run`, a block of a text tower, whose activations for many tokens are computed again for gradients, not stored.

    Dropout of the second pass takes the same rows as in the first.
    """
    if tokens <= _MANY or not torch.is_grad_enabled():
        return run

    def contexts() -> tuple[Any, Any]:
        return nullcontext(), processes.row_places(places)

    return partial(checkpoint, run, use_reentrant=False, context_fn=contexts)


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
    precision = torch.float32  # of its linear layers

    def __init__(self, module: Any, tokenizer: Callable[..., Tensor], end: int | None) -> None:
        """`module` has token_embedding, transformer, ...; `end` is the id of EOT, None: the largest id."""
        self.module, self.tokenizer, self.end = module, tokenizer, end
        self.blocks: Sequence[Any] = module.transformer.resblocks
        self.layers = len(self.blocks)
        self.heads: int = self.blocks[0].attn.num_heads
        self.width: int = self.blocks[0].attn.out_proj.in_features
        self.context: int = module.positional_embedding.shape[0]

    def halve(self, dtype: torch.dtype) -> None:
        """Casts the weights of the blocks to half, once."""
        halve_blocks(self.blocks, dtype)
        self.precision = dtype

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Texts -> tokens [prompts, context] and the positions of EOT [prompts]; refuses texts that are too long."""
        tokens = tokens_of(self.tokenizer, texts, self.context)
        device = self.module.positional_embedding.device
        return tokens.to(device), self._find_eot(tokens).to(device)

    def _find_eot(self, tokens: Tensor) -> Tensor:
        return tokens.argmax(-1) if self.end is None else (tokens == self.end).int().argmax(-1)

    def prompts(self, texts: Sequence[str], slots: Sequence[int] = ()) -> Prompts:
        """`slots`: positions (BOT has 0) of the words that learned tokens replace."""
        return Prompts.pack(*self.tokenize(texts), slots)

    def word_embeddings(self, text: str) -> Tensor:
        """Embeddings of the tokens of `text` alone, without BOT, EOT and positions, [tokens, width]."""
        tokens, eot = self.tokenize([text])
        return self.module.token_embedding(tokens[0, 1 : int(eot)]).detach()

    def add_positions(self, raw: Tensor, prompts: Prompts) -> Tensor:
        """Learned tokens [..., tokens, width] plus the positional embeddings of the words they replace, for layer 1."""
        return raw + self.module.positional_embedding[prompts.slots].detach()

    def put_words(self, states: Tensor, slots: Tensor, raw: Tensor) -> Tensor:
        """Embeddings of prompts with other words [tokens, width] in some shared slots (BOT has 0), for layer 1."""
        placed = raw + self.module.positional_embedding[slots].detach()
        return states.index_copy(0, slots, placed.to(states.dtype))

    def embed(self, prompts: Prompts) -> Tensor:
        """Packed token embeddings with their positions, [packed, width]."""
        return self.module.token_embedding(prompts.ids) + self.module.positional_embedding[prompts.positions]

    def run(self, x: Tensor, prompts: Prompts, first: int, last: int) -> Tensor:
        """Layers first..last on packed states [packed, width], without learned tokens."""
        for block in self.blocks[first - 1 : last]:
            x = self._run_block(block, x, prompts, x.shape[0] - len(prompts.ids) + prompts.shared)
        return x

    @torch.no_grad()
    @in_own_precision
    def trunk(self, prompts: Prompts, last: int) -> Tensor:
        """Packed states after layer `last`, without a graph, [packed, width]; constant for a list of classes."""
        return self.run(self.embed(prompts), prompts, 1, last)

    @in_own_precision
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
        shared, places, run = prompts.shared, prompts.slots, recomputed(self._run_block, len(x), prompts.places)
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

    @in_own_precision
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
        normed = normed_input(block, x)
        keys, values = project_keys_values(block.attn, normed)  # [heads, packed, head_dim]
        own_keys, own_values = (self._unfold(t[:, shared:], prompts, t[:, :shared]) for t in (keys, values))
        if eot is not None:  # the last own token: it attends to all but padding
            q = project_queries(block.attn, normed[shared:][eot][:, None])  # [prompts, heads, 1, head_dim]
            out = F.scaled_dot_product_attention(q, own_keys, own_values, attn_mask=prompts.eot_mask(shared))
            return finish_block(block, x[shared:][eot], merge_heads(out)[:, 0])
        q = project_queries(block.attn, normed)
        shared_out = F.scaled_dot_product_attention(
            q[None, :, :shared], keys[None, :, :shared], values[None, :, :shared], is_causal=True
        )
        own = self._unfold(q[:, shared:], prompts)  # [prompts, heads, longest, head_dim]
        own_out = F.scaled_dot_product_attention(own, own_keys, own_values, attn_mask=prompts.causal_mask(shared))
        own_out = merge_heads(own_out).flatten(0, 1).index_select(0, prompts.own_places)
        return finish_block(block, x, torch.cat([merge_heads(shared_out)[0], own_out]))

    def _unfold(self, own: Tensor, prompts: Prompts, before: Tensor | None = None) -> Tensor:
        """Packed own tokens [heads, own, d] -> [prompts, heads, (shared +) longest, d], padded with zeros."""
        heads, _, dim = own.shape
        places = own.new_zeros(len(prompts) * prompts.longest, heads, dim)
        unfolded = places.index_copy(0, prompts.own_places, own.transpose(0, 1)).unflatten(0, (len(prompts), -1))
        unfolded = unfolded.transpose(1, 2)
        if before is None:
            return unfolded
        return torch.cat([before.expand(len(prompts), -1, -1, -1), unfolded], dim=2)


class CocaText(TextTower):
    """OpenCLIP's text transformer with `embed_cls`: causal, with a CLS token behind the words, read in place of EOT.

    OpenCLIP masks padding one place too late, and its weights were trained so. The result, for a text that is shorter
    than the context: CLS sees all words, EOT and the first padding token, and nobody sees CLS, not even CLS itself. If
    a text fills the context there is no padding token, and CLS sees itself. So two tokens more than in other causal
    towers are packed for each prompt, and nothing else changes.
    """

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
        tokens, eot = self.tokenize(texts)
        last = (eot + 2).clamp(max=self.context)  # the place of CLS: behind EOT and one padding token, if there is room
        tokens = F.pad(tokens, (0, 1)).scatter(1, last[:, None], self._cls)
        return Prompts.pack(tokens, last, slots, blind=eot < self.context - 1)

    def embed(self, prompts: Prompts) -> Tensor:
        is_cls = (prompts.ids == self._cls)[:, None]
        places = self.module.positional_embedding
        words = self.module.token_embedding(prompts.ids.clamp(max=self._cls - 1)) + places[prompts.positions]
        return torch.where(is_cls, self.module.cls_emb + places[self.context], words)

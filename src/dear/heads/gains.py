"""Gains scale what chosen heads add to an image feature beyond their mean. Gain 1 is CLIP, gain 0 the mean head.

The CLS state x after the last layer is a sum to which every head adds its part; so is the mean over patches. With gains
g, and mean outputs m over some images, it becomes x + sum_h (g_h - 1) (o_h - m_h) W_h. Later layers do not see it: only
direct effects are scaled. What a probe reads is no such sum: it weighs tokens anew for each picture.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dear.clip import Backbone
from dear.clip.image import ImageTower
from dear.clip.layer_input import CachedHeads, Images, LayerInput
from dear.clip.masks import Masks
from dear.clip.timm_tower import TimmTower
from dear.core.errors import DearError
from dear.heads.role_map import MEASURED, Head, RoleMap

ALL = "all"
NOT_FROZEN = (
    "Gains scale what CLIP's own heads write, but this method changes the layers in which they are: use a method that "
    "leaves the image tower as it is, such as zero-shot, head-gains, gda or coop."
)
_HEAD = r"\d+\.\d+"
_KEPT_IMAGES = 256  # images whose head outputs stay in memory


class Gains(NamedTuple):
    """Gains of the heads from layer `first` on."""

    first: int
    means: Tensor  # mean outputs at CLS, [layers, heads, head_dim]
    gains: Tensor  # [layers, heads]

    def apply(self, tower: ImageTower, images: CachedHeads) -> CachedHeads:
        """The CLS state with these gains, and the outputs that would have written it."""
        change = (self.gains - 1)[..., None] * (images.outputs - self.means)
        cls = images.frozen_cls
        for of_layer, block in zip(change.flatten(2).unbind(1), tower.blocks[self.first - 1 :], strict=True):
            weight = block.attn.out_proj.weight
            cls = cls + block.ls_1(of_layer.to(weight.dtype) @ weight.T)
        return CachedHeads(cls, images.outputs + change)


class GainTower(ImageTower):
    """An image tower with gains. Head outputs of the last images are kept, so other gains for them cost a product."""

    def __init__(self, tower: ImageTower, gains: Gains) -> None:
        self.plain: ImageTower = getattr(tower, "plain", tower)
        # With the plain tower, so that all towers with gains share it.
        self._kept: OrderedDict[tuple[int, int], CachedHeads] = self.plain.__dict__.setdefault("_kept", OrderedDict())
        self.__dict__.update(self.plain.__dict__)
        like = tower.like
        self.gains = Gains(gains.first, gains.means.to(like), gains.gains.to(like))

    @torch.no_grad()
    def head_outputs(self, images: Images, first: int) -> CachedHeads:
        if isinstance(images, CachedHeads):  # of this tower: with its gains
            return images
        start = min(first, self.gains.first)
        cls, outputs = self._plain_outputs(images, start)
        before, late = outputs.split([self.gains.first - start, outputs.shape[1] - self.gains.first + start], 1)
        found = self.gains.apply(self.plain, CachedHeads(cls, late))
        return CachedHeads(found.frozen_cls, torch.cat([before, found.outputs], 1)[:, first - start :])

    def layer_input(self, images: Images, first: int, masks: Masks | None = None) -> LayerInput:
        if first <= self.layers:
            raise DearError(NOT_FROZEN)
        if isinstance(images, Tensor):  # else it was computed by this tower
            images = self.head_outputs(images, self.gains.first)
        return self.plain.layer_input(images, first)

    def _plain_outputs(self, images: Images, first: int) -> CachedHeads:
        if not isinstance(images, Tensor):
            return self.plain.head_outputs(images, first)
        keys = [(first, hash(one.numpy().tobytes())) for one in images.cpu()]
        # Held here, because another thread may drop them.
        found = {key: kept for key in keys if (kept := self._kept.get(key)) is not None}
        missing = [row for row, key in enumerate(keys) if key not in found]
        if missing:
            new = self.plain.head_outputs(images[missing], first)
            for row, *tensors in zip(missing, *new, strict=True):
                found[keys[row]] = self._kept[keys[row]] = CachedHeads(*tensors)
        while len(self._kept) > _KEPT_IMAGES:
            self._kept.popitem(last=False)
        return CachedHeads(*(torch.stack(parts) for parts in zip(*(found[key] for key in keys), strict=True)))


class TimmGainTower(GainTower, TimmTower):
    """A tower of timm with gains."""


def require_sum(backbone: Backbone) -> None:
    """Refuses a backbone in which the state that is read is no sum of what heads write."""
    if reason := backbone.image.why_no_sum:
        raise DearError(
            f"Heads of {backbone.name} can have no gain, because {reason}: take --method prolip or gda in place of "
            "head-gains, and for --gain a backbone that is read at CLS, such as ViT-B-16."
        )


def with_gains(backbone: Backbone, gains: Gains) -> Backbone:
    """The backbone with a `GainTower`; weights are shared."""
    require_sum(backbone)
    kind = TimmGainTower if isinstance(backbone.image, TimmTower) else GainTower
    changed = replace(backbone, image=kind(backbone.image, gains))
    if "identity" in vars(backbone):  # the weights are the same, and were hashed
        vars(changed)["identity"] = backbone.identity
    return changed


def parse_gains(texts: Sequence[str]) -> dict[str, float]:
    """["color=2", "12.10=0"] -> {"color": 2.0, "12.10": 0.0}."""
    gains = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            gains[name] = float(number)
        except ValueError:
            raise DearError(f"A gain is NAME=NUMBER, such as color=2 or 12.10=0, not {text!r}.") from None
    return gains


def gain_text(gains: Mapping[str, float]) -> str:
    """The gains in a line, such as "color=2, 12.10=0"."""
    return ", ".join(f"{name}={gain:g}" for name, gain in gains.items())


def named_gains(names: Mapping[str, float], roles: RoleMap) -> Gains:
    """Gains by attribute ("color"), by role ("mixed"), for one head ("12.10": layer 12, head 10), or for "all".

    The more specific name wins: head, then attribute, then "all".
    """
    if roles.means is None:
        raise DearError("This role map has no means of its heads, which gains need: make it again with `dear roles`.")
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise DearError(f'A gain is named by a string, such as "color" or "12.10", not by {wrong[0]!r}.')
    known = _parts(roles)
    gains = torch.ones(len(roles.layers), roles.heads)
    for name in sorted(names, key=lambda name: (name != ALL, bool(re.fullmatch(_HEAD, name)))):
        for layer, head in _heads_named(name, known, roles):
            gains[layer - roles.layers[0], head] = _checked_gain(name, names[name])
    return Gains(roles.layers[0], torch.tensor(roles.means), gains)


def require_measured(names: Iterable[str]) -> None:
    """Refuses names that no measured role map has, before a backbone is loaded."""
    known = dict.fromkeys(part for preset in MEASURED for part in _parts(RoleMap.preset(preset)))
    for name in names:
        if not re.fullmatch(_HEAD, name):
            _require_known(name, known)


def _parts(roles: RoleMap) -> dict[str, list[Head]]:
    """The heads of each name that gains can have."""
    known: dict[str, list[Head]] = {ALL: list(roles.roles)}
    for at in roles.roles:
        known.setdefault(roles.part_of(at), []).append(at)
    return known | {name: [] for name in roles.core if name not in known}


def _require_known(name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise DearError(f"There is no gain for {name!r}: choose from {', '.join(known)}, or a head such as 12.10.")


def _heads_named(name: str, known: Mapping[str, list[Head]], roles: RoleMap) -> list[Head]:
    if re.fullmatch(_HEAD, name):
        layer, head = map(int, name.split("."))
        if (layer, head) not in roles.roles:
            first, last = roles.layers[0], roles.layers[-1]
            raise DearError(
                f"There is no head {name}: layers {first} to {last} have heads 0 to {roles.heads - 1}, as in {last}.0."
            )
        return [(layer, head)]
    _require_known(name, known)
    if not known[name]:
        raise DearError(f"No head has the attribute {name} in this role map, so it can have no gain.")
    return known[name]


def _checked_gain(name: str, gain: Any) -> float:
    if not isinstance(gain, Real) or not -100 <= float(gain) <= 100:
        raise DearError(f"The gain of {name} must be a number from -100 to 100, not {gain!r}.")
    return float(gain)

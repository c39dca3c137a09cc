"""Head gains: a gain for what each late head writes, CLIP's projection close to its start, and GDA behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone
from dear.clip.image import last_third
from dear.clip.layer_input import CachedHeads, Images, LayerInput
from dear.core.config import Config as Settings
from dear.core.config import setting
from dear.core.errors import DearError
from dear.core.names import AUTO
from dear.heads.gains import Gains, require_sum
from dear.heads.role_map import find_role_map
from dear.methods.base import LabelledImages, Method
from dear.methods.closed_forms import SHRINKS, GdaHead
from dear.methods.shared.closed_form import Corrected, LeftOut
from dear.methods.shared.leave_one_out import Gaussians
from dear.methods.shared.role_settings import RoleSettings, pick_roles
from dear.methods.shared.stacking import minimise
from dear.methods.shared.towers import project_by

_MAX_REPORTED, _MIN_LOG_GAIN = 4, 0.1  # heads that `learned` names, and the least logarithm of their gains
_GDA_FOLDS = 4
_LBFGS: dict[str, Any] = {"max_iter": 100, "tolerance_grad": 1e-6, "history_size": 10}


@dataclass(frozen=True)
class HeadGainsConfig(RoleSettings):
    """Gains of heads, and the projection behind them."""

    first_layer: int | None = setting(None, "first layer whose heads have a gain; default: 9 of 12", low=1)
    gains: str = setting(
        "heads",
        "one gain for each head, for each role (of the role map), for all heads, or none",
        choices=("heads", "roles", "one", "none"),
    )
    gain_pull: float = setting(0.1, "weight of the sum of the squared logarithms of the gains", low=0.0)
    pull: float | None = setting(
        1.0, "weight of the squared distance of the projection from its start; null: it is not learned", low=0.0
    )
    gda: bool = setting(True, "add GDA's score; without it and with no gains it is ProLIP's loss, solved by L-BFGS")


class HeadGains(Corrected):
    """f = n(ln_post(x + sum_h (g_h - 1) (o_h - m_h) W_h) P), with o_h what head h puts out at CLS and m_h its mean over
    the labelled images. Where the mean over patches is read, o_h is the mean over patches too.

    First the gains, which minimise cross entropy + gain_pull |log g|^2; then P, as ProLIP does, on the CLS states that
    they give. Both by L-BFGS on the labelled images as they are, in seconds. With g = 1 and P = P0 it is CLIP; texts
    are CLIP's, so other classes can be answered.

    Classes with labelled images get GDA's score on f besides: logits a tau f w + b gda(f), a, b and GDA's shrinkage
    those with the least cross entropy on images left out, in four folds. With one image per class b = 0.
    """

    Head = GdaHead
    Config = HeadGainsConfig
    head: GdaHead
    config: HeadGainsConfig
    heads_from: int
    gains: Tensor  # [layers, heads]
    head_means: Tensor  # [layers, heads, head_dim]
    projection: Tensor  # [width, dim]

    def __init__(self, backbone: Backbone, config: HeadGainsConfig) -> None:
        super().__init__(backbone, config)
        require_sum(backbone)
        tower = backbone.image
        if config.roles != AUTO:  # a wrong one is refused before any work
            pick_roles(config, backbone).check_backbone(backbone.identity.to_json(), tower.layers, tower.heads)
        self.heads_from = min(config.first_layer or last_third(tower.layers), tower.layers)
        shape = tower.layers - self.heads_from + 1, tower.heads
        self.register_buffer("gains", tower.like.new_ones(shape))
        self.register_buffer("head_means", tower.like.new_zeros(*shape, tower.head_dim))
        self.register_buffer("projection", tower.head_matrix.detach().contiguous().clone())

    @classmethod
    def restore(cls, backbone: Backbone, config: Settings, extra_state: Mapping[str, Any]) -> "HeadGains":
        """The gains are stored by head: the role map of the training may be gone."""
        assert isinstance(config, HeadGainsConfig)
        return super().restore(backbone, replace(config, roles=AUTO), extra_state)

    def merged(self) -> list[tuple[Tensor, Tensor]]:
        if (self.gains != 1).any() or self.head.mix[1]:
            raise DearError(
                "Gains of heads and GDA's part are no weights of a plain CLIP: train with --gains none, or export the "
                "run with --onnx."
            )
        scale = self.backbone.model.logit_scale
        return [(self.backbone.image.head_matrix, self.projection), (scale, scale + self.head.mix[0].log())]

    def scaled(self, images: CachedHeads) -> Tensor:
        """The states that are read, with the gains, [batch, width]."""
        return Gains(self.heads_from, self.head_means, self.gains).apply(self.backbone.image, images).frozen_cls

    def layer_input(self, images: Images) -> LayerInput:
        return super().layer_input(self.backbone.image.head_outputs(images, self.heads_from))

    def encode_image(self, x: LayerInput) -> Tensor:
        assert x.frozen_cls is not None
        assert x.head_outputs is not None
        cls = self.backbone.image.gather(self.scaled(CachedHeads(x.frozen_cls, x.head_outputs)))
        return self.project(cls)[:, None]

    def project(self, cls: Tensor) -> Tensor:
        """States that are read, [batch, width] -> features, normalised, [batch, dim]."""
        return F.normalize(project_by(self.backbone.image, cls, self.projection), dim=-1)

    @classmethod
    def for_unseen(cls, config: Any) -> tuple[type[Method], Settings]:
        return cls, replace(config, gda=False)

    @torch.no_grad()
    def before_training(self, images: LabelledImages) -> None:
        seen, labels = self.seen(images)
        if not self.config.gda:
            self.head.set_sizes(len(self.trained), 0)
            self.fit(seen, labels)
            return
        left_out = self.cross_validated(seen, labels)
        shrink = self.head.choose(left_out, labels.cpu(), SHRINKS[0], [1.0, 0.0])
        self.fit(seen, labels)
        self.head.take(self.gaussians(seen, labels), shrink)

    def seen(self, images: LabelledImages) -> tuple[CachedHeads, Tensor]:
        """States and head outputs of the labelled images, and labels [images]; sets the trained classes."""
        tower, device = self.backbone.image, self.backbone.device
        batches = [(tower.head_outputs(batch, self.heads_from), truth) for batch, truth in images.train()]
        seen = CachedHeads(*(torch.cat(parts) for parts in zip(*(heads for heads, _ in batches), strict=True)))
        labels = torch.cat([truth for _, truth in batches]).to(device)
        self.trained = tuple(self.classes.names)
        return seen, labels

    def fit(self, seen: CachedHeads, labels: Tensor) -> None:
        """Sets means, gains and projection."""
        self.head_means = seen.outputs.mean(0, dtype=self.head_means.dtype)
        self.gains, self.projection = torch.ones_like(self.gains), self.backbone.image.head_matrix.detach().contiguous()
        if self.config.gains != "none":
            self.gains = self.fitted_gains(seen, labels)
        if self.config.pull is not None:
            self.projection = self.fitted_projection(self.backbone.image.head_input(self.scaled(seen)), labels)

    def gaussians(self, seen: CachedHeads, labels: Tensor) -> Gaussians:
        """GDA of the present features; on the CPU, because not every device has fp64."""
        return Gaussians(self.project(self.scaled(seen)).cpu(), labels.cpu(), len(self.trained))

    def cross_validated(self, seen: CachedHeads, labels: Tensor) -> dict[float, LeftOut]:
        """Logits and GDA's scores of each image by a fit without its fold, for each shrinkage of GDA.

        Afterwards means, gains and projection are those of the last fold.
        """
        own, *scores = torch.zeros(1 + len(SHRINKS), len(labels), len(self.trained))
        folds, text = folds_of(labels.cpu(), _GDA_FOLDS), self.encode_text(self.classes)
        for fold in range(int(folds.max()) + 1 if folds.any() else 0):
            used, out = (rows.nonzero()[:, 0].to(labels.device) for rows in (folds != fold, folds == fold))
            fitted, shown = (CachedHeads(*_rows_of(seen, rows)) for rows in (used, out))
            self.fit(fitted, labels[used])
            gaussians, features = self.gaussians(fitted, labels[used]), self.project(self.scaled(shown))
            logits, features = self.head.zero_shot(features, text).cpu().float(), features.cpu().double()
            own[out.cpu()] = logits
            for shrink, gda in zip(SHRINKS, scores, strict=True):
                weight, bias = gaussians.weights(shrink)
                gda[out.cpu()] = (features @ weight.T + bias).float()
        return {shrink: partial(_rows_of, (own, gda)) for shrink, gda in zip(SHRINKS, scores, strict=True)}

    def learned(self) -> str:
        """The heads whose gain is farthest from 1, with their parts in the backbone's role map, if it has one."""
        try:
            known = find_role_map(self.config.roles, self.backbone)
            parts = {at: f" ({known.part_of(at)})" for at in known.roles}
        except DearError:  # there is no role map
            parts = {}
        logarithms = self.gains.clamp(min=1e-6).log().abs().flatten()
        changed = [n for n in logarithms.argsort(descending=True).tolist() if logarithms[n] > _MIN_LOG_GAIN]
        words = []
        for number in changed[:_MAX_REPORTED]:
            row, head = divmod(number, self.gains.shape[1])
            at = self.heads_from + row, head
            words.append(f"layer {at[0]}, head {head}{parts.get(at, '')}, x {self.gains[row, head]:.2f}")
        return f"heads with the largest learned gains: {'; '.join(words)}" if words else ""

    def fitted_gains(self, seen: CachedHeads, labels: Tensor) -> Tensor:
        """Gains by L-BFGS on head outputs, [images, heads, head_dim]; what heads write is ten times as large."""
        tower, groups = self.backbone.image, self.groups().to(labels.device)
        maps = tower.head_maps(self.heads_from).to(self.gains).flatten(0, 2)  # [layers * heads * head_dim, width]
        deviations = (seen.outputs - self.head_means).flatten(1, 2)  # [images, layers * heads, head_dim]
        logarithms = self.gains.new_zeros(int(groups.max()) + 1)

        def loss() -> Tensor:
            change = (logarithms.exp()[groups] - 1)[:, None] * deviations
            features = F.normalize(tower.project(seen.frozen_cls + change.flatten(1) @ maps), dim=-1)
            return self.cross_entropy(features, labels) + self.config.gain_pull * logarithms.square().sum()

        minimise([logarithms], loss, **_LBFGS)
        return logarithms.exp()[groups].view_as(self.gains)

    def groups(self) -> Tensor:
        """A number for each head, [layers * heads]: heads with the same number share a gain."""
        heads = torch.arange(self.gains.numel())
        if self.config.gains == "heads":
            return heads
        if self.config.gains == "one":
            return torch.zeros_like(heads)
        tower = self.backbone.image
        roles = pick_roles(self.config, self.backbone)
        roles.check_backbone(self.backbone.identity.to_json(), tower.layers, tower.heads)
        names = [roles.part_of(at) for at in sorted(roles.for_layers(self.heads_from).roles)]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return torch.tensor([numbers[name] for name in names])

    def fitted_projection(self, states: Tensor, labels: Tensor) -> Tensor:
        """The projection, close to CLIP's, by L-BFGS; `states`: after the last LayerNorm, [images, width]."""
        tower = self.backbone.image
        start, bias = tower.head_matrix.detach().contiguous(), 0 if tower.head_bias is None else tower.head_bias
        change = torch.zeros_like(start)

        def loss() -> Tensor:
            features = F.normalize(states @ (start + change) + bias, dim=-1)
            return self.cross_entropy(features, labels) + (self.config.pull or 0.0) * change.square().sum()

        minimise([change], loss, **_LBFGS)
        return start + change

    def cross_entropy(self, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.backbone.temperature * features @ self.encode_text(self.classes).T, labels)


def folds_of(labels: Tensor, count: int) -> Tensor:
    """The fold of each image [images]: those of a class are dealt out by chance, the same in every run."""
    folds, chance = torch.zeros_like(labels), torch.Generator().manual_seed(0)
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0]
        folds[rows[torch.randperm(len(rows), generator=chance)]] = torch.arange(len(rows)) % count
    return folds


def _rows_of(parts: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    return [part[rows] for part in parts]

"""A picture of an answer: the vote of each component, and where it looked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dear.core.errors import DearError
from dear.core.figure import check_suffix, save_figure
from dear.core.names import CLS
from dear.core.palette import color_of
from dear.methods.shared.role_settings import roles_of
from dear.model.answer import Answer
from dear.model.predictor import ImageLike, Predictor


def explain(predictor: Predictor, image: ImageLike, out: Path, topk: int = 3) -> Answer:
    """Draws the image, the votes and where each component looked; returns the answer."""
    check_suffix(out)
    pixels = predictor.pixels([image]).to(predictor.model.backbone.device)
    answer = predictor.predict_batch(pixels, topk)[0]
    answer = replace(answer, without=without_attributes(predictor, pixels))
    roles = predictor.model.roles
    headless = set() if roles is None else {name for name in roles.core if not roles.heads_for(name)}
    maps = {
        f"{name}*" if name in headless else name: values[0].float().cpu().numpy()
        for name, values in predictor.model.attention_maps(pixels).items()
    }
    figure = draw_explanation(answer, as_seen(predictor, pixels[0]), maps)
    save_figure(figure, out, dpi=150)
    return answer


def without_attributes(predictor: Predictor, pixels: Tensor) -> tuple[tuple[str, str, float], ...]:
    """For pixels [1, 3, height, width] and each attribute: what the answer would be without it, and how sure.

    A method with a component for an attribute answers without that component's vote. CLIP's own class feature has none:
    there the heads of the attribute are put at their mean, if a role map tells them.
    """
    model = predictor.model
    if len(model.components) > 1:
        weights, (votes,) = model.fusion_weights(), predictor.votes(pixels)  # [components], [components, classes]
        found = {}
        for i, name in enumerate(model.components):
            if name != CLS and weights[i] < 1:
                rest = torch.cat([weights[:i], weights[i + 1 :]]) @ torch.cat([votes[:i], votes[i + 1 :]])
                found[name] = (rest / (1 - weights[i])).softmax(0)
    elif model.backbone.image.tier != "full":
        return ()  # its heads are not known
    else:
        try:
            roles = roles_of(model)
            named = [name for name in roles.core if roles.heads_for(name)]
            others = {name: predictor.with_gain({**predictor.gain, name: 0.0}) for name in named}
        except DearError:  # no role map with means, or another image tower
            return ()
        found = {name: other.logits(pixels)[0].softmax(0) for name, other in others.items()}
    chosen = {name: (int(p.argmax()), float(p.max())) for name, p in found.items()}
    return tuple((name, predictor.classes[best], p) for name, (best, p) in chosen.items())


def as_seen(predictor: Predictor, pixels: Tensor) -> np.ndarray:
    """The picture after preprocessing, [height, width, 3] in 0..1, so that maps fit onto it."""
    backbone = predictor.model.backbone
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (backbone.mean, backbone.std))
    return (pixels.cpu() * std + mean).clamp(0, 1).permute(1, 2, 0).numpy()


def draw_explanation(answer: Answer, picture: np.ndarray, maps: dict[str, np.ndarray]) -> Any:
    """A matplotlib figure: picture and answer on the left, votes on the right, attention maps below."""
    from matplotlib.figure import Figure

    count = len(maps)
    figure = Figure(figsize=(max(9.0, 1.9 * count), 6.2), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.45, 1))
    upper, lower = parts
    left, right = upper.subplots(1, 2, width_ratios=(1, 1.9))
    left.imshow(picture, interpolation="lanczos")
    title = f"{answer.choice}  {100 * answer.probability:.0f}%"  # of the whole row: above the picture it may be cut off
    upper.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    left.axis("off")
    _draw_votes(right, answer)
    if not maps:
        lower.suptitle("where it looked is not known: the image tower is called as a whole", fontsize=11)
        return figure
    axes = np.atleast_1d(lower.subplots(1, count))
    note = "; * it has no head of its own: in all heads" if any(name.endswith("*") for name in maps) else ""
    tokens = f"where each component looked ({CLS}: in the last layer; attributes: in their own heads{note})"
    lower.suptitle(f"where {CLS} looked in the last layer" if list(maps) == [CLS] else tokens, fontsize=11)
    height, width = picture.shape[:2]
    for axis, (name, values) in zip(axes, maps.items(), strict=True):
        axis.imshow(picture.mean(-1), cmap="gray", vmin=-0.4, vmax=1.4)
        axis.imshow(values, cmap="inferno", alpha=0.62, extent=(0, width, height, 0), interpolation="bilinear")
        axis.set_title(name, fontsize=10, color=color_of(name.rstrip("*")), fontweight="bold")
        axis.axis("off")
    return figure


def _draw_votes(axes: Any, answer: Answer) -> None:
    """A bar per component: its part of the margin between the answer and the next best class, so that a vote without
    weight is short; what each would say by itself stands beside it, paler the less it decides."""
    votes = list(reversed(answer.votes))
    leads = [vote.lead for vote in votes]
    longest = max(map(abs, leads)) or 1.0
    axes.barh(
        [f"{vote.component}  ×{vote.weight:.2f}" for vote in votes],
        leads,
        color=[color_of(vote.component) for vote in votes],
        height=min(0.8, 0.2 * len(votes)),
    )
    axes.set_ylim(-0.6, len(votes) - 0.4)
    low, high = min(0.0, *leads), max(0.0, *leads)
    axes.set_xlim(low - 0.04 * longest, high + 0.04 * longest)
    for row, vote in enumerate(votes):
        own = "agrees" if vote.choice == answer.choice else f"alone: {vote.choice}"
        grey = 0.2 + 0.5 * (1 - abs(vote.lead) / longest)
        axes.text(
            1.02, row, f"{vote.lead:+.2f}  {own} ({100 * vote.probability:.0f}%)", va="center", fontsize=9,
            color=(grey, grey, grey), transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.axvline(0, color="#888888", linewidth=0.8)
    rival = f"“{answer.top[1][0]}”" if len(answer.top) > 1 else "the next best class"
    label = "weight × lead, in logits: the bars add up to the margin"
    if answer.without:
        same = answer.choice
        cells = [f"{name}: {'' if it == same else it + ' '}{100 * p:.0f}%" for name, it, p in answer.without]
        label += "\n\nthe answer without an attribute: the same unless another is named, with\n" + ",   ".join(cells)
    axes.set_xlabel(label, fontsize=9)
    axes.set_title(f"what decided for “{answer.choice}” against {rival}", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)

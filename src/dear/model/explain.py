"""A picture of an answer: the vote of each component, and where it looked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dear.core.errors import DearError
from dear.core.figure import check_suffix, color_of, save_figure
from dear.core.names import CLS
from dear.data.decode import ImageLike, open_image
from dear.heads.gains import gain_text
from dear.heads.stream import to_rgb
from dear.methods.optional import HasRoles
from dear.methods.shared.attention_maps import read_place
from dear.methods.shared.role_settings import attribute_heads
from dear.model.answer import Answer, Without
from dear.model.predictor import Predictor, answer_features, encode_pixels, logits_and_votes


def explain_image(predictor: Predictor, image: ImageLike, out: Path, topk: int = 3) -> Answer:
    """Draws the image, the votes and where each component looked; returns the answer."""
    check_suffix(out)
    pixels = predictor.preprocess(open_image(image))[None].to(predictor.model.backbone.device)
    answer = explained(predictor, pixels, topk)
    roles = predictor.model.roles if isinstance(predictor.model, HasRoles) else None
    headless = set() if roles is None else {name for name in roles.core if not roles.heads_for(name)}
    maps = {
        f"{name}*" if name in headless else name: values[0].float().cpu().numpy()
        for name, values in predictor.model.attention_maps(pixels).items()
    }
    place = read_place(predictor.model.backbone.image)
    figure = draw_explanation(answer, as_seen(predictor, pixels[0]), maps, place, gain_text(predictor.gain))
    save_figure(figure, out, dpi=150)
    return answer


def explained(predictor: Predictor, pixels: Tensor, topk: int) -> Answer:
    """The answer for pixels [1, 3, height, width], with what it would be without each attribute."""
    features = encode_pixels(predictor, pixels)
    answer = answer_features(predictor, features, max(2, topk))[0]
    _, votes = logits_and_votes(predictor, features)
    return replace(answer, top=answer.top[:topk], without=_without_attributes(predictor, pixels, votes[0], answer))


def _without_attributes(predictor: Predictor, pixels: Tensor, votes: Tensor, answer: Answer) -> tuple[Without, ...]:
    """The answer for pixels [1, 3, height, width] with votes [components, classes], without each attribute in turn.

    A method with a component for an attribute answers without that component's vote. CLIP's own class feature has none:
    there the heads of the attribute are put at their mean, if a role map tells them.
    """
    model = predictor.model
    if len(model.components) > 1:
        weights = model.fusion_weights()
        fused = weights @ votes
        found = {
            name: (fused - weight * vote) / (1 - weight)
            for name, weight, vote in zip(model.components, weights, votes, strict=True)
            if name != CLS and weight < 1
        }
    else:
        try:
            others = {name: predictor.with_gain({**predictor.gain, name: 0.0}) for name in attribute_heads(model)}
        except DearError:  # a role map without means
            return ()
        found = {name: logits_and_votes(other, encode_pixels(other, pixels))[0][0] for name, other in others.items()}
    places = [predictor.classes.index(name) for name, _ in answer.top[:2]]
    without = []
    for name, logits in found.items():
        best, lead = int(logits.argmax()), float(logits[places[0]] - logits[places[-1]])
        without.append(Without(name, predictor.classes[best], float(logits.softmax(0)[best]), lead))
    return tuple(without)


def as_seen(predictor: Predictor, pixels: Tensor) -> np.ndarray:
    """The picture after preprocessing, [height, width, 3] in 0..1, so that maps fit onto it."""
    return to_rgb(predictor.model.backbone, pixels).clamp(0, 1).permute(1, 2, 0).numpy()


def draw_explanation(
    answer: Answer, picture: np.ndarray, maps: dict[str, np.ndarray], place: str, gain: str = ""
) -> Any:
    """A matplotlib figure: picture and answer on the left, votes on the right, attention maps below.

    `place`: where CLS looked; `gain`: the gains of heads, if any.
    """
    from matplotlib.figure import Figure

    count = len(maps)
    figure = Figure(figsize=(max(9.0, 1.9 * count), 6.2), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.45, 1))
    upper, lower = parts
    left, right = upper.subplots(1, 2, width_ratios=(1, 1.9))
    left.imshow(picture, interpolation="lanczos")
    title = f"{answer.choice}  {100 * answer.probability:.0f}%"  # of the whole row: above the picture it may be cut off
    title += f"  (gain {gain})" if gain else ""
    upper.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    left.axis("off")
    if len(answer.votes) == 1 and answer.without:
        _draw_losses(right, answer)
    else:
        _draw_votes(right, answer)
    if not maps:
        lower.suptitle("where it looked is not known: the image tower is called as a whole", fontsize=11)
        return figure
    axes = np.atleast_1d(lower.subplots(1, count))
    note = "; * it has no head of its own: in all heads" if any(name.endswith("*") for name in maps) else ""
    heading = f"where {CLS} looked" if len(answer.votes) == 1 else "where each component looked"
    others = "" if list(maps) == [CLS] else f"; attributes: in their own heads{note}"
    lower.suptitle(f"{heading} ({CLS}: {place}{others})", fontsize=11)
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
    rows = [
        (vote.component, f"{vote.component}  ×{vote.weight:.2f}", vote.lead,
         f"{'agrees' if vote.choice == answer.choice else f'alone: {vote.choice}'} ({100 * vote.probability:.0f}%)")
        for vote in answer.votes
    ]  # fmt: skip
    label = "weight × lead, in logits: the bars add up to the margin"
    if answer.without:
        cells = [
            f"{w.attribute}: {'' if w.choice == answer.choice else w.choice + ' '}{100 * w.probability:.0f}%"
            for w in answer.without
        ]
        label += "\n\nthe answer without an attribute: the same unless another is named, with\n" + ",   ".join(cells)
    _draw_bars(axes, answer, rows, label)


def _draw_losses(axes: Any, answer: Answer) -> None:
    """A bar per attribute: how much of the lead over the next best class is lost if its heads are put at their mean."""
    rows = [
        (w.attribute, w.attribute, answer.lead - w.lead,
         f"without it: {'still ' if w.choice == answer.choice else ''}{w.choice}, {100 * w.probability:.0f}%")
        for w in answer.without
    ]  # fmt: skip
    label = f"what the lead of {answer.lead:.2f} logits loses without the heads of an attribute"
    _draw_bars(axes, answer, rows, f"{label}\n(their direct effect; the losses need not add up to the lead)")


def _draw_bars(axes: Any, answer: Answer, rows: Sequence[tuple[str, str, float, str]], label: str) -> None:
    """Horizontal bars; `rows`: attribute or component, its label, the length of its bar, and the text beside it."""
    names, labels, lengths, texts = zip(*reversed(rows), strict=True)
    longest = max(map(abs, lengths)) or 1.0
    axes.barh(labels, lengths, color=[color_of(name) for name in names], height=min(0.8, 0.2 * len(rows)))
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(min(0.0, *lengths) - 0.04 * longest, max(0.0, *lengths) + 0.04 * longest)
    for row, (length, text) in enumerate(zip(lengths, texts, strict=True)):
        grey = 0.2 + 0.5 * (1 - abs(length) / longest)
        place: Any = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(1.02, row, f"{length:+.2f}  {text}", fontsize=9, color=(grey, grey, grey), **place)
    axes.axvline(0, color="#888888", linewidth=0.8)
    rival = f"“{answer.top[1][0]}”" if len(answer.top) > 1 else "the next best class"
    axes.set_xlabel(label, fontsize=9)
    axes.set_title(f"what decided for “{answer.choice}” against {rival}", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)

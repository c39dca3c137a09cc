"""Draws docs/pictures/method.png: DeAR in one picture, with the measured roles of OpenAI's ViT-B/16.

python scripts/draw_method.py
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from PIL import Image

from dear.core.figure import color_of, figure_png
from dear.core.files import write_bytes
from dear.core.names import CLS, CORE_ATTRIBUTES
from dear.data.resolve import resolve_dataset
from dear.heads.head_role import CORE_ATTRIBUTE, MIXED
from dear.heads.role_map import RoleMap

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "method.png"
INK, GREY, PALE = "#23262b", "#9aa1ab", "#e9ebee"
COMPONENTS = (CLS, *CORE_ATTRIBUTES)
BOTTOM, HEAD = 2.75, 0.36  # lower edge of the tower, height of a head
FIRST_COLUMN, STEP = 6.2, 0.98  # left edge of layer 9, distance of two layers
FEATURES = 11.1  # left edge of the features


def box(axes: Axes, x: float, y: float, width: float, height: float, face: str, edge: str, **style: Any) -> None:
    shape = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), width, height, shape, facecolor=face, edgecolor=edge, linewidth=1, **style))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str = GREY) -> None:
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)


def write(axes: Axes, x: float, y: float, text: str, size: float = 8, **style: Any) -> None:
    axes.text(x, y, text, **{"fontsize": size, "color": INK, "ha": "center", "va": "center_baseline", **style})


def token_height(index: int) -> float:
    return 2.2 - 0.3 * index


def draw_tower(axes: Axes, roles: RoleMap) -> None:
    """Layers 1-8 as plain columns, layers 9-12 as columns of heads coloured by role."""
    top = BOTTOM + roles.heads * HEAD
    for layer in range(8):
        box(axes, 2.55 + 0.36 * layer, BOTTOM, 0.24, roles.heads * HEAD - 0.06, PALE, GREY)
    write(axes, 3.93, top + 0.28, "CLIP, frozen: layers 1-8", weight="bold")
    write(axes, FIRST_COLUMN + 1.85, top + 0.28, "layers 9-12: heads by role", weight="bold")
    for column, layer in enumerate(roles.layers):
        x = FIRST_COLUMN + column * STEP
        for head in range(roles.heads):
            draw_head(axes, x, BOTTOM + head * HEAD, *style_of(roles, layer, head))
        if column:
            arrow(axes, (x - STEP + 0.74, BOTTOM + 6 * HEAD), (x - 0.02, BOTTOM + 6 * HEAD))
    arrow(axes, (5.38, BOTTOM + 6 * HEAD), (FIRST_COLUMN - 0.06, BOTTOM + 6 * HEAD))


def style_of(roles: RoleMap, layer: int, head: int) -> tuple[str, str, str]:
    """Face, edge and hatching of a head."""
    role = roles[layer, head]
    if role.role == CORE_ATTRIBUTE and role.concept:
        return color_of(role.concept), color_of(role.concept), ""
    return ("white", GREY, "////") if role.role == MIXED else ("white", GREY, "")


def draw_head(axes: Axes, x: float, y: float, face: str, edge: str, hatch: str) -> None:
    box(axes, x, y, 0.7, HEAD - 0.06, face, edge, hatch=hatch)


def draw_tokens(axes: Axes) -> None:
    """The learned tokens, beside the image's own in layers 9-12."""
    end = FIRST_COLUMN + 3 * STEP + 0.7
    for index, name in enumerate(CORE_ATTRIBUTES):
        y, color = token_height(index), color_of(name)
        axes.plot([FIRST_COLUMN + 0.1, end], [y, y], color=color, lw=1.6, zorder=1)
        for x in (FIRST_COLUMN + column * STEP + 0.35 for column in range(4)):
            axes.add_patch(Circle((x, y), 0.11, facecolor=color, edgecolor="white", lw=0.8, zorder=2))
        write(axes, FIRST_COLUMN - 0.12, y, name, ha="right", color=color, weight="bold")
    write(axes, 0.3, 1.6, "attribute tokens: learned, and\nvisible to heads by their role", ha="left", weight="bold")


def draw_answer(axes: Axes) -> None:
    """Features of the components, their votes fused, the classes they are compared with."""
    heights = [BOTTOM + 9 * HEAD, *(BOTTOM + (7.4 - 1.5 * index) * HEAD for index in range(5))]
    end = FIRST_COLUMN + 3 * STEP + 0.7
    write(axes, FEATURES + 0.95, BOTTOM + 12 * HEAD + 0.28, "six features", weight="bold")
    for index, (name, y) in enumerate(zip(COMPONENTS, heights, strict=True)):
        color = color_of(name)
        start = (end + 0.08, y if name == CLS else token_height(index - 1))
        arrow(axes, start, (FEATURES - 0.06, y), color)
        box(axes, FEATURES, y - 0.2, 1.9, 0.4, color, color)
        write(axes, FEATURES + 0.95, y, "class feature" if name == CLS else name, color="white", weight="bold")
        arrow(axes, (FEATURES + 1.94, y), (14.06, y - (y - BOTTOM - 6 * HEAD) * 0.3), color)
    box(axes, 14.1, BOTTOM + 2.2 * HEAD, 1.5, 7 * HEAD, "white", INK)
    write(axes, 14.85, BOTTOM + 6 * HEAD, "votes,\nweighted\nand\nsummed")
    arrow(axes, (15.64, BOTTOM + 6 * HEAD), (16.1, BOTTOM + 6 * HEAD), INK)
    box(axes, 16.15, BOTTOM + 4.5 * HEAD, 1.65, 3 * HEAD, INK, INK)
    write(axes, 16.98, BOTTOM + 6 * HEAD, "answer,\nand why", color="white", weight="bold")
    box(axes, 13.6, 0.9, 2.5, 1.1, PALE, GREY)
    write(axes, 14.85, 1.45, "CLIP's text tower,\nfrozen, with five\nlearned tokens")
    arrow(axes, (14.85, 2.04), (14.85, BOTTOM + 2.2 * HEAD - 0.06), INK)
    arrow(axes, (16.72, 1.45), (16.16, 1.45), INK)
    write(axes, 17.3, 1.45, "class\nnames", weight="bold")


def draw_legend(axes: Axes) -> None:
    """What the image tokens see in a head of each role."""
    color = color_of("color")
    write(axes, 0.3, 0.27, "image tokens see:", ha="left", weight="bold")
    for face, edge, hatch, x, text in (
        (color, color, "", 3.0, "the token of the head's attribute"),
        ("white", GREY, "////", 8.3, "all tokens (mixed head)"),
        ("white", GREY, "", 12.4, "no token (generalization head)"),
    ):
        draw_head(axes, x, 0.12, face, edge, hatch)
        write(axes, x + 0.85, 0.27, text, ha="left")


def draw() -> Figure:
    figure = Figure(figsize=(9, 4))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 18), ylim=(0, 8))
    axes.axis("off")
    picture = resolve_dataset("world:signs").train[0].picture.open()
    axes.imshow(np.asarray(picture), extent=(0.3, 2.0, BOTTOM + 6 * HEAD - 0.85, BOTTOM + 6 * HEAD + 0.85))
    write(axes, 1.15, BOTTOM + 6 * HEAD + 1.1, "image", weight="bold")
    arrow(axes, (2.06, BOTTOM + 6 * HEAD), (2.5, BOTTOM + 6 * HEAD))
    axes.set(xlim=(0, 18), ylim=(0, 8), aspect="auto")
    draw_tower(axes, RoleMap.preset("openai-vit-b-16"))
    draw_tokens(axes)
    draw_answer(axes)
    draw_legend(axes)
    return figure


if __name__ == "__main__":
    png = Image.open(io.BytesIO(figure_png(draw(), dpi=200, facecolor="white"))).convert("RGB")
    small = io.BytesIO()
    png.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    write_bytes(OUT, small.getvalue())
    print(f"{OUT}: {len(small.getvalue()) // 1000} kB")

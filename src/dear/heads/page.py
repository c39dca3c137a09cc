"""A role map as one HTML file to click through: no network, no other files, opens in any browser."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from PIL import Image

from dear.core.files import write_text
from dear.core.palette import color_of
from dear.core.sheet import thumbnail_url
from dear.heads.head_role import ROLES
from dear.heads.map_table import (
    ROLE_MARKS,
    ROLE_NAMES,
    cell_legend,
    cell_numbers,
    color_strength,
    evidence_lines,
    field_lines,
    map_title,
    mean_shares,
    role_summary,
)
from dear.heads.role_map import Head, RoleMap

Thumbnails = tuple[Sequence[Image.Image], Sequence[Image.Image]]  # images that activate a head most, and least
THUMBNAIL = 112  # pixels on the longer side
_TEMPLATE = Path(__file__).parent / "assets" / "page.html"


def write_page(role_map: RoleMap, path: str | Path, images: Mapping[Head, Thumbnails] | None = None) -> None:
    """Writes the page; `images` may give, for any head, the images that activate it most and least."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}  # and unsorted, unlike Jinja's default
    page = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=map_title(role_map),
        summary=role_summary(role_map),
        roles=[f"{ROLE_MARKS[role]} {ROLE_NAMES[role]}" for role in ROLES],
        legend=cell_legend(role_map),
        evidence=evidence_lines(role_map),
        fields=[*field_lines(role_map.backbone), *field_lines(role_map.origin)],
        data=_page_data(role_map, images or {}),
    )
    write_text(path, page)


def _page_data(role_map: RoleMap, images: Mapping[Head, Thumbnails]) -> dict[str, Any]:
    """All that the script needs, for JSON."""
    numbers = cell_numbers(role_map)
    heads = {
        f"{layer}.{number}": {
            "role": head.role,
            "concept": head.concept,
            "color": color_of(head.concept),
            "strength": round(color_strength(head, role_map), 3),
            "number": numbers[layer, number],
            "entropy": head.entropy,
            "distribution": head.distribution,
            "shares": head.shares,
            "sure": head.sure,
            "phrases": [[phrase.text, phrase.variance, phrase.concept] for phrase in head.phrases],
            "images": [[thumbnail_url(image, THUMBNAIL) for image in side] for side in images.get((layer, number), ())],
        }
        for (layer, number), head in role_map.roles.items()
    }
    return {
        "layers": role_map.layers,
        "headCount": role_map.heads,
        "concepts": [[concept, color_of(concept)] for concept in role_map.concepts],
        "core": role_map.core,
        "meanShares": mean_shares(role_map),
        "roles": {role: {"name": ROLE_NAMES[role], "mark": ROLE_MARKS[role]} for role in ROLES},
        "heads": heads,
    }

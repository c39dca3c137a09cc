"""A role map as one HTML file to click through: no network, no other files, opens anywhere."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from dear.core.files import write_text
from dear.heads.head_role import ROLES
from dear.heads.map_table import ROLE_MARKS, ROLE_NAMES, color_strength, concept_colors, role_summary
from dear.heads.role_map import Head, RoleMap

Thumbnails = tuple[Sequence[Image.Image], Sequence[Image.Image]]  # images that activate a head most, and least
_TEMPLATE = Path(__file__).parent / "assets" / "report.html"
_THUMBNAIL = 112  # pixels on the longer side


def write_report(role_map: RoleMap, path: str | Path, images: Mapping[Head, Thumbnails] | None = None) -> None:
    """Writes the report; `images` may give, for any head, the images that activate it most and least."""
    # "<" would let a phrase such as "</script>" end the script that holds the data.
    data = json.dumps(_page_data(role_map, images or {}), ensure_ascii=False).replace("<", "\\u003c")
    write_text(path, _TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", data))


def _page_data(role_map: RoleMap, images: Mapping[Head, Thumbnails]) -> dict[str, Any]:
    colors = concept_colors(role_map.concepts)
    heads = {
        f"{layer}.{head}": {
            "role": found.role,
            "concept": found.concept,
            "color": colors[found.concept],
            "strength": round(color_strength(found, role_map), 3),
            "entropy": found.entropy,
            "distribution": found.distribution,
            "shares": found.shares,
            "sure": found.sure,
            "phrases": [[phrase.text, phrase.variance, phrase.concept] for phrase in found.phrases],
            "images": [[_data_url(image) for image in side] for side in images.get((layer, head), ())],
        }
        for (layer, head), found in role_map.roles.items()
    }
    return {
        "backbone": dict(role_map.backbone),
        "origin": dict(role_map.origin),
        "summary": role_summary(role_map),
        "layers": role_map.layers,
        "headCount": role_map.heads,
        "concepts": [[concept, colors[concept]] for concept in role_map.concepts],
        "core": role_map.core,
        "meanShares": _mean_shares(role_map),
        "roles": {role: {"name": ROLE_NAMES[role], "mark": ROLE_MARKS[role]} for role in ROLES},
        "heads": heads,
    }


def _mean_shares(role_map: RoleMap) -> list[float] | None:
    rows = [found.shares for found in role_map.roles.values() if found.shares is not None]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else None


def _data_url(image: Image.Image) -> str:
    small = image.convert("RGB")
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")

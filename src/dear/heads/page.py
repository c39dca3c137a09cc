"""A role map as one HTML file to click through: no network, no other files, opens in any browser."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from PIL import Image

from dear.core.files import write_text
from dear.core.pages import render_template
from dear.core.sheet import thumbnail_url
from dear.heads.concepts import ASSETS
from dear.heads.map_table import evidence_lines, field_lines, map_record, map_title
from dear.heads.role_map import Head, RoleMap

Thumbnails = tuple[Sequence[Image.Image], Sequence[Image.Image]]  # images that activate a head most, and least
THUMBNAIL = 112  # pixels on the longer side
RENDERER = (ASSETS / "role_map.js", ASSETS / "role_map.css")
"""The script and the style that draw a role map, here and on the page of `dear serve --page`."""


def write_page(role_map: RoleMap, path: str | Path, images: Mapping[Head, Thumbnails] | None = None) -> None:
    """Writes the page; `images` may give, for any head, the images that activate it most and least."""
    data = map_record(role_map)
    for cell in data["cells"]:
        if sides := (images or {}).get((cell["layer"], cell["head"])):
            cell["images"] = [[thumbnail_url(image, THUMBNAIL) for image in side] for side in sides]
    script, style = (file.read_text(encoding="utf-8") for file in RENDERER)
    page = render_template(
        ASSETS / "page.html",
        title=map_title(role_map),
        evidence=evidence_lines(role_map),
        fields=[*field_lines(role_map.backbone), *field_lines(role_map.origin)],
        data=data,
        script=Markup(script.replace("\nexport ", "\n")),  # a plain script, which runs at once
        style=Markup(style),
    )
    write_text(path, page)

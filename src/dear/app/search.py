"""The third view: images of the gallery that are alike in what one chooses."""

from typing import Any

from PIL import Image

from dear.app.pictures import data_url
from dear.errors import DearError
from dear.gallery import Encoder, Gallery, parse_by

_SHOWN = 12
_THUMBNAIL = 240


def search(encoder: Encoder, gallery: Gallery, query: Image.Image | str, by: str, label: str = "") -> dict[str, Any]:
    """`query` is a picture or a sentence; `by` such as "color=0.7,shape=0.3"; `label`: only labels that hold this."""
    weights = parse_by(by, gallery.components)
    hits = gallery.search(gallery.query(encoder, query, list(weights)), weights, _SHOWN, label_filter(label))
    shown = [{**hit.to_json(), "image": thumbnail(gallery, hit.path)} for hit in hits]
    return {"query": None if isinstance(query, str) else data_url(query, _THUMBNAIL), "hits": shown}


def label_filter(text: str) -> str | None:
    """SQL for labels that hold `text` in any case; wildcards of LIKE would mean more than what was written."""
    quoted = text.strip().lower().replace("'", "''")
    return f"strpos(lower(label), '{quoted}') > 0" if quoted else None


def starters(gallery: Gallery, count: int = _SHOWN) -> list[dict[str, Any]]:
    """Images from all over the gallery to begin with."""
    paths = sorted(gallery.paths())
    chosen = [paths[(2 * i + 1) * len(paths) // (2 * min(count, len(paths)))] for i in range(min(count, len(paths)))]
    return [{"path": path, "image": thumbnail(gallery, path)} for path in chosen]


def thumbnail(gallery: Gallery, path: str) -> str | None:
    """None for an image that was moved or removed since it was indexed: its score still tells something."""
    try:
        return data_url(gallery.image(path), _THUMBNAIL)
    except DearError:
        return None

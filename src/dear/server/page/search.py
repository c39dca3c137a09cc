"""The third view: images of the gallery that are alike in what one chooses."""

from typing import Any

from PIL import Image

from dear.core.errors import DearError
from dear.gallery import Gallery
from dear.server.api import Service
from dear.server.page.pictures import data_url

_SHOWN = 12
_THUMBNAIL = 240


def search(service: Service, query: Image.Image | str, by: str, label: str = "") -> dict[str, Any]:
    """`query` is a picture or a sentence; `by` such as "color=0.7,shape=0.3"; `label`: only labels that hold this."""
    gallery, hits = service.require_gallery(), service.search(query, by, _SHOWN, label)
    shown = [{**hit.to_json(), "image": thumbnail(gallery, hit.path)} for hit in hits]
    return {"query": None if isinstance(query, str) else data_url(query, _THUMBNAIL), "hits": shown}


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

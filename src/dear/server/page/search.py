"""The third view: images of the gallery that are similar in chosen components."""

from typing import Any

from PIL import Image

from dear.core.errors import DearError
from dear.gallery import Gallery
from dear.server.api import Service
from dear.server.page.pictures import data_url, spread

_COUNT = 12
_THUMBNAIL = 240


def search(service: Service, query: Image.Image | str, by: str, label: str = "") -> dict[str, Any]:
    """`query` is a picture or a sentence; `by` such as "color=0.7,shape=0.3"; `label`: only labels that contain it."""
    gallery, hits = service.require_gallery(), service.search(query, by, _COUNT, label)
    return {
        "query": None if isinstance(query, str) else data_url(query, _THUMBNAIL),
        "hits": [{**hit.to_json(), "image": thumbnail(gallery, hit.path)} for hit in hits],
    }


def starters(gallery: Gallery) -> list[dict[str, Any]]:
    """Images to start from, spread over the gallery."""
    return [{"path": path, "image": thumbnail(gallery, path)} for path in spread(sorted(gallery.paths()), _COUNT)]


def thumbnail(gallery: Gallery, path: str) -> str | None:
    """None for an image that was moved or deleted since it was indexed: its score is still worth showing."""
    try:
        return data_url(gallery.image(path), _THUMBNAIL)
    except DearError:
        return None

"""A gallery: images on disk, found again by class feature, color, shape, texture, object or place."""

from dear.gallery.index import Added
from dear.gallery.search import Hit, parse_by, query_of_image, query_of_text
from dear.gallery.store import Gallery

__all__ = ["Added", "Gallery", "Hit", "parse_by", "query_of_image", "query_of_text"]

"""A gallery: images on disk, found again by class feature, color, shape, texture, object or place."""

from dear.gallery.encoders import AdapterEncoder, Encoder, HeadEncoder
from dear.gallery.index import IndexSummary
from dear.gallery.search import Hit, parse_by
from dear.gallery.store import Gallery

__all__ = ["AdapterEncoder", "Encoder", "Gallery", "HeadEncoder", "Hit", "IndexSummary", "parse_by"]

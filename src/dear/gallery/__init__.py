"""A gallery: images on disk, searchable by class feature, color, shape, texture, object or location."""

from dear.gallery.encoders import AdapterEncoder, Encoder, HeadEncoder
from dear.gallery.gallery import Gallery
from dear.gallery.index import IndexSummary
from dear.gallery.search import Hit, MemoryGallery, parse_by

__all__ = ["AdapterEncoder", "Encoder", "Gallery", "HeadEncoder", "Hit", "IndexSummary", "MemoryGallery", "parse_by"]

"""benchmarks/gallery_quality.py measures what the nearest pictures have in common."""

import runpy
from pathlib import Path

import pytest

from dear.core.errors import DearError
from dear.gallery import Gallery

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gallery_quality.py"
attribute_precision = runpy.run_path(str(BENCHMARK))["attribute_precision"]


def test_precision_counts_what_the_nearest_have_in_common(encoder, tmp_path) -> None:
    gallery = Gallery.create(tmp_path / "world", encoder)
    gallery.add(encoder, ["world:colors"])
    matrix = attribute_precision(gallery, k=479)  # all others: what is found is what there is
    assert list(matrix) == [*gallery.components, "chance"]
    assert matrix["cls"] == pytest.approx(matrix["chance"])
    assert matrix["chance"]["color"] == pytest.approx(100 * 39 / 479)
    nearest = attribute_precision(gallery, k=10)
    assert nearest["chance"] == matrix["chance"]
    assert all(0 <= value <= 100 for row in nearest.values() for value in row.values())


def test_precision_needs_the_truth(encoder, photos, tmp_path) -> None:
    gallery = Gallery.create(tmp_path / "photos_gallery", encoder)
    gallery.add(encoder, [photos])
    with pytest.raises(DearError, match="Attribute World"):
        attribute_precision(gallery)

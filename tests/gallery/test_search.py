"""Rankings against all pairs in numpy, in a table and in memory; filters, weights, sentences, precision."""

import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import dear
from dear.core.errors import DearError
from dear.gallery import Gallery, MemoryGallery, parse_by
from dear.gallery.search import Codes, Snapshot
from dear.gallery.storage import table_schema, to_column, to_matrix, vector_column


@pytest.fixture(scope="module")
def gallery(encoder, tmp_path_factory) -> Gallery:
    gallery = Gallery.create(tmp_path_factory.mktemp("galleries") / "colors", encoder)
    gallery.add(encoder, ["world:colors"])
    return gallery


def by_hand(gallery: Gallery, query, weights: dict[str, float]) -> list[tuple[str, float]]:
    rows = gallery.table.to_arrow()
    scores = np.zeros(len(rows))
    for name, weight in weights.items():
        vectors = to_matrix(rows[vector_column(name)], gallery.dim).astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        scores += weight / sum(weights.values()) * (vectors @ np.asarray(query[name], dtype=np.float64))
    return sorted(zip(rows["path"].to_pylist(), scores, strict=True), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("by", ["cls", "color=0.7,shape=0.3", "cls,color,shape,texture,object,location", "shape=3"])
def test_ranking_is_that_of_all_pairs(gallery, encoder, by) -> None:
    weights = parse_by(by, gallery.components)
    for path in ("world:colors/test/00007", "world:colors/test/00123"):
        query = gallery.query(encoder, gallery.image(path))
        hits, truth = gallery.search(query, weights, k=50), by_hand(gallery, query, weights)
        assert [hit.path for hit in hits] == [path for path, _ in truth[:50]]
        assert np.allclose([hit.score for hit in hits], [score for _, score in truth[:50]], atol=1e-5)
        assert hits[0].path == path
        assert hits[0].score == pytest.approx(1, abs=1e-5)
        assert set(hits[0].scores) == set(weights)
    assert len(gallery.search(query, weights, k=10_000)) == len(gallery)


@dataclass
class Made:
    """Stands for an encoder where vectors are made up."""

    components: tuple[str, ...]
    centred: tuple[str, ...]
    dim: int
    spec: dict[str, str]


def made_gallery(folder: Path, vectors: dict[str, np.ndarray], centred: tuple[str, ...] = ()) -> Gallery:
    """vectors: [images, dim] of each component; the images are called "0", "1", ..."""
    count, dim = next(iter(vectors.values())).shape
    gallery = Gallery.create(
        folder, Made(tuple(vectors), centred, dim, {"kind": "adapter", "folder": "none", "sha256": ""})
    )
    about = [[str(i) for i in range(count)], [1] * count, [1] * count, ["-"] * count, [None] * count]
    columns = [to_column(values) for values in vectors.values()]
    folder.mkdir()
    gallery.add_rows(pa.table([*about, *columns], schema=table_schema(tuple(vectors), dim)))
    return gallery


@given(
    seed=st.integers(0, 2**32),
    common=st.sampled_from([0.0, 1.0, 30.0]),  # how much longer is what all vectors share than what they differ in
    weights=st.tuples(st.floats(0, 1), st.floats(0.01, 1)),
    centred=st.booleans(),
)
@settings(max_examples=25)
def test_the_best_are_found_however_alike_the_vectors_are(tmp_path_factory, seed, common, weights, centred) -> None:
    rng = np.random.default_rng(seed)
    raw = {n: rng.standard_normal((800, 24)) + common * rng.standard_normal(24) for n in ("one", "two")}
    vectors = {n: (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float16) for n, v in raw.items()}
    gallery = made_gallery(tmp_path_factory.mktemp("made") / "gallery", vectors, ("two",) if centred else ())
    total, scores = sum(weights), np.zeros(800)
    query = {}
    for (name, values), weight in zip(vectors.items(), weights, strict=True):
        exact = values.astype(np.float64)
        if name in gallery.centred:
            exact -= exact.mean(0)
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
        query[name] = exact[5] + 0.3 * rng.standard_normal(24) * np.linalg.norm(exact.std(0))
        scores += weight / total * (exact @ (query[name] / np.linalg.norm(query[name])))
        assert np.allclose(gallery.vectors(name), exact, atol=1e-5)
    hits = gallery.search(query, dict(zip(vectors, weights, strict=True)), k=10)
    order = np.argsort(-scores)
    assert np.allclose([hit.score for hit in hits], scores[order[:10]], atol=2e-6)
    assert {int(hit.path) for hit in hits} <= {i for i in order if scores[i] > scores[order[9]] - 2e-6}


def test_what_is_added_or_removed_between_searches_is_seen(tmp_path) -> None:
    vectors = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float16)
    gallery, by = made_gallery(tmp_path / "gallery", {"one": vectors}), {"one": 1.0}
    assert gallery.search({"one": vectors[7]}, by, k=1)[0].path == "7"
    other = Gallery.open(gallery.folder)
    other.remove(["/nothing"])
    other.delete_rows(["7"])
    assert "7" not in [hit.path for hit in gallery.search({"one": vectors[7]}, by, k=299)]
    row = [["new"], [1], [1], ["-"], ["cat"], to_column(vectors[7:8])]
    other.add_rows(pa.table(row, schema=table_schema(("one",), 16)))
    other.compact()
    assert gallery.search({"one": vectors[7]}, by, k=1)[0].path == "new"
    assert [hit.path for hit in gallery.search({"one": vectors[3]}, by, where="label = 'cat'")] == ["new"]


def test_a_write_in_the_middle_of_a_search_is_noticed(tmp_path, monkeypatch) -> None:
    vectors = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float16)
    gallery = made_gallery(tmp_path / "gallery", {"one": vectors})
    other, read = Gallery.open(gallery.folder), Snapshot.codes

    def codes(snapshot: Snapshot, component: str) -> Codes:
        if "7" in other.paths():  # the best is taken out after the search began, and the files are merged
            other.delete_rows(["7"])
            other.compact()
        return read(snapshot, component)

    monkeypatch.setattr(Snapshot, "codes", codes)
    hits = gallery.search({"one": vectors[7]}, {"one": 1.0}, k=299)
    assert len(hits) == 299
    assert "7" not in [hit.path for hit in hits]


def test_filters(gallery, encoder) -> None:
    query = gallery.query(encoder, gallery.image("world:colors/test/00000"))
    hits = gallery.search(query, {"cls": 1}, k=100, where="label = 'teal' AND path LIKE '%6_'")
    assert [hit.path for hit in hits if hit.label != "teal"] == []
    assert sorted(hit.path[-5:] for hit in hits) == [f"{n:05d}" for n in range(160, 170)]
    assert gallery.search(query, {"cls": 1}, where="label = 'mauve'") == []


@pytest.mark.parametrize(
    "where", ["labl = 'cat'", "label =", "", "label", "color_vector = 3", "count(*) > 1", "path = 3"]
)
def test_a_bad_filter_is_one_sentence(gallery, encoder, where) -> None:
    query = gallery.query(encoder, gallery.image("world:colors/test/00000"))
    with pytest.raises(DearError, match=r"does not work .*: write SQL on path, size and label") as caught:
        gallery.search(query, {"cls": 1}, where=where)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_by() -> None:
    components = ("cls", "color", "shape")
    assert parse_by("color=0.7, shape=0.3", components) == {"color": 0.7, "shape": 0.3}
    assert parse_by("color,cls", components) == {"color": 1.0, "cls": 1.0}
    with pytest.raises(DearError, match="no component 'colour' to search by: choose from cls, color, shape"):
        parse_by("colour", components)
    with pytest.raises(DearError, match="weight of color must be a number, not 'much'"):
        parse_by("color=much", components)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"color": -1.0}, "from 0 to 1,000,000"),
        ({"color": float("nan")}, "from 0 to 1,000,000"),
        ({"color": 0.0}, "All weights are zero"),
        ({}, "All weights are zero"),
        ({"mood": 1.0}, "no component 'mood'"),
        ({"shape": 1.0}, "no vector of shape"),
        ({"object": 1.0}, "must have 32 numbers"),
    ],
)
def test_bad_weights_and_queries(gallery, weights, sentence) -> None:
    query = {"cls": np.ones(32), "color": np.ones(32), "object": np.ones(31)}
    with pytest.raises(DearError, match=sentence):
        gallery.search(query, weights)
    with pytest.raises(DearError, match="at least one"):
        gallery.search(query, {"cls": 1.0}, k=0)
    assert gallery.search(query, {"cls": 1.0, "color": 0.0}, k=1)[0].scores.keys() == {"cls"}


def test_an_empty_gallery_finds_nothing(encoder, tmp_path) -> None:
    assert Gallery.create(tmp_path / "gallery", encoder).search({"cls": np.ones(32)}, {"cls": 1.0}) == []


def test_a_sentence_is_encoded_as_a_class_would_be(gallery, encoder, run, model) -> None:
    sentences = ["a red car", "a very long blue sign at the beach"]
    before, classes = model.model.encode_text(model.model.classes).clone(), model.classes
    features = model.encode_text(sentences)
    other = dear.load(run, classes=sentences, template="{}", device="cpu")
    assert torch.allclose(features, other.model.encode_text(other.model.classes), atol=1e-5)
    assert torch.equal(model.model.encode_text(model.model.classes), before)
    assert model.classes == classes
    query = gallery.query(encoder, "a red car")
    assert set(query) == set(model.model.components)
    assert np.allclose(query["color"], features[0], atol=1e-5)
    assert np.array_equal(query["color"], query["cls"])


class Plain:
    """A picture of one color, and an encoder that sees nothing but its mean color."""

    def __init__(self, color: tuple[int, int, int]) -> None:
        self.color = color

    def open(self) -> Image.Image:
        return Image.new("RGB", (4, 4), self.color)


class MeanColor:
    components, centred = ("cls", "color"), ("color",)

    def preprocess(self, picture: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(picture, np.float32) / 255).permute(2, 0, 1)

    def encode_image(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        means = pixels.mean((2, 3))
        return {"cls": means, "color": means}


@pytest.mark.parametrize("by", ["cls", "color"])
def test_it_ranks_by_cosine(by: str) -> None:
    colors = [tuple(c) for c in np.random.default_rng(0).integers(0, 256, (100, 3)).tolist()]
    gallery = MemoryGallery(MeanColor(), {str(i): Plain(c) for i, c in enumerate(colors)})
    query = (200, 40, 90)
    mean = np.mean(colors, axis=0) if by == "color" else np.zeros(3)

    def cosine(a, b) -> float:
        a, b = np.asarray(a) - mean, np.asarray(b) - mean
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    expected = sorted(range(100), key=lambda i: -cosine(query, colors[i]))[:7]
    hits = gallery.search(Image.new("RGB", (4, 4), query), by, 7)
    assert [hit.path for hit in hits] == [str(i) for i in expected]
    assert hits[0].score == pytest.approx(cosine(query, colors[expected[0]]), abs=1e-3)
    assert gallery.image(hits[0].path).getpixel((0, 0)) == colors[expected[0]]


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

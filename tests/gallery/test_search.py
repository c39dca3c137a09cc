"""Rankings against all pairs in numpy, filters, weights, sentences."""

import numpy as np
import pytest
import torch

import dear
from dear.errors import DearError
from dear.gallery import Gallery, ann, parse_by, query_of_image, query_of_text
from dear.gallery.columns import as_matrix, vector_column


@pytest.fixture(scope="module")
def gallery(run, model, tmp_path_factory) -> Gallery:
    gallery = Gallery.create(tmp_path_factory.mktemp("galleries") / "colors", run, model)
    gallery.add(model, ["world:colors"])
    return gallery


def by_hand(gallery: Gallery, query, weights: dict[str, float]) -> list[tuple[str, float]]:
    rows = gallery.table.to_arrow()
    scores = np.zeros(len(rows))
    for name, weight in weights.items():
        vectors = as_matrix(rows[vector_column(name)], gallery.dim).astype(np.float64)
        scores += weight / sum(weights.values()) * (vectors @ np.asarray(query[name], dtype=np.float64))
    return sorted(zip(rows["path"].to_pylist(), scores, strict=True), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("by", ["cls", "color=0.7,shape=0.3", "cls,color,shape,texture,object,location", "shape=3"])
def test_ranking_is_that_of_all_pairs(gallery, model, by) -> None:
    weights = parse_by(by, gallery.components)
    for path in ("world:colors/test/00007", "world:colors/test/00123"):
        query = query_of_image(model, gallery.image(path))
        hits, truth = gallery.search(query, weights, k=50), by_hand(gallery, query, weights)
        assert [hit.path for hit in hits] == [path for path, _ in truth[:50]]
        assert np.allclose([hit.score for hit in hits], [score for _, score in truth[:50]], atol=1e-5)
        assert hits[0].path == path
        assert hits[0].score == pytest.approx(1, abs=1e-5)
        assert set(hits[0].scores) == set(weights)
    assert len(gallery.search(query, weights, k=10_000)) == len(gallery)


def test_with_an_index_the_ranking_of_the_candidates_is_exact(run, model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ann, "WORTH_IT", 300)
    gallery = Gallery.create(tmp_path / "gallery", run, model)
    gallery.add(model, ["world:colors"])
    assert all(ann.unindexed(gallery.table, vector_column(name)) == 0 for name in gallery.components)
    gallery.add(model, ["world:colors:sketch"])
    assert all(ann.unindexed(gallery.table, vector_column(name)) == 0 for name in gallery.components)
    weights, found = {"color": 0.7, "object": 0.3}, []
    for number in range(0, 480, 40):
        query = query_of_image(model, gallery.image(f"world:colors/test/{number:05d}"))
        hits, truth = gallery.search(query, weights), dict(by_hand(gallery, query, weights))
        assert np.allclose([hit.score for hit in hits], [truth[hit.path] for hit in hits], atol=1e-5)
        found += [hit.path in list(truth)[:10] for hit in hits]
        assert hits[0].path == f"world:colors/test/{number:05d}"
    assert np.mean(found) >= 0.95
    gallery.remove([hits[0].path])
    assert hits[0].path not in [hit.path for hit in gallery.search(query, weights)]
    assert {hit.label for hit in gallery.search(query, weights, where="label = 'teal'")} == {"teal"}


def test_filters(gallery, model) -> None:
    query = query_of_image(model, gallery.image("world:colors/test/00000"))
    hits = gallery.search(query, {"cls": 1}, k=100, where="label = 'teal' AND path LIKE '%6_'")
    assert [hit.path for hit in hits if hit.label != "teal"] == []
    assert sorted(hit.path[-5:] for hit in hits) == [f"{n:05d}" for n in range(160, 170)]
    assert gallery.search(query, {"cls": 1}, where="label = 'mauve'") == []


@pytest.mark.parametrize(
    "where", ["labl = 'cat'", "label =", "", "label", "color_vector = 3", "count(*) > 1", "path = 3"]
)
def test_a_bad_filter_is_one_sentence(gallery, model, where) -> None:
    query = query_of_image(model, gallery.image("world:colors/test/00000"))
    with pytest.raises(DearError, match=r"does not work .*: write SQL on path, size and label") as caught:
        gallery.search(query, {"cls": 1}, where=where)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_by() -> None:
    known = ("cls", "color", "shape")
    assert parse_by("color=0.7, shape=0.3", known) == {"color": 0.7, "shape": 0.3}
    assert parse_by("color,cls", known) == {"color": 1.0, "cls": 1.0}
    with pytest.raises(DearError, match="no component 'colour' to search by: choose from cls, color, shape"):
        parse_by("colour", known)
    with pytest.raises(DearError, match="weight of color must be a number, not 'much'"):
        parse_by("color=much", known)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"color": -1.0}, "from 0 on"),
        ({"color": float("nan")}, "from 0 on"),
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


def test_an_empty_gallery_finds_nothing(run, model, tmp_path) -> None:
    assert Gallery.create(tmp_path / "gallery", run, model).search({"cls": np.ones(32)}, {"cls": 1.0}) == []


def test_a_sentence_is_encoded_as_a_class_would_be(run, model) -> None:
    sentences = ["a red car", "a very long blue sign at the beach"]
    before, classes = model.model.text_features().clone(), model.classes
    features = model.encode_text(sentences)
    other = dear.load(run, classes=sentences, template="{}", device="cpu")
    assert torch.allclose(features, other.model.text_features(), atol=1e-5)
    assert torch.equal(model.model.text_features(), before)
    assert model.classes == classes
    query = query_of_text(model, "a red car")
    assert set(query) == set(model.model.components)
    assert torch.allclose(query["color"], features[0], atol=1e-5)
    assert torch.equal(query["color"], query["cls"])

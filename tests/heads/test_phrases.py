"""The shipped phrase lists, and phrase files of the user's."""

from collections import Counter
from pathlib import Path

import pytest

from dear.core.errors import DearError
from dear.core.names import CORE_ATTRIBUTES
from dear.data.world.vocabulary import VALUES, WHERE
from dear.heads.concepts import CONCEPTS
from dear.heads.phrases import WORLD, labelled_phrases, load_phrases


def file_of(folder: Path, text: str) -> Path:
    path = folder / "phrases.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_corpus_is_large_unique_and_even_over_the_twelve_concepts():
    phrases = load_phrases()
    assert len(phrases) == len({phrase.lower() for phrase in phrases}) >= 3000
    counts = Counter(concept for _, concept in labelled_phrases())
    assert set(counts) == set(CONCEPTS)
    assert max(counts.values()) == min(counts.values())


def test_every_phrase_fits_the_context_easily():
    import open_clip

    tokens = open_clip.get_tokenizer("ViT-B-16")(load_phrases() + load_phrases(WORLD))
    assert (tokens != 0).sum(dim=1).max() <= 20


def test_the_usual_openings_do_not_give_the_concept_away():
    """The usual openings serve at least four concepts each."""
    opened: dict[str, set[str]] = {}
    for phrase, concept in labelled_phrases():
        opened.setdefault(" ".join(phrase.split()[:3]), set()).add(concept)
    for opening in ("a photo of", "an image of", "a picture of"):
        assert len(opened[opening]) >= 4, (opening, opened[opening])


def test_a_world_phrase_names_one_value_and_it_is_of_its_attribute():
    attribute_of = {value: attribute for attribute, values in VALUES.items() for value in values}
    labelled = labelled_phrases(WORLD)
    assert {concept for _, concept in labelled} == set(CORE_ATTRIBUTES)
    for phrase, concept in labelled:
        assert [attribute_of[word] for word in phrase.split() if word in attribute_of] == [concept], phrase
    named = {word for phrase, _ in labelled for word in phrase.split()}
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


def test_labels_are_asked_for_where_they_are_missing(tmp_path: Path):
    with pytest.raises(DearError, match=r'"a cat" .* has no concept'):
        labelled_phrases(file_of(tmp_path, "color\tred\na cat\n"))

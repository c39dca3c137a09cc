"""Captions of Attribute World and phrases for a single attribute value, used by other scripts here and by tests."""

from random import Random

from dear.data.world.vocabulary import ATTRIBUTES, WHERE, Traits

# Phrases for a single value of each attribute. {} is the value; a location has its preposition.
ALONE: dict[str, tuple[str, ...]] = {
    "color": ("something {}", "a {} sign", "the color {}", "a sign painted {}", "{} paint"),
    "shape": ("a {}", "a sign shaped like a {}", "a {} shape", "the shape of a {}", "a {} outline"),
    "texture": ("a {} pattern", "a {} surface", "a {} texture", "something {}", "a sign that looks {}"),
    "object": ("a {}", "a drawing of a {}", "a picture of a {}", "a sign with a {}", "a {} in the middle"),
    "location": ("a scene {}", "a view {}", "a picture taken {}", "a sign {}", "somewhere {}"),
}


def name_alone(attribute: str, value: str, template: str) -> str:
    """ "red" in "something {}" -> "something red"; "beach" in "a view {}" -> "a view at the beach"."""
    return _with_article(template.format(WHERE[value] if attribute == "location" else value))


def caption(traits: Traits, mentioned: frozenset[str] | set[str]) -> str:
    """A sentence that names the mentioned attributes and no other: "a cat on a red striped hexagon at the beach"."""
    adjectives = [getattr(traits, a) for a in ("color", "texture") if a in mentioned]
    parts = []
    if "object" in mentioned:
        parts.append(f"a {traits.object}")
    if adjectives or "shape" in mentioned:
        sign = " ".join(["a", *adjectives, traits.shape if "shape" in mentioned else "sign"])
        parts.append(f"on {sign}" if parts else sign)
    if "location" in mentioned:
        parts.append(WHERE[traits.location] if parts else f"a scene {WHERE[traits.location]}")
    return _with_article(" ".join(parts))


def random_caption(traits: Traits, rng: Random) -> tuple[str, frozenset[str]]:
    """A caption as a person might write it, and the attributes it mentions: all, several, or one."""
    count = rng.choices((1, 2, 3, 4, 5), weights=(10, 20, 25, 20, 25))[0]
    mentioned = frozenset(rng.sample(ATTRIBUTES, count))
    if count == 1:
        (attribute,) = mentioned
        return name_alone(attribute, getattr(traits, attribute), rng.choice(ALONE[attribute])), mentioned
    return caption(traits, mentioned), mentioned


def _with_article(text: str) -> str:
    """ "a apple" -> "an apple", wherever it stands."""
    words = text.split()
    for i, word in enumerate(words[:-1]):
        if word == "a" and words[i + 1][0] in "aeiou":
            words[i] = "an"
    return " ".join(words)

"""Downstream tasks of Attribute World, each with base and novel classes, in any rendering style.

All pictures show combinations that were held out of dear-mini's pretraining.
"""

from random import Random

from dear.core.errors import DearError
from dear.data.dataset import Dataset, Example
from dear.data.world.vocabulary import LOCATIONS, STYLES, VALUES, WHERE, Scene, Traits, is_held_out

TRAIN, VAL, TEST = 32, 8, 40  # pictures per class

# One attribute is the class, all others vary.
_SINGLE = {
    "colors": ("color", "a {} sign"),
    "shapes": ("shape", "a sign shaped like a {}"),
    "textures": ("texture", "a {} surface"),
    "objects": ("object", "a drawing of a {}"),
    "places": ("location", "a scene {}"),
}
TASKS = (*_SINGLE, "signs", "outings")


def world_task(name: str, style: str = "plain") -> Dataset:
    """A task by name; the same name and style always give the same pictures."""
    if name not in TASKS:
        raise DearError(f"Attribute World has no task {name!r}: choose from {', '.join(TASKS)}.")
    if style not in STYLES:
        raise DearError(f"Attribute World has no style {style!r}: choose from {', '.join(STYLES)}.")
    classes, template = _classes(name)
    rng = Random(f"{name}/{style}")
    splits: list[list[Example]] = [[], [], []]
    for label, fixed in enumerate(classes.values()):
        for split, count in zip(splits, (TRAIN, VAL, TEST), strict=True):
            split += [Example(Scene(_held_out(fixed, rng), rng.getrandbits(40), style), label) for _ in range(count)]
    full_name = f"world:{name}" if style == "plain" else f"world:{name}:{style}"
    train, val, test = (tuple(split) for split in splits)
    return Dataset(full_name, tuple(classes), template, train, val, test)


def _classes(name: str) -> tuple[dict[str, dict[str, str]], str]:
    """Class name -> the attribute values that define it; and the template."""
    if name in _SINGLE:
        attribute, template = _SINGLE[name]
        names = WHERE if attribute == "location" else {value: value for value in VALUES[attribute]}
        return {names[value]: {attribute: value} for value in VALUES[attribute]}, template
    rng = Random(name)
    if name == "signs":  # classes share color and shape, so that similar textures must be distinguished
        looks = (("red", "hexagon"), ("teal", "oval"), ("purple", "shield"), ("orange", "flower"))
        textures = ("zigzag", "wavy", "bricked", "woven", "speckled", "marbled")
        triples = [(c, t, s) for c, s in looks for t in textures]
        rng.shuffle(triples)
        return {f"{c} {t} {s}": {"color": c, "texture": t, "shape": s} for c, t, s in triples}, "a {}"
    pairs = [(o, p) for o in VALUES["object"] for p in LOCATIONS]
    return {f"{o} {WHERE[p]}": {"object": o, "location": p} for o, p in rng.sample(pairs, 24)}, "a {}"


def _held_out(fixed: dict[str, str], rng: Random) -> Traits:
    while True:
        traits = Traits(**{a: fixed.get(a) or rng.choice(values) for a, values in VALUES.items()})
        if is_held_out(traits):
            return traits

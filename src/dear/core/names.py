"""Names that many rooms share: components of a model, the paper's core attributes, ways of inference."""

CLS = "cls"
CORE_ATTRIBUTES = ("color", "shape", "texture", "object", "location")

COMPONENT_COLORS = {
    CLS: "#4c566a",
    "color": "#d1495b",
    "shape": "#2e86ab",
    "texture": "#8f6bb3",
    "object": "#e09f3e",
    "location": "#4f9d69",
}
"""One colour per component, the same in every picture and on every page."""

PLAIN, FUSION, DECOUPLED = "plain", "fusion", "decoupled"


def inferences(components: tuple[str, ...]) -> tuple[str, ...]:
    """How a model with these components can answer, the usual way first.

    One component: plain. Several: their weighted sum (fusion), or the class feature alone (decoupled).
    """
    return (FUSION, DECOUPLED) if len(components) > 1 else (PLAIN,)

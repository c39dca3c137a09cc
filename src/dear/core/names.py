"""Names that many rooms share: components of a model, the paper's core attributes, ways of inference."""

CLS = "cls"
AUTO = "auto"  # the name of a setting that the package chooses: a backbone, a role map, a method
CORE_ATTRIBUTES = ("color", "shape", "texture", "object", "location")

PLAIN, FUSION, DECOUPLED = "plain", "fusion", "decoupled"


def inferences(components: tuple[str, ...]) -> tuple[str, ...]:
    """Ways in which a model with these components can answer, the usual one first.

    One component: plain. Several: their weighted sum (fusion), or the class feature alone (decoupled).
    """
    return (FUSION, DECOUPLED) if len(components) > 1 else (PLAIN,)

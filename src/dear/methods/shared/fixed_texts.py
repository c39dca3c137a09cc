"""Methods for both towers on a backbone whose texts are fixed: they adapt the image side alone."""

from dear.clip import Backbone
from dear.core.words import print_once


def learns_texts(backbone: Backbone) -> bool:
    """Whether the layers of the text tower can be adapted; where they cannot, says so once."""
    if backbone.text.tier == "full":
        return True
    print_once(f"Only the image side is adapted: the class texts of {backbone.name} are fixed ({backbone.text.tier}).")
    return False

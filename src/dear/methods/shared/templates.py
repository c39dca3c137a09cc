"""Templates of frozen class texts that serve as targets."""

from open_clip import OPENAI_IMAGENET_TEMPLATES

SIXTY = tuple(template("{}") for template in OPENAI_IMAGENET_TEMPLATES[:60])
"""PromptSRC's choice for every dataset: the first sixty of the eighty that CLIP's authors wrote for ImageNet."""

"""The published tags of an OpenCLIP name: which weights fit it, and how their pictures are prepared."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dear.clip.shapes import require_shapes
from dear.core.errors import DearError, warn

_PICTURE_SETTINGS = ("mean", "std", "interpolation", "resize_mode")


def check_tag(source: str, pretrained: str | None, config: dict[str, Any]) -> str | None:
    """The tag or file for OpenCLIP. A wrong activation, the most frequent mistake that goes unnoticed, is refused."""
    import open_clip

    if source.startswith(("local-dir:", "hf-hub:")):
        refuse_tag(source, pretrained)
        return None
    tags = open_clip.list_pretrained_tags_by_model(source.replace("/", "-"))
    if not pretrained:
        raise DearError(f"{source} needs weights: choose --pretrained from {', '.join(tags) or 'a checkpoint file'}.")
    if Path(pretrained).is_file():
        require_shapes(source.replace("/", "-"), pretrained)
        return pretrained
    tag = open_clip.get_pretrained_cfg(source.replace("/", "-"), pretrained)
    if not tag:
        raise DearError(
            f"{source} has no pretrained tag {pretrained!r} and there is no such file: choose from {', '.join(tags)}."
        )
    has, needs = bool(config.get("quick_gelu")), bool(tag.get("quick_gelu"))
    # In OpenCLIP the tag "openai" means QuickGELU, whatever the model's name: we load it so.
    if has != needs and pretrained != "openai":
        stem = source.removesuffix("-quickgelu")
        raise DearError(
            f"The weights {pretrained} were trained with {'QuickGELU' if needs else 'GELU'}, but {source} uses "
            f"{'QuickGELU' if has else 'GELU'}: use --model {stem + '-quickgelu' if needs else stem}."
        )
    return pretrained


def refuse_tag(source: str, pretrained: str | None) -> None:
    """Refuses a tag beside a source that has its own weights."""
    if pretrained:
        raise DearError(f"{source} has its own weights: leave out --pretrained.")


def pictures_of(source: str, pretrained: str | None, random_weights: bool) -> dict[str, Any]:
    """Picture settings (mean, std, resizing) that OpenCLIP would not find itself: for a file of weights, or none.

    A tag, a hub repository and a folder have their own. Where the tags of a name differ, the most frequent settings are
    taken, with a warning.
    """
    import open_clip

    name = source.replace("/", "-")
    if ":" in source or (not random_weights and open_clip.get_pretrained_cfg(name, pretrained or "")):
        return {}
    choices = tag_settings(name)
    if not choices:
        return {}
    taken = choices.most_common(1)[0][0]
    if len(choices) > 1 and not random_weights:
        warn(
            f"Weights of {name} were trained with different picture settings, and {pretrained} does not name its own. "
            f"Taken: {taken}. For others, put the file into a folder with an open_clip_config.json that has a "
            "preprocess_cfg, and use --model local-dir:FOLDER."
        )
    return json.loads(taken)


def tag_settings(name: str) -> Counter[str]:
    """The settings of the tags of an OpenCLIP name, as JSON, each with the number of its tags."""
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(name)
    return Counter(json.dumps(_tag_pictures(name, tag)) for tag in tags)


def _tag_pictures(name: str, tag: str) -> dict[str, Any]:
    import open_clip
    from open_clip.transform import PreprocessCfg

    given = open_clip.get_pretrained_cfg(name, tag)
    default = asdict(PreprocessCfg())
    settings = {key: given.get(key) or default[key] for key in _PICTURE_SETTINGS}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}

"""Picture settings (mean, std, resizing) of weights that do not name them: those of the model's published tags."""

import json
import sys
from collections import Counter
from dataclasses import asdict
from typing import Any

_SETTINGS = ("mean", "std", "interpolation", "resize_mode")


def pictures_of(source: str, pretrained: str | None, random_weights: bool) -> dict[str, Any]:
    """Settings that OpenCLIP would not find itself: for a file of weights, or none, under an OpenCLIP name.

    A tag, a hub repository and a folder have their own. Where the tags of a name differ, the most frequent settings are
    taken, and a line says so.
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
        print(
            f"Weights of {name} were trained with different picture settings, and {pretrained} does not name its own. "
            f"Taken: {taken}. For others, put the file into a folder with an open_clip_config.json that has a "
            "preprocess_cfg, and use --model local-dir:FOLDER.",
            file=sys.stderr,
        )
    return json.loads(taken)


def tag_settings(name: str) -> Counter[str]:
    """The settings of the tags of an OpenCLIP name, as JSON, each with the number of its tags."""
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(name)
    return Counter(json.dumps(_settings(name, tag)) for tag in tags)


def _settings(name: str, tag: str) -> dict[str, Any]:
    import open_clip
    from open_clip.transform import PreprocessCfg

    given = open_clip.get_pretrained_cfg(name, tag)
    default = asdict(PreprocessCfg())
    settings = {key: given.get(key) or default[key] for key in _SETTINGS}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}

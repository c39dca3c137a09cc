"""Models in the format of transformers, by their kind."""

from typing import Any

from dear.clip.support import refusal
from dear.clip.transformers_chinese import load_chinese
from dear.clip.transformers_clip import load_clip
from dear.clip.transformers_files import CONFIG, find_folder
from dear.clip.transformers_siglip import load_siglip
from dear.core.files import read_json

_KINDS = {"clip": load_clip, "metaclip_2": load_clip, "siglip": load_siglip, "chinese_clip": load_chinese}


def load_transformers(source: str) -> tuple[Any, Any]:
    """A model with weights from a folder or the hub, and its tokenizer.

    A config is judged by its model_type alone; code that it names is never run.
    """
    folder = find_folder(source)
    config = read_json(folder / CONFIG)
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in _KINDS:
        raise refusal(source, f"it is {kind or 'no model'} in transformers, not one of {', '.join(_KINDS)}")
    return _KINDS[kind](folder, config, source)

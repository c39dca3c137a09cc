"""CLIP weights that are already on this machine, in the caches of OpenCLIP, the Hugging Face hub and torch hub."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from dear.clip.support import judge, why_refused
from dear.clip.transformers_files import TRANSFORMERS

# ViT-B/16 first: its heads have measured roles, and a CPU can afford it. Then the strongest of the others.
_PREFERRED = ((768, 16), (1024, 14), (768, 32))  # width and patch size of the image tower


class CachedBackbone(NamedTuple):
    """Values for --model and --pretrained, and the cache that holds the weights."""

    model: str
    pretrained: str | None
    cache: str


def best_cached() -> CachedBackbone | None:
    """The backbone to take if none is named; None: no weights are on this machine."""
    ranked = [(_rank(*shape), number, found) for number, (found, shape) in enumerate(chain(_by_tag(), _transformers()))]
    return min(ranked)[2] if ranked else None


def _rank(width: int, patch: int) -> int:
    return _PREFERRED.index((width, patch)) if (width, patch) in _PREFERRED else len(_PREFERRED)


def _by_tag() -> Iterator[tuple[CachedBackbone, tuple[int, int]]]:
    """Weights that OpenCLIP, or OpenAI's package, has downloaded by name and tag; OpenAI's, with known roles, first."""
    import open_clip
    import torch

    places = {
        "OpenCLIP's cache": Path("~/.cache/clip").expanduser(),
        "torch hub's cache": Path(torch.hub.get_dir()) / "checkpoints",
    }
    for model, tag in sorted(open_clip.list_pretrained(), key=lambda pair: pair[1] != "openai"):
        config, source = open_clip.get_model_config(model), open_clip.get_pretrained_cfg(model, tag)
        if config is None or why_refused(config) or judge(config).reason:  # every method works with a full one
            continue
        vision, needs_quick_gelu = config["vision_cfg"], bool(source.get("quick_gelu"))
        if tag != "openai" and needs_quick_gelu != bool(config.get("quick_gelu")):
            continue  # refused when loaded
        shape = vision.get("width", 0), vision.get("patch_size", 0)
        repository, _, file = source.get("hf_hub", "").rpartition("/")
        if repository and _in_hub_cache(repository, file):
            yield CachedBackbone(model, tag, "the Hugging Face cache"), shape
        for name, folder in places.items() if source.get("url") else ():
            weights = folder / source["url"].rpartition("/")[2]
            if weights.is_file():  # by its path, because OpenCLIP would look on the hub first
                stem = model.removesuffix("-quickgelu")
                yield CachedBackbone(stem + "-quickgelu" * needs_quick_gelu, str(weights), name), shape


def _in_hub_cache(repository: str, file: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    names = [file] if file else ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]
    return any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)


def _transformers() -> Iterator[tuple[CachedBackbone, tuple[int, int]]]:
    """CLIP checkpoints that transformers has downloaded."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda one: (not one.repo_id.startswith("openai/"), one.repo_id)):
        for revision in repository.revisions:
            files = {file.file_name: file.file_path for file in revision.files}
            if repository.repo_type == "model" and {"config.json", "model.safetensors"} <= files.keys():
                config = _read_model_config(files["config.json"])
                if config.get("model_type") == "clip":
                    vision = config.get("vision_config") or {}
                    shape = vision.get("hidden_size", 768), vision.get("patch_size", 32)
                    found = CachedBackbone(f"{TRANSFORMERS}{repository.repo_id}", None, "the Hugging Face cache")
                    yield found, shape


def _read_model_config(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}

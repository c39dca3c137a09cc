"""The backbone that is taken if none is named: the best one in the caches of this machine, never the toy for photos."""

import json
from pathlib import Path

import pytest

from dear.clip.local_cache import CachedBackbone, best_cached
from dear.core.errors import DearError
from dear.training.backbone import choose_backbone


@pytest.fixture
def caches(tmp_path: Path, monkeypatch) -> Path:
    """Empty caches, in place of those of whoever runs the tests."""
    hub = tmp_path / "hub"
    hub.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(hub), raising=False)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "torch"))
    return tmp_path


def put(caches: Path, repository: str, **files: str) -> None:
    """A repository in the layout of the hub's cache."""
    folder = caches / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    for name, content in files.items():
        blob = folder / "blobs" / name
        blob.parent.mkdir(exist_ok=True)
        blob.write_text(content)
        (snapshot / name).symlink_to(blob)


def test_photos_without_any_weights_are_refused_with_the_line_to_type(caches: Path) -> None:
    with pytest.raises(DearError, match="add --model ViT-B-16 --pretrained openai"):
        choose_backbone("auto", None, ["photos/"])
    assert choose_backbone("auto", None, ["world:signs"]) == ("dear-mini", None, "", False)
    assert choose_backbone("dear-mini", None, ["photos/"]).is_toy
    assert not choose_backbone("dear-mini", None, ["world:signs"]).is_toy


def test_the_best_of_what_is_there_is_taken_and_named(caches: Path, capsys) -> None:
    put(caches, "timm/vit_base_patch32_clip_224.laion2b_e16", **{"open_clip_model.safetensors": ""})
    assert best_cached() == ("ViT-B-32", "laion2b_e16", "the Hugging Face cache")
    clip = {"model_type": "clip", "vision_config": {"hidden_size": 1024, "patch_size": 14}}
    put(caches, "openai/clip-vit-large-patch14", **{"config.json": json.dumps(clip), "model.safetensors": ""})
    assert best_cached() == ("transformers:openai/clip-vit-large-patch14", None, "the Hugging Face cache")
    file = caches / ".cache" / "clip" / "ViT-B-16.pt"  # as OpenAI's package and older OpenCLIP store it
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert best_cached() == CachedBackbone("ViT-B-16-quickgelu", str(file), "OpenCLIP's cache")
    put(caches, "timm/vit_base_patch16_clip_224.openai", **{"open_clip_model.safetensors": ""})
    choose_backbone("auto", None, ["photos/"]).say()
    assert capsys.readouterr().out.startswith("backbone: ViT-B-16 openai (found in the Hugging Face cache")


def test_other_models_and_damaged_configs_are_passed_over(caches: Path) -> None:
    put(caches, "google/siglip", **{"config.json": '{"model_type": "siglip"}', "model.safetensors": ""})
    put(caches, "someone/broken", **{"config.json": "{", "model.safetensors": ""})
    put(caches, "someone/no-weights", **{"config.json": '{"model_type": "clip"}'})
    assert best_cached() is None

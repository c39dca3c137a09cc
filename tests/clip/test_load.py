"""A backbone loads exactly as named, or is refused with a sentence."""

import dataclasses
import json

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from dear.clip import load_backbone
from dear.clip.identity import hash_weights
from dear.clip.support import why_unsupported
from dear.core.errors import DearError
from hostile import survives

REFUSED = {
    "RN50": "ResNet",
    "coca_ViT-B-32": "CoCa",
    "ViT-B-16-SigLIP": "timm",
    "roberta-ViT-B-32": "Hugging Face",
    "ViT-L-14-CLIPA": "CLS",
    "convnext_base": "timm",
    "EVA02-B-16": "timm",
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_towers_are_refused(name: str) -> None:
    with pytest.raises(DearError, match=REFUSED[name]) as caught:
        load_backbone(name, random_weights=True)
    assert "OpenCLIP's own ViT" in str(caught.value)


def test_every_open_clip_config_is_supported_or_has_a_reason() -> None:
    verdicts = {name: why_unsupported(open_clip.get_model_config(name)) for name in open_clip.list_models()}
    assert verdicts["ViT-B-16"] is None
    assert verdicts["ViT-H-14"] is None
    assert sum(reason is None for reason in verdicts.values()) >= 30


def test_unknown_names_and_tags_come_with_a_hint() -> None:
    with pytest.raises(DearError, match=r"did you mean .*ViT-B-16"):
        load_backbone("ViT-B16", "openai")
    with pytest.raises(DearError, match="openai"):
        load_backbone("ViT-B-16", "openia")
    with pytest.raises(DearError, match="needs weights"):
        load_backbone("ViT-B-16")
    with pytest.raises(DearError, match="does not exist"):
        load_backbone("local-dir:/nowhere/at/all")
    with pytest.raises(DearError, match="has its own weights"):
        load_backbone("dear-mini", "openai")


def test_activation_mismatch_with_the_tag_is_refused() -> None:
    with pytest.raises(DearError, match="use --model ViT-L-14-quickgelu"):
        load_backbone("ViT-L-14", "metaclip_400m")
    with pytest.raises(DearError, match="use --model ViT-B-16-quickgelu"):
        load_backbone("ViT-B-16", "dfn2b")


def write_local_dir(folder, config, weights) -> None:
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "open_clip_model.safetensors")


@pytest.fixture
def local_dir(tmp_path):
    config = open_clip.get_model_config("ViT-S-32-alt")
    config["vision_cfg"] |= {"layers": 2, "width": 64}
    config["text_cfg"] |= {"layers": 2, "width": 32, "heads": 2}
    torch.manual_seed(1)
    model = open_clip.CLIP(**config)
    write_local_dir(tmp_path / "model", {"model_cfg": config, "preprocess_cfg": {}}, model.state_dict())
    return tmp_path / "model", config, model


def test_local_dir_loads_its_weights_frozen(local_dir) -> None:
    folder, _, model = local_dir
    backbone = load_backbone(f"local-dir:{folder}")
    pixels = torch.randn(1, 3, 224, 224)
    model.eval()
    torch.testing.assert_close(backbone.image.encode(pixels), model.encode_image(pixels))
    assert not any(p.requires_grad for p in backbone.model.parameters())
    assert backbone.activation == "gelu"


def test_a_checkpoint_file_replaces_a_tag(tmp_path) -> None:
    original = load_backbone("ViT-S-32-alt", random_weights=True)
    file = tmp_path / "mine.safetensors"
    save_file({k: v.contiguous() for k, v in original.model.state_dict().items()}, file)
    loaded = load_backbone("ViT-S-32-alt", str(file))
    assert loaded.identity.weights == original.identity.weights
    file.write_bytes(b"no weights at all")
    with pytest.raises(DearError, match="could not be loaded"):
        load_backbone("ViT-S-32-alt", str(file))


def test_broken_local_dirs_are_refused(local_dir, tmp_path) -> None:
    folder, _, _ = local_dir
    weights = folder / "open_clip_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DearError, match="could not be loaded"):
        load_backbone(f"local-dir:{folder}")
    weights.unlink()
    with pytest.raises(DearError, match="no weights"):
        load_backbone(f"local-dir:{folder}")
    (folder / "open_clip_config.json").write_text("{}")
    weights.write_bytes(whole)
    with pytest.raises(DearError, match="model_cfg"):
        load_backbone(f"local-dir:{folder}")
    (folder / "open_clip_config.json").write_text("{")
    with pytest.raises(DearError, match="cannot be read as JSON"):
        load_backbone(f"local-dir:{folder}")


def test_configs_with_any_field_missing_of_another_kind_or_too_large(local_dir) -> None:
    folder, _, _ = local_dir
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["vocab_size"] = 500  # random weights come quicker
    config["preprocess_cfg"] = {"size": 224, "mean": [0.5] * 3, "std": [0.5] * 3}

    def use(changed: object) -> object:
        (folder / "open_clip_config.json").write_text(json.dumps(changed))
        return load_backbone(f"local-dir:{folder}", random_weights=True)

    use(config)
    assert survives(use, config, [None, -1, 90_000, 10**9, "x", []]) > 60


def test_identity_tells_backbones_apart(tiny) -> None:
    one, same, other = tiny(seed=0), tiny(seed=0), tiny(seed=1)
    assert one.identity == same.identity
    one.identity.require_same(same.identity.to_json(), "The adapter")
    with pytest.raises(DearError, match="The adapter was made for tiny"):
        one.identity.require_same(other.identity.to_json(), "The adapter")
    quick = dataclasses.replace(one.identity, activation="quick_gelu")
    with pytest.raises(DearError, match="quick_gelu"):
        one.identity.require_same(quick.to_json(), "The adapter")


def test_hash_survives_a_cast_but_not_a_changed_bit(tiny) -> None:
    backbone = tiny()
    before = hash_weights(backbone.model)
    assert hash_weights(backbone.model.double()) == before
    backbone.model.float().visual.proj[3, 3] += 1e-6
    assert hash_weights(backbone.model) != before

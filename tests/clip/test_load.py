"""A backbone loads exactly as named, or is refused with a sentence."""

import dataclasses
import json
from collections import Counter

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from dear.clip import load_backbone, wrap
from dear.clip.identity import hash_weights
from dear.clip.support import judge, refusal, usable_models, why_refused
from dear.clip.tags import pictures_of
from dear.core.errors import DearError, DearWarning
from hostile import survives
from small_models import save_model

TIERS_OF_NAMES = {
    ("full", "full"): 105,
    ("full", "words"): 10,  # text towers of Hugging Face
    ("features", "full"): 29,  # ConvNeXt, ResNet, MobileCLIP S, swin, relative positions
}


def config_of(name: str = "ViT-B-32", **parts: dict) -> dict:
    config = open_clip.get_model_config(name)
    for part, values in parts.items():
        if part in ("vision_cfg", "text_cfg"):
            config[part] |= values
        else:
            config[part] = values
    return config


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (config_of(text_cfg={"text_arch": "modern"}), "it has text_arch = 'modern', which this version does not know"),
        (config_of(text_cfg={"variable_text": True}), "variable_text = True"),
        (config_of(vision_cfg={"image_seq_len": 256}), "image_seq_len = 256"),
        (config_of(genlip_cfg={"depth": 3}), "genlip_cfg"),
        ({"embed_dim": 8, "audio_cfg": {"width": 3}, "text_cfg": {}}, "it has no image tower"),
        ({"embed_dim": 8, "vision_cfg": {}}, "it has no text tower"),
    ],
)
def test_configs_of_newer_kinds_are_refused(config: dict, reason: str) -> None:
    """OpenCLIP 4 has such configs: generative, audio, and text towers of another kind."""
    assert reason in (why_refused(config) or "")


def test_unknown_keys_without_effect_are_no_reason() -> None:
    harmless = {"text_arch": None, "attn_gated": False, "timm_drop_block": 0.1, "zero_init_residual": True, "bos_id": 0}
    assert why_refused(config_of(text_cfg=harmless, vision_cfg=harmless)) is None


def test_a_refusal_names_the_nearest_model_that_works(local_dir) -> None:
    folder, config, _ = local_dir
    config["text_cfg"]["text_arch"] = "modern"
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    with pytest.raises(DearError, match=r"text_arch.*: the nearest that works is --model \S+\.$"):
        load_backbone(f"local-dir:{folder}")
    assert "--model ViT-B-32-256." in str(refusal("moderntext-ViT-B-32-256", "x"))


def test_wrap_says_what_is_missing() -> None:
    with pytest.raises(DearError, match="Linear is no pair of image and text towers: it has no visual"):
        wrap(torch.nn.Linear(2, 2), open_clip.SimpleTokenizer(), "mine")


@pytest.mark.parametrize(("part", "tower"), [("visual.transformer", "image"), ("transformer", "text")])
def test_a_model_that_computes_something_else_is_refused(tiny, part: str, tower: str) -> None:
    """A newer OpenCLIP might do so under the names of today: a whole tower that does more than its blocks."""
    backbone = tiny()
    backbone.model.get_submodule(part).register_forward_hook(lambda module, inputs, out: out.flip(-1))
    with pytest.raises(DearError, match=f"its {tower} tower computes something else"):
        wrap(backbone.model, backbone.text.tokenizer, "mine")


def test_every_name_is_judged() -> None:
    """Configs alone decide; the numbers are those of OpenCLIP 3.3 and may only grow."""
    assert len(usable_models()) == len(open_clip.list_models()) >= 144
    tiers = Counter(judge(config)[:2] for config in usable_models().values())
    assert tiers == TIERS_OF_NAMES
    for config in usable_models().values():
        assert bool(judge(config).reason) == (judge(config)[:2] != ("full", "full"))


@pytest.mark.parametrize(
    ("name", "mean", "resize"),
    [
        ("ViT-B-16", 0.48145466, ("shortest", "bicubic")),
        ("ViT-B-16-SigLIP", 0.5, ("squash", "bicubic")),
        ("PE-Core-B-16", 0.5, ("squash", "bilinear")),
        ("ViT-L-14-CLIPA", 0.485, ("squash", "bilinear")),
        ("MobileCLIP-B", 0.0, ("shortest", "bilinear")),
    ],
)
def test_a_file_gets_the_pictures_of_its_models_tags(name: str, mean: float, resize: tuple) -> None:
    settings = pictures_of(name, "weights.bin", False)
    assert (settings["mean"][0], (settings["resize_mode"], settings["interpolation"])) == (mean, resize)
    tag = open_clip.list_pretrained_tags_by_model(name)[0]
    assert pictures_of(name, tag, False) == {}, "OpenCLIP takes them from the tag"


def test_different_picture_settings_of_tags_are_said() -> None:
    sentence = "Weights of ViT-L-14 were trained with different picture settings"
    with pytest.warns(DearWarning, match=sentence):
        settings = pictures_of("ViT-L-14", "weights.bin", False)
    assert settings["mean"][0] == pytest.approx(0.48145466)


def test_each_backbone_rounds_as_it_was_loaded_and_leaves_nothing_behind(tiny) -> None:
    """TF32 beside half weights, exact products in fp32, whichever was loaded last; the process stays as it was."""

    def flags() -> list[bool]:
        return [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]

    before, seen = flags(), []
    exact = tiny()
    half = wrap(tiny().model, exact.text.tokenizer, "half", precision=torch.bfloat16)
    assert flags() == before
    monitor = torch.backends.cudnn.conv if hasattr(torch.backends.cudnn, "conv") else torch.backends.cudnn
    name = "fp32_precision" if hasattr(monitor, "fp32_precision") else "allow_tf32"
    for backbone in (exact, half):
        for part in (backbone.model.visual.conv1, backbone.model.visual.ln_post, backbone.model.ln_final):
            part.register_forward_hook(lambda *_: seen.append(getattr(monitor, name)))
    for backbone, expected in ((exact, ("ieee", False)), (half, ("tf32", True)), (exact, ("ieee", False))):
        seen.clear()
        backbone.image.layer_input(torch.randn(2, 3, 32, 32), 2)
        backbone.text.encode(["a cat"])
        assert seen
        assert all(value in expected for value in seen)
    assert flags() == before


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


@pytest.fixture
def local_dir(tmp_path):
    config = open_clip.get_model_config("ViT-S-32-alt")
    config["vision_cfg"] |= {"layers": 2, "width": 64}
    config["text_cfg"] |= {"layers": 2, "width": 32, "heads": 2}
    torch.manual_seed(1)
    model = open_clip.CLIP(**config)
    return save_model(tmp_path / "model", config, model), config, model


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
    config["model_cfg"]["vision_cfg"]["image_size"] = 64  # one picture is encoded whenever it loads
    config["preprocess_cfg"] = {"size": 64, "mean": [0.5] * 3, "std": [0.5] * 3}

    def use(changed: object) -> object:
        (folder / "open_clip_config.json").write_text(json.dumps(changed))
        return load_backbone(f"local-dir:{folder}", random_weights=True)

    use(config)
    config["model_cfg"]["text_cfg"]["vocab_size"] = 500
    with pytest.raises(DearError, match="more words than its text tower"):
        use(config)
    config["model_cfg"]["text_cfg"]["vocab_size"] = 49408
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


def test_other_words_and_layouts_are_refused_and_other_pictures_are_said(tiny) -> None:
    """The same weights give other features with them."""
    identity = tiny().identity
    stored = identity.to_json()
    identity.require_same(stored, "The adapter")
    for key, sentence in (("layout", "another layout"), ("words", "another tokenizer")):
        with pytest.raises(DearError, match=sentence):
            identity.require_same({**stored, key: "other"}, "The adapter")
    with pytest.warns(DearWarning, match=r"made with other picture settings \(224 px, squash\)"):
        identity.require_same({**stored, "pictures": "224 px, squash"}, "The adapter")


def test_hash_survives_a_cast_but_not_a_changed_bit(tiny) -> None:
    backbone = tiny()
    before = hash_weights(backbone.model)
    assert hash_weights(backbone.model.double()) == before
    backbone.model.float().visual.proj[3, 3] += 1e-6
    assert hash_weights(backbone.model) != before

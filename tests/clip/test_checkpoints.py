"""Checkpoints in the format of transformers, and downloaded checkpoint files."""

import json
from types import SimpleNamespace

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file

from dear.cli import main
from dear.clip import load_backbone, wrap
from dear.clip.shapes import model_shapes, read_shapes
from dear.clip.support import judge, usable_models
from dear.core.errors import DearError

TEXTS = ["a photo of a cat.", "two dogs", "x", "a long sentence about a striped zebra at the beach, at night"]
SHAPES = {
    "default act": ({}, {}, 24),
    "gelu": ({"hidden_act": "gelu"}, {"hidden_act": "gelu"}, 24),
    "odd mlp, other eps": (
        {"intermediate_size": 101, "layer_norm_eps": 1e-3},
        {"intermediate_size": 67, "layer_norm_eps": 1e-4},
        20,
    ),
    "other layers, heads, patches, context": (
        {"num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 16, "image_size": 48},
        {"num_hidden_layers": 3, "num_attention_heads": 8, "max_position_embeddings": 40},
        512,
    ),
}


@pytest.fixture
def saved(tmp_path):
    """(vision, text, dim) -> a random CLIPModel, saved by transformers itself."""
    transformers = pytest.importorskip("transformers", reason="transformers is needed to make its checkpoints")

    def make(vision: dict, text: dict, dim: int):
        torch.manual_seed(7)
        config = transformers.CLIPConfig(
            vision_config={
                "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": 32, "patch_size": 8, **vision,
            },
            text_config={
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, **text,
            },
            projection_dim=dim,
        )  # fmt: skip
        model = transformers.CLIPModel(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # far enough from zero for an activation or a norm to show
                parameter.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(tmp_path / "clip")
        return model, tmp_path / "clip"

    return make


def refused(sentence: str, *given: str) -> None:
    with pytest.raises(DearError, match=sentence):
        load_backbone(*given)


@pytest.mark.parametrize("shape", SHAPES)
def test_both_towers_equal_transformers(saved, shape: str) -> None:
    model, folder = saved(*SHAPES[shape])
    backbone = load_backbone(f"transformers:{folder}")
    pixels = torch.randn(3, 3, *backbone.image.image_size)
    tokens = backbone.text.tokenizer(TEXTS)
    with torch.no_grad():
        # The features as the model itself puts them into its logits: pooled, projected, normalised.
        wanted = model(input_ids=tokens, pixel_values=pixels)
        image, text = backbone.image.encode(pixels), backbone.text.encode(TEXTS)
    torch.testing.assert_close(image / image.norm(dim=-1, keepdim=True), wanted.image_embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(text / text.norm(dim=-1, keepdim=True), wanted.text_embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(backbone.temperature, model.logit_scale.exp().detach())
    assert backbone.activation == ("gelu" if shape == "gelu" else "quick_gelu")
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())


def test_preprocessing_follows_the_folder(saved) -> None:
    _, folder = saved({}, {}, 24)
    assert load_backbone(f"transformers:{folder}").mean == pytest.approx(open_clip.OPENAI_DATASET_MEAN)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.25] * 3}))
    backbone = load_backbone(f"transformers:{folder}")
    assert (backbone.mean, backbone.std) == ((0.5,) * 3, (0.25,) * 3)


def test_files_of_older_versions_load(saved) -> None:
    """Half precision, position ids, and the parts of the config under their old names."""
    _, folder = saved({}, {}, 24)
    before = load_backbone(f"transformers:{folder}").identity.weights
    weights = load_file(folder / "model.safetensors")
    weights["text_model.embeddings.position_ids"] = torch.arange(77)[None]
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["text_config_dict"], config["vision_config_dict"] = config.pop("text_config"), None
    (folder / "config.json").write_text(json.dumps(config))
    assert load_backbone(f"transformers:{folder}").identity.weights == before
    save_file({key: value.half() for key, value in weights.items()}, folder / "model.safetensors")
    assert load_backbone(f"transformers:{folder}").image.visual.proj.dtype == torch.float32


def change(folder, **values) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value in values.items():
        part, _, name = key.partition("__")
        if name:
            config[part][name] = value
        else:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model_type": "altclip"}, "it is altclip in transformers, not one of clip, metaclip_2, siglip"),
        ({"text_config__vocab_size": 30000}, "vocabulary is not that of CLIP"),
        ({"text_config__hidden_act": "relu"}, "activation is quick_gelu and relu"),
        ({"vision_config__num_channels": 1}, "1 channels"),
        ({"vision_config__num_hidden_layers": 5}, "do not fit its config.json"),
        ({"projection_dim": 7}, "do not fit its config.json"),
        ({"projection_dim": "many"}, "is damaged .projection_dim: expected int"),
        ({"vision_config": [1]}, "is damaged .vision_config"),
        ({"vision_config__hidden_size": 10**8}, "do not fit its config.json"),
        ({"text_config__num_hidden_layers": 10**8}, "do not fit its config.json"),
        ({"vision_config__num_attention_heads": 5}, "do not fit its config.json"),
    ],
)
def test_unsupported_models_are_refused(saved, values: dict, sentence: str) -> None:
    _, folder = saved({}, {}, 24)
    change(folder, **values)
    refused(sentence, f"transformers:{folder}")


def test_no_code_in_weights_is_run(saved, tmp_path, monkeypatch) -> None:
    _, folder = saved({}, {}, 24)
    refused("has its own weights", f"transformers:{folder}", "openai")
    (folder / "model.safetensors").write_bytes(b"damaged")
    refused("cannot be read", f"transformers:{folder}")
    (folder / "model.safetensors").unlink()
    refused(r"has no weights: it needs model.safetensors or pytorch_model.bin", f"transformers:{folder}")
    torch.save({"logit_scale": print}, folder / "pytorch_model.bin")
    refused(r"pytorch_model.bin could not be loaded", f"transformers:{folder}")


@pytest.mark.parametrize("form", ["bin", "parts of bin", "parts of safetensors"])
def test_weights_in_every_form_are_the_same(saved, form: str) -> None:
    _, folder = saved({}, {}, 24)
    expected = load_backbone(f"transformers:{folder}").identity.weights
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        stem, ending, write = (
            ("pytorch_model", "bin", torch.save) if "bin" in form else ("model", "safetensors", save_file)
        )
        names = {key: f"{stem}-0000{1 + number % 2}-of-00002.{ending}" for number, key in enumerate(weights)}
        for name in set(names.values()):
            write({key: value for key, value in weights.items() if names[key] == name}, folder / name)
        (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"weight_map": names}))
    assert load_backbone(f"transformers:{folder}").identity.weights == expected
    if form != "bin":
        next(folder.glob("*index.json")).write_text(json.dumps({"weight_map": {"x": "../other"}}))
        with pytest.raises(DearError, match=r"names \.\./other, which is not beside it"):
            load_backbone(f"transformers:{folder}")


def test_a_hub_name_downloads_config_weights_and_preprocessor_only(saved, monkeypatch) -> None:
    _, folder = saved({}, {}, 24)
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    files = ["config.json", "model.safetensors", "pytorch_model.bin", "modeling.py"]
    info = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in files])
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    assert load_backbone("transformers:some/clip").name == "transformers:some/clip"
    others = ["config.json", "preprocessor_config.json", "tokenizer.json", "vocab.txt"]
    assert asked == [("some/clip", [*others, "model.safetensors"])]

    def fail(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    refused(r"some/clip is not a folder and could not be fetched: .*\(no network\)", "transformers:some/clip")


COMPOSED = [
    "ViT-B-16-SigLIP", "PE-Core-T-16-384", "EVA02-B-16", "MobileCLIP-B", "ViTamin-S", "coca_ViT-B-32", "coca_base",
    "vit_medium_patch16_gap_256",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_one_name_of_each_family_is_built_as_it_is_judged(name: str) -> None:
    config = usable_models()[name]
    arguments = {key: value for key, value in config.items() if key != "custom_text"}
    kind = open_clip.CoCa if name.startswith("coca") else open_clip.CustomTextCLIP
    with torch.device("meta"):
        model = kind(**arguments)
    backbone = wrap(model, open_clip.SimpleTokenizer(context_length=config["text_cfg"]["context_length"]), name)
    assert (backbone.image.tier, backbone.text.tier) == judge(config)[:2] == ("full", "full")
    size = backbone.image.image_size
    assert backbone.image.encode(torch.empty(2, 3, *size, device="meta")).shape == (2, config["embed_dim"])


def test_every_plain_model_runs_and_all_are_counted(capsys) -> None:
    """Builds each architecture on the meta device, and runs each part of its towers."""
    driven, tokenizer = [], open_clip.SimpleTokenizer()
    for name, config in usable_models().items():
        if config.get("custom_text") or judge(config).reason:
            continue
        with torch.device("meta"):
            model, size = open_clip.CLIP(**config), config["vision_cfg"]["image_size"]
        backbone = wrap(model, tokenizer, name)
        assert (backbone.image.tier, backbone.text.tier) == ("full", "full")
        states = backbone.image.trunk(torch.empty(2, 3, size, size, device="meta"), 1)
        assert backbone.image.project(backbone.image.pool(states)).shape == (2, config["embed_dim"]), name
        read = torch.empty(5, backbone.text.width, device="meta")
        assert backbone.text.project(read).shape == (5, config["embed_dim"]), name
        driven.append(name)
    assert main(["backbones"]) == 0
    page = capsys.readouterr().out
    assert f"{len(open_clip.list_models())} usable" in page
    assert all(f"\n{name} " in page for name in open_clip.list_models())
    assert len(driven) >= 45


@pytest.fixture(scope="module")
def weights():
    """Random weights of a small supported architecture, ViT-S-32-alt."""
    torch.manual_seed(0)
    return open_clip.CLIP(**usable_models()["ViT-S-32-alt"]).state_dict()


@pytest.mark.parametrize("ending", ["safetensors", "bin", "pt"])
def test_a_file_of_another_model_is_refused_with_its_name(weights, tmp_path, ending: str) -> None:
    file = tmp_path / f"downloaded.{ending}"
    if ending == "safetensors":
        save_file(weights, file)
    elif ending == "bin":
        torch.save(weights, file)
    else:  # as OpenCLIP's training writes it
        torch.save({"epoch": 3, "state_dict": {f"module.{key}": value for key, value in weights.items()}}, file)
    assert read_shapes(str(file)) == {key: tuple(value.shape) for key, value in weights.items()}
    refused(r"does not fit ViT-B-32: its shapes are those of ViT-S-32-alt\.", "ViT-B-32", str(file))
    assert load_backbone("ViT-S-32-alt", str(file)).image.layers == 12


def test_models_with_equal_shapes_are_both_named(tmp_path) -> None:
    file = tmp_path / "b32.safetensors"
    shapes = model_shapes(usable_models()["ViT-B-32"])
    save_file({key: torch.zeros(shape, dtype=torch.int8) for key, shape in shapes.items()}, file)
    with pytest.raises(DearError, match="ViT-B-32 or ViT-B-32-quickgelu") as caught:
        load_backbone("ViT-B-16", str(file))
    assert "shapes alone cannot tell which" in str(caught.value)


def test_weights_of_an_unlisted_image_size_are_interpolated(weights, tmp_path) -> None:
    places = weights["visual.positional_embedding"]
    file = tmp_path / "larger.safetensors"
    save_file({**weights, "visual.positional_embedding": torch.randn(1 + 9 * 9, places.shape[1])}, file)
    assert load_backbone("ViT-S-32-alt", str(file)).image.grid == (7, 7)


def test_files_that_fit_nothing_are_refused_with_the_reason(weights, tmp_path, saved) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({key: value for key, value in weights.items() if key != "ln_final.bias"}, file)
    refused(r"nor any other OpenCLIP name .*: it has no ln_final.bias\.", "ViT-S-32-alt", str(file))
    save_file({**weights, "logit_bias": torch.zeros(1)}, file)
    refused("it also has logit_bias", "ViT-S-32-alt", str(file))
    torch.save(weights["ln_final.bias"], tmp_path / "one.pt")
    refused("no state_dict of tensors", "ViT-S-32-alt", str(tmp_path / "one.pt"))
    (tmp_path / "text.bin").write_text("no weights")
    refused("could not be loaded", "ViT-S-32-alt", str(tmp_path / "text.bin"))
    torch.jit.script(torch.nn.Linear(1, 1)).save(str(tmp_path / "program.pt"))
    refused(r"is a TorchScript program.*use --pretrained openai", "ViT-S-32-alt", str(tmp_path / "program.pt"))
    _, folder = saved({}, {}, 24)
    refused("use --model transformers:FOLDER", "ViT-S-32-alt", str(folder / "model.safetensors"))


_BYTES = [b"root:x:0:0:root:/root:/bin/bash\n" * 9, b"", b"\0" * 99, b"PK\x03\x04", b"\x80\x02.", b"("]


@pytest.mark.parametrize("content", _BYTES)
@pytest.mark.parametrize("name", ["x", "x.pt", "x.safetensors"])
def test_any_bytes_as_a_checkpoint_are_one_sentence(tmp_path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DearError, match="could not be loaded"):
        read_shapes(str(tmp_path / name))

"""Names of every family, and downloaded checkpoint files."""

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from dear.cli import main
from dear.clip import load_backbone, wrap
from dear.clip.shapes import model_shapes, read_shapes
from dear.clip.support import judge, usable_models
from dear.core.errors import DearError


def refused(sentence: str, *given: str) -> None:
    with pytest.raises(DearError, match=sentence):
        load_backbone(*given)


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


def test_files_that_fit_nothing_are_refused_with_the_reason(weights, tmp_path) -> None:
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


_BYTES = [b"root:x:0:0:root:/root:/bin/bash\n" * 9, b"", b"\0" * 99, b"PK\x03\x04", b"\x80\x02.", b"("]


@pytest.mark.parametrize("content", _BYTES)
@pytest.mark.parametrize("name", ["x", "x.pt", "x.safetensors"])
def test_any_bytes_as_a_checkpoint_are_one_sentence(tmp_path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DearError, match="could not be loaded"):
        read_shapes(str(tmp_path / name))

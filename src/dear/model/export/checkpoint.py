"""Export to other libraries: a checkpoint of OpenCLIP or transformers, a PEFT adapter, or class weights.

A method can leave as a checkpoint if its towers are those of a plain CLIP with other weights (`PlainClip`). The
features are compared with the run's before anything is written.
"""

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from dear.clip.load import MINI, MINI_FOLDER, read_model_config
from dear.clip.transformers_files import TRANSFORMERS
from dear.clip.transformers_names import weights_as_in_clip
from dear.core.errors import DearError
from dear.core.files import atomic_folder, write_json
from dear.core.version import __version__
from dear.methods.base import Method
from dear.methods.changed_towers import ClipLora
from dear.methods.optional import PlainClip
from dear.model.export.export import pick_pictures
from dear.training.adapter import Adapter, load_adapter

OPENCLIP, HF, PEFT, CLASS_WEIGHTS = "openclip", "transformers", "peft", "class-weights"
_CLOSE = 1e-5  # largest difference of a feature
_PICTURES = 8


def export_checkpoint(run: Path, out: Path, form: str) -> list[str]:
    """Writes the run to the new folder `out` in one of the forms; returns lines on what is in it."""
    adapter = load_adapter(run, device="cpu", precision="fp32")
    with atomic_folder(out) as folder:
        lines = _WRITERS[form](adapter, run, folder)
        if form != CLASS_WEIGHTS and is_linear(adapter.model):
            write_class_weights(adapter, run, folder)
            lines.append("class_weights.npy: the classifier over its image features, [classes, dim]")
    return lines


def merged_model(adapter: Adapter, run: Path) -> Any:
    """A copy of the OpenCLIP model with the weights of the adapted one; refused where it is not equal to it."""
    method, backbone = adapter.model, adapter.model.backbone
    if not isinstance(method, PlainClip):
        raise DearError(
            f"{adapter.method} is no plain CLIP after training, so other libraries cannot compute it: export it with "
            "--onnx, or its classifier with --format class-weights."
        )
    model = deepcopy(backbone.model)
    names = {id(parameter): name for name, parameter in backbone.model.named_parameters()}
    places = dict(model.named_parameters())
    for frozen, merged in method.merged():
        if id(frozen) not in names:
            raise DearError(f"{backbone.name} keeps this weight in several parts: export the run with --onnx.")
        places[names[id(frozen)]].data.copy_(merged.detach())
    with torch.no_grad():
        pixels = example_pixels(adapter, run)
        expected = method.encode_image(method.layer_input(pixels))[:, 0]
        gap = (model.encode_image(pixels, normalize=True) - expected).abs().max().item()
    if not gap <= _CLOSE:
        raise DearError(f"The merged model differs from the run by {gap:.1e}: nothing was written; please report this.")
    return model


def example_pixels(adapter: Adapter, run: Path) -> Tensor:
    """Normalised pixels of a few test images of the run, or of drawn pictures, [images, 3, height, width]."""
    examples = pick_pictures(run, adapter.classes, _PICTURES).examples
    return torch.stack([adapter.model.backbone.preprocess(example.picture.open()) for example in examples])


# --- class weights ----------------------------------------------------------------------------------------


def linear_answers(method: Method) -> tuple[Tensor, Tensor, float]:
    """Weight [classes, dim] and bias [classes] of logits as a function of the image feature, and how far the logits of
    random unit features are from it, over their spread."""
    dim, text = method.backbone.dim, method.encode_text(method.classes)
    parts = len(method.components)
    rows = torch.cat([torch.zeros(1, dim), torch.eye(dim)])[:, None].expand(-1, parts, -1)
    test = torch.nn.functional.normalize(torch.randn(32, dim, generator=torch.Generator().manual_seed(0)), dim=1)
    with torch.no_grad():
        at_axes = method.logits(rows, text)
        weight, bias = (at_axes[1:] - at_axes[0]).T, at_axes[0]
        actual = method.logits(test[:, None].expand(-1, parts, -1), text)
    return weight, bias, ((test @ weight.T + bias - actual).abs().max() / actual.std().clamp(min=1e-9)).item()


def is_linear(method: Method) -> bool:
    return len(method.components) == 1 and linear_answers(method)[2] < 1e-4


def write_class_weights(adapter: Adapter, run: Path, folder: Path) -> list[str]:
    method = adapter.model
    if not is_linear(method):
        raise DearError(
            f"The answers of {adapter.method} are no linear function of one image feature: export the run with --onnx."
        )
    if not isinstance(method, PlainClip) and method.first_layer <= method.backbone.image.layers:
        raise DearError(f"{adapter.method} changes the image features that its classifier reads: use --onnx.")
    weight, bias, _ = linear_answers(method)
    np.save(folder / "class_weights.npy", weight.numpy())
    np.save(folder / "class_bias.npy", bias.numpy())
    write_json(folder / "class_weights.json", list(adapter.classes))
    backbone = method.backbone
    about = {"made_by": f"dear {__version__}", "method": adapter.method, "backbone": backbone.identity.to_json(),
             "logits": "features @ class_weights.T + class_bias, of normalised image features"}  # fmt: skip
    write_json(folder / "about.json", about)
    return ["class_weights.npy [classes, dim], class_bias.npy, class_weights.json (names): logits of unit features"]


# --- checkpoints ------------------------------------------------------------------------------------------


def _write_openclip(adapter: Adapter, run: Path, folder: Path) -> list[str]:
    backbone = adapter.model.backbone
    if backbone.name.startswith(TRANSFORMERS):
        raise DearError("This backbone comes from transformers: take --format transformers.")
    model, source = merged_model(adapter, run), backbone.name if ":" in backbone.name else ""
    if backbone.name == MINI:
        source = f"local-dir:{MINI_FOLDER}"
        shutil.copy(MINI_FOLDER / "bpe_vocab.txt.gz", folder)
    config = {**read_model_config(source or backbone.name)}
    config["quick_gelu"] = backbone.activation == "quick_gelu"
    pictures = {name: backbone.pictures[name] for name in ("mean", "std", "interpolation", "resize_mode")}
    write_json(folder / "open_clip_config.json", {"model_cfg": config, "preprocess_cfg": pictures})
    _save(model.state_dict(), folder / "open_clip_model.safetensors")
    return [f'open_clip.create_model_and_transforms("local-dir:{folder.name}") loads it']


def _write_transformers(adapter: Adapter, run: Path, folder: Path) -> list[str]:
    model = merged_model(adapter, run)
    _as_transformers(adapter, model).save_pretrained(folder)
    _write_preprocessing(adapter, folder)
    return ["transformers.CLIPModel.from_pretrained loads it"]


def _as_transformers(adapter: Adapter, model: Any) -> Any:
    """The same CLIP as a CLIPModel of transformers."""
    from transformers import CLIPConfig, CLIPModel

    backbone = adapter.model.backbone
    image, text = backbone.image, backbone.text
    if type(model).__name__ != "CLIP" or image.layout != "image read by cls" or not text.layers:
        raise DearError(f"{backbone.name} is no CLIP as transformers knows it: take --format openclip.")
    end = int(model.vocab_size) - 1
    shared: dict[str, Any] = {"hidden_act": backbone.activation}
    visual = model.visual
    config = CLIPConfig(
        projection_dim=backbone.dim,
        vision_config={
            **shared, "hidden_size": image.width, "num_hidden_layers": image.layers, "projection_dim": backbone.dim,
            "num_attention_heads": image.heads, "image_size": image.image_size[0],
            "patch_size": visual.conv1.kernel_size[0],
            "intermediate_size": visual.transformer.resblocks[0].mlp.c_fc.out_features,
        },
        text_config={
            **shared, "hidden_size": text.width, "num_hidden_layers": text.layers, "projection_dim": backbone.dim,
            "num_attention_heads": text.blocks[0].attn.num_heads, "vocab_size": end + 1,
            "max_position_embeddings": model.context_length, "bos_token_id": end - 1, "eos_token_id": end,
            "pad_token_id": end, "intermediate_size": model.transformer.resblocks[0].mlp.c_fc.out_features,
        },
    )  # fmt: skip
    other = CLIPModel(config).eval()
    other.load_state_dict(weights_as_in_clip(model.state_dict(), other.state_dict()))
    return other


def _write_preprocessing(adapter: Adapter, folder: Path) -> None:
    """The words and the pictures of the model, as transformers reads them."""
    backbone = adapter.model.backbone
    size, pictures, words = max(backbone.image.image_size), backbone.pictures, backbone.text.tokenizer
    write_json(folder / "preprocessor_config.json", {
        "image_processor_type": "CLIPImageProcessor", "do_resize": True, "size": {"shortest_edge": size},
        "do_center_crop": True, "crop_size": {"height": size, "width": size}, "do_convert_rgb": True,
        "resample": 3 if pictures["interpolation"] == "bicubic" else 2, "do_rescale": True, "do_normalize": True,
        "image_mean": list(pictures["mean"]), "image_std": list(pictures["std"]),
    })  # fmt: skip
    if not hasattr(words, "bpe_ranks"):
        return
    start, end = (name for name in sorted(words.encoder, key=words.encoder.__getitem__)[-2:])
    (folder / "vocab.json").write_text(json.dumps(words.encoder, ensure_ascii=False), encoding="utf-8")
    merges = "\n".join(" ".join(pair) for pair in words.bpe_ranks)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "CLIPTokenizer", "bos_token": start, "eos_token": end, "unk_token": end, "pad_token": end,
        "model_max_length": words.context_length,
    })  # fmt: skip


def _write_peft(adapter: Adapter, run: Path, folder: Path) -> list[str]:
    method = adapter.model
    if not isinstance(method, ClipLora):
        raise DearError(f"{adapter.method} has no low-rank terms, which a PEFT adapter is made of: use clip-lora.")
    _as_transformers(adapter, merged_model(adapter, run))  # refuses what transformers does not know
    weights, config = {}, method.config
    towers = {"vision_model": method.image_terms, **({"text_model": method.text_terms} if method.learns_texts else {})}
    for tower, terms in towers.items():
        for layer in range(len(terms.down)):
            for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
                place = f"base_model.model.{tower}.encoder.layers.{layer}.self_attn.{name}"
                weights[f"{place}.lora_A.weight"] = terms.down[layer, part]
                weights[f"{place}.lora_B.weight"] = terms.up[layer, part]
    _save(weights, folder / "adapter_model.safetensors")
    write_json(folder / "adapter_config.json", {
        "peft_type": "LORA", "base_model_name_or_path": method.backbone.name, "inference_mode": True, "bias": "none",
        "r": config.rank, "lora_alpha": config.lora_alpha, "use_rslora": True, "lora_dropout": config.dropout,
        "target_modules": rf"({'|'.join(towers)})\..*\.(q_proj|k_proj|v_proj)", "task_type": None,
    })  # fmt: skip
    return ["peft.PeftModel.from_pretrained(CLIPModel, folder) loads it, on the same frozen CLIP"]


def _save(weights: dict[str, Tensor], path: Path) -> None:
    exact = {name: value.detach().float().contiguous().clone() for name, value in weights.items()}
    save_file(exact, path, metadata={"format": "pt"})


_WRITERS: dict[str, Callable[[Adapter, Path, Path], list[str]]] = {
    OPENCLIP: _write_openclip, HF: _write_transformers, PEFT: _write_peft, CLASS_WEIGHTS: write_class_weights,
}  # fmt: skip

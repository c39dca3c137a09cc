"""Chinese-CLIP in the format of transformers: CLIP's image tower in OpenCLIP's names, and a BERT for the text."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dear.clip.transformers_clip import PROJECTION, openclip_weights, tower_configs, vision_arguments
from dear.clip.transformers_files import CONFIG, FolderTokenizer, read_pictures, read_weights
from dear.core.errors import DearError

_CONTEXT = 52  # of its authors' tokenizer, for all published ones; BERT itself would take 512
_TEXT = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "vocab_size": 30522, "max_position_embeddings": 512,
    "type_vocab_size": 2, "pad_token_id": 0,
}  # fmt: skip


def load_chinese(folder: Path, config: dict[str, Any], source: str) -> tuple[Any, Any]:
    """The model with its weights, and its tokenizer."""
    import open_clip

    text, vision = tower_configs(config, source, _TEXT)
    if (text["hidden_act"], vision["hidden_act"]) != ("gelu", "quick_gelu"):
        raise DearError(f"{source} can't be used, because its activations are not those of Chinese-CLIP.")
    try:
        import transformers  # noqa: F401 - its BERT
    except ModuleNotFoundError:
        raise DearError(f"The text tower of {source} is a BERT: pip install 'dear-vlm[hf]'.") from None
    try:
        weights = chinese_weights(read_weights(folder))
        if max(vision["num_hidden_layers"], text["num_hidden_layers"]) > len(weights):
            raise KeyError("more layers than tensors")
        dim = config.get("projection_dim", PROJECTION)
        with torch.device("meta"):  # shapes first: a config can ask for more memory than there is
            _build(vision, text, dim).load_state_dict(weights, assign=True)
        model = _build(vision, text, dim)
        model.load_state_dict(weights)
    except (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DearError(
            f"The weights of {source} do not fit its {CONFIG}: both must come from one ChineseCLIPModel."
        ) from error
    default = {
        "mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD, "interpolation": "bicubic",
        "resize_mode": "squash",
    }  # fmt: skip
    open_clip.set_model_preprocess_cfg(model, read_pictures(folder, source, vision["image_size"], default))
    context = min(_CONTEXT, text["max_position_embeddings"])
    return model, FolderTokenizer(folder, context, model.text.config.pad_token_id)


def _build(vision: dict[str, Any], text: dict[str, Any], dim: int) -> Any:
    """OpenCLIP's CustomTextCLIP around a BERT of these sizes, which its own configs would fetch by name."""
    from open_clip.hf_model import ClsLastHiddenStatePooler, HFTextEncoder
    from open_clip.model import CustomTextCLIP, _build_vision_tower
    from transformers import BertConfig, BertModel

    model, tower = (kind.__new__(kind) for kind in (CustomTextCLIP, HFTextEncoder))
    nn.Module.__init__(model)
    nn.Module.__init__(tower)
    sizes: dict[str, Any] = {key: text[key] or 0 for key in _TEXT}
    tower.config = BertConfig(**sizes)
    tower.transformer = BertModel(tower.config, add_pooling_layer=False)
    tower.pooler, tower.proj = ClsLastHiddenStatePooler(), nn.Linear(text["hidden_size"], dim, bias=False)
    tower.output_tokens = model.output_dict = False
    model.visual, model.text = _build_vision_tower(dim, vision_arguments(vision), quick_gelu=True), tower
    model.logit_scale, model.logit_bias = nn.Parameter(torch.zeros(())), None
    return model


def chinese_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under OpenCLIP's names; those of BERT stay as they are, behind `text.transformer`."""
    own = {name: tensor for name, tensor in weights.items() if not name.startswith("text_")}
    renamed = openclip_weights(own) | {"text.proj.weight": weights["text_projection.weight"]}
    for name, tensor in weights.items():
        if name.startswith("text_model.") and not name.endswith("position_ids"):
            renamed[f"text.transformer.{name.removeprefix('text_model.')}"] = tensor
    return renamed

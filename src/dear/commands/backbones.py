"""dear backbones: a table of what each backbone can do; `dear backbones NAME`: the details of one."""

import argparse
import json
from typing import Any

from dear.core.table import Table, add_json_argument

_NOTE = """\
image and text: full (learned tokens, masks, roles of heads), words (learned words at the first layer, as CoOp's), or
features (called as a whole: zero-shot, linear-probe, tip-adapter, clip-adapter, closed forms, index, search, serve)
bundled: dear-mini (a small CLIP of Attribute World, 9 layers x 8 heads, 64 px; no download)
also: transformers:FOLDER_OR_NAME, hf-hub:ORG/NAME, local-dir:FOLDER, or a name below with --pretrained FILE
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an OpenCLIP name, to show its details")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    if args.name:
        _show_one(args.name)
        return
    import open_clip

    from dear.clip.support import judge, why_refused

    print(_NOTE)
    table = Table(["OpenCLIP name", "px", "image", "text", "pretrained tags"])
    refused = Table(["refused", "because"])
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        if reason := why_refused(config):
            refused.add(name, reason)
            continue
        tiers = judge(config)
        tags = open_clip.list_pretrained_tags_by_model(name)
        table.add(name, config["vision_cfg"].get("image_size", 224), tiers.image, tiers.text, ", ".join(tags) or "-")
    args.show("backbones", table)
    both = sum(row[2:4] == ("full", "full") for row in map(tuple, table.rows))
    print(f"\n{len(table.rows)} usable, {both} of them full in both towers. `dear backbones NAME` shows the details.")
    if refused.rows:
        print()
        args.show("refused", refused)


def _show_one(name: str) -> None:
    import open_clip

    from dear.clip.load import usable_config
    from dear.clip.support import judge, sums_heads
    from dear.clip.tags import tag_settings
    from dear.methods.registry import DEFAULT, METHODS, best_of, methods_for

    config = usable_config(name)
    tiers, tags = judge(config), open_clip.list_pretrained_tags_by_model(name)
    working = methods_for(tiers.image, tiers.text, sums_heads(config))
    missing = [name for name in METHODS if name not in working]
    lines = {
        "image tower": f"{tiers.image}, {_tower_line(config['vision_cfg'])}",
        "text tower": f"{tiers.text}, {_tower_line(config['text_cfg'])}",
        "why not full": tiers.reason,
        "features": f"{config['embed_dim']} numbers",
        "weights": _weights_line(config),
        "methods": ("all" + (" but head-gains" if missing else "")) if len(missing) < 2 else ", ".join(working),
        "heads": "roles, search by attribute, explain" if tiers.image == "full" else "not known",
        "pictures": "; or ".join(map(_preparation, tag_settings(name)))
        or "OpenAI's mean and std, bicubic, shortest side, centre crop",
        "tags": ", ".join(tags) or "none: give a file with --pretrained",
        "tested": "features equal OpenCLIP's on random weights of this kind"
        + (", and results with OpenAI's weights" if name.startswith("ViT-B-16") and "openai" in tags else ""),
        "use": f"dear train --model {name} --pretrained {tags[0] if tags else 'FILE'} --data PHOTOS --out RUN",
    }
    if name not in open_clip.list_models():
        lines["use"] = f"dear train --model {name} --data PHOTOS --out RUN"
    if best_of(working) != DEFAULT:
        lines["use"] += f" --method {best_of(working)}"
    print(name)
    for title, line in lines.items():
        if line:
            print(f"  {title:13} {line}")


def _tower_line(config: dict[str, Any]) -> str:
    """A tower in a few words."""
    if name := config.get("timm_model_name"):
        return f"timm's {name}, {config.get('image_size', 224)} px"
    if name := config.get("hf_model_name"):
        return f"Hugging Face's {name}, {config.get('context_length', 77)} tokens"
    if isinstance(config.get("layers"), list):
        return f"ResNet of {sum(config['layers'])} blocks, {config.get('image_size', 224)} px"
    size = f"{config['image_size']} px" if "image_size" in config else f"{config.get('context_length', 77)} tokens"
    heads = config.get("heads") or config.get("width", 768) // config.get("head_width", 64)
    return f"{config.get('layers', 12)} layers of {heads} heads, width {config.get('width', 768)}, {size}"


def _preparation(settings: str) -> str:
    """Picture settings (JSON) in a few words."""
    found = json.loads(settings)
    mean, std = (" ".join(f"{number:.3g}" for number in found[key]) for key in ("mean", "std"))
    resize = "squashed to the size" if found["resize_mode"] == "squash" else "shortest side, centre crop"
    return f"mean {mean}, std {std}, {found['interpolation']}, {resize}"


def _weights_line(config: dict[str, Any]) -> str:
    from math import prod

    from dear.clip.shapes import model_shapes

    if config["text_cfg"].get("hf_model_name"):
        return "unknown here: the text tower's config is on the hub"
    count = sum(prod(shape) for shape in model_shapes(config).values())
    return f"{count / 1e6:.0f} million, {4 * count / 2**30:.1f} GB in memory (fp32)"

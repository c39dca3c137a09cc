"""dear backbones: lists the backbones that can be adapted."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.core.table import add_json_argument

    parser.add_argument("--all", action="store_true", help="also list unsupported models, with the reason")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    import open_clip

    from dear.clip.load import MINI
    from dear.clip.support import why_unsupported
    from dear.core.table import Table

    print(f"bundled: {MINI} (a small CLIP of Attribute World, 9 layers x 8 heads, 64 px; no download)")
    print(
        "also: transformers:FOLDER_OR_NAME, hf-hub:ORG/NAME, local-dir:FOLDER, or a name below with --pretrained FILE\n"
    )
    table = Table(["OpenCLIP name", "px", "layers", "heads", "pretrained tags"])
    unsupported = Table(["not supported", "because"])
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        if reason := why_unsupported(config):
            unsupported.add(name, reason)
            continue
        vision, tags = config["vision_cfg"], open_clip.list_pretrained_tags_by_model(name)
        heads = vision["width"] // vision.get("head_width", 64)
        table.add(name, vision["image_size"], vision["layers"], heads, ", ".join(tags) or "-")
    args.show("supported", table)
    if args.all:
        print()
        args.show("not supported", unsupported)
    else:
        print(
            f"\n{len(table.rows)} supported; {len(unsupported.rows)} others are not: `dear backbones --all` tells why."
        )

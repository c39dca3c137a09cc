"""dear zero-shot: accuracy of a backbone before any training, as a table."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.predict import add_gain_argument
    from dear.core.table import add_json_argument
    from dear.data.resolve import HELP

    add_backbone_arguments(parser)
    parser.add_argument(
        "--text-features",
        metavar="FILE",
        help="class names and their vectors (JSON, NPZ, safetensors, NPY + JSON), in place of the text tower",
    )
    add_gain_argument(parser)
    add_json_argument(parser)
    parser.add_argument("--data-root", metavar="DIR", help="folder of the known datasets")
    parser.add_argument("--data", nargs="+", metavar="DATA", help=f"{HELP} (default: all tasks of Attribute World)")


def add_backbone_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default="dear-mini",
        help="OpenCLIP name, transformers:FOLDER_OR_NAME, hf-hub:NAME, local-dir:FOLDER, or dear-mini (default)",
    )
    parser.add_argument("--pretrained", help="OpenCLIP tag or checkpoint file, for a model given by its OpenCLIP name")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N (default: auto)")


def run(args: argparse.Namespace) -> None:
    from dear.bench.zero_shot import zero_shot
    from dear.clip import load_backbone
    from dear.core.runtime import pick_device
    from dear.core.table import Table
    from dear.data.resolve import resolve_dataset
    from dear.data.world.tasks import TASKS

    datasets = [resolve_dataset(name, root=args.data_root) for name in args.data or [f"world:{task}" for task in TASKS]]
    backbone = load_backbone(
        args.model, args.pretrained, device=pick_device(args.device), text_features=args.text_features
    )
    if args.gain:
        from dear.heads.gains import named_gains, parse_gains, with_gains
        from dear.heads.role_map import AUTO
        from dear.methods.shared.role_settings import find_roles

        backbone = with_gains(backbone, named_gains(parse_gains(args.gain), find_roles(AUTO, backbone)))
    table = Table(["data", "classes", "images", "chance", "all", "base", "novel"])
    for dataset in datasets:
        result = zero_shot(backbone, dataset)
        table.add(
            dataset.name, result.classes, result.images, 100 / result.classes, result.all, result.base, result.novel
        )
    print(f"zero-shot accuracy of {args.model} (%); base and novel: each half of the classes alone")
    args.show("accuracy", table)

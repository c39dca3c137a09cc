"""dear index: adds images to a gallery, and removes them."""

import argparse
import sys

from dear.commands.shared import add_device_arguments, add_fast_decode_argument, add_gain_argument
from dear.core.errors import DearError
from dear.core.names import CLS
from dear.core.words import counted
from dear.parallel.cluster import add_ray_arguments, cluster_from_args


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", nargs="*", metavar="[RUN] IMAGES",
        help="folder made by `dear fit` or `dear train`, unless --model is given; then image files, folders, quoted "
        "globs, or world:TASK[:STYLE]",
    )  # fmt: skip
    parser.add_argument("--model", help="backbone to use without an adapter; attributes are features of its heads")
    parser.add_argument("--pretrained", help="OpenCLIP tag or checkpoint file, for a model given by its OpenCLIP name")
    parser.add_argument(
        "--roles", default="auto", metavar="MAP", help="role map of --model: a file of `dear roles`, or a name (auto)"
    )
    parser.add_argument(
        "--out", required=True, metavar="GALLERY", help="gallery to create or extend: a folder, or s3://..."
    )
    parser.add_argument("--label-from-folder", action="store_true", help="label each image with its folder's name")
    parser.add_argument(
        "--remove", nargs="+", default=[], metavar="PATH", help="images to remove first: paths, folders, globs"
    )
    add_gain_argument(parser)
    add_fast_decode_argument(parser)
    add_device_arguments(parser)
    add_ray_arguments(parser, "worker")


def after_interrupt(args: argparse.Namespace) -> str:
    return f"what was added so far is in {args.out}: the same command continues"


def run(args: argparse.Namespace) -> None:
    from dear.commands.predict import checked_gains
    from dear.gallery import AdapterEncoder, Encoder, Gallery, HeadEncoder
    from dear.gallery.storage import INFO, resolve
    from dear.heads.gains import parse_gains
    from dear.training.backbone import choose_backbone

    cluster = cluster_from_args(args, args.device)
    images = args.sources if args.model else args.sources[1:]
    if not (resolve(args.out) / INFO).is_file() and (args.remove or not images):
        how = "name images to add" if args.model or not args.sources else "name a run and images, or images and --model"
        raise DearError(f"There is no gallery in {args.out} yet: {how}.")
    encoder: Encoder | None = None
    if args.model or args.sources:
        if args.model and args.roles != "auto":
            gains = parse_gains(args.gain)
        else:
            gains = checked_gains(args.gain, None if args.model else args.sources[0])
        if args.model:
            choice = choose_backbone(args.model, args.pretrained, images)
            choice.say()
            encoder = HeadEncoder.load(choice.model, choice.pretrained, args.roles, args.device, args.precision)
        else:
            encoder = AdapterEncoder.load(args.sources[0], args.device, args.precision)
        if gains:
            encoder = encoder.with_gain(gains)
        gallery = Gallery.create(args.out, encoder)  # refuses another encoder, and stores an adapter's new folder
    else:
        gallery = Gallery.open(args.out)
    if args.remove:
        print(f"removed {gallery.remove(args.remove)}")
    if images and encoder is not None:
        summary = gallery.add(encoder, images, args.label_from_folder, args.fast_decode, cluster)
        for sentence in summary.unreadable:
            print(f"dear: skipped: {sentence}", file=sys.stderr)
        print(
            f"added {summary.added}, already there {summary.already}, duplicates {summary.duplicates}, "
            f"unreadable {len(summary.unreadable)}"
        )
        if len(gallery) == 0:
            raise DearError("No image could be read: check the files.")
    others = [name for name in gallery.components if name != CLS]
    by = f" --by {'color' if 'color' in others else others[0]}" if others else ""
    search = f"dear search {args.out} --image IMAGE{by}"
    print(f"gallery: {args.out}, {counted(len(gallery), 'image')}    try: {search}")

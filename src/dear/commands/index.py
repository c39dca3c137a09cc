"""dear index: embeds images into a gallery, and takes them out again."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.parallel.cluster import add_ray_arguments

    parser.add_argument(
        "given",
        nargs="*",
        metavar="[RUN] IMAGES",
        help="folder made by `dear train`, unless --model is given; image files, folders, quoted globs, or "
        "world:TASK[:STYLE]",
    )
    parser.add_argument("--model", help="a backbone as it is, without an adapter: its heads tell the attributes")
    parser.add_argument("--pretrained", help="OpenCLIP tag or checkpoint file, for a model given by its OpenCLIP name")
    parser.add_argument(
        "--roles", default="auto", metavar="MAP", help="role map of --model: a file of `dear roles`, or a name (auto)"
    )
    parser.add_argument(
        "--out", required=True, metavar="GALLERY", help="the gallery, made or added to: a folder, or s3://..."
    )
    parser.add_argument("--label-from-folder", action="store_true", help="label each image with its folder's name")
    parser.add_argument(
        "--remove", nargs="+", default=[], metavar="PATH", help="take these images out first: paths, folders, globs"
    )
    add_exact_argument(parser)
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N (default: auto)")
    add_ray_arguments(parser, "worker")


def add_exact_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exact", action="store_true",
        help="decode and scale images as in evaluation, to the last bit: half as fast, much slower on large photos",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    from dear.core.errors import DearError
    from dear.gallery import AdapterEncoder, Encoder, Gallery, HeadEncoder
    from dear.gallery.about import ABOUT
    from dear.gallery.place import place
    from dear.parallel.cluster import given_cluster

    cluster = given_cluster(args, args.device)
    images = args.given if args.model else args.given[1:]
    if not (place(args.out) / ABOUT).is_file() and (args.remove or not images):
        raise DearError(f"There is no gallery in {args.out} yet: name images to put into it.")
    if args.model or args.given:
        encoder: Encoder
        if args.model:
            encoder = HeadEncoder.load(args.model, args.pretrained, args.roles, args.device)
        else:
            encoder = AdapterEncoder.load(args.given[0], args.device)
        gallery = Gallery.create(args.out, encoder)  # refuses another one, and remembers where an adapter is now
    else:
        gallery = Gallery.open(args.out)
    if args.remove:
        print(f"removed {gallery.remove(args.remove)}")
    if images:
        added = gallery.add(encoder, images, args.label_from_folder, args.exact, cluster)
        for sentence in added.unreadable:
            print(f"dear: skipped: {sentence}", file=sys.stderr)
        print(
            f"added {added.added}, already there {added.already}, duplicates {added.duplicates}, "
            f"unreadable {len(added.unreadable)}"
        )
        if len(gallery) == 0:
            raise DearError("No image could be read: check the files.")
    print(f"gallery: {args.out}, {len(gallery)} images    try: dear search {args.out} --image IMAGE --by color")

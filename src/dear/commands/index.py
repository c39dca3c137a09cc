"""dear index: embeds images into a gallery, and takes them out again."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", nargs="?", metavar="RUN", help="folder made by `dear train`")
    parser.add_argument(
        "images", nargs="*", metavar="IMAGES", help="image files, folders, quoted globs, or world:TASK[:STYLE]"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="GALLERY", help="the gallery: made, or added to")
    parser.add_argument("--label-from-folder", action="store_true", help="label each image with its folder's name")
    parser.add_argument(
        "--remove", nargs="+", default=[], metavar="PATH", help="take these images out first: paths, folders, globs"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N (default: auto)")


def run(args: argparse.Namespace) -> None:
    from dear.errors import DearError
    from dear.gallery import AdapterEncoder, Gallery
    from dear.gallery.about import ABOUT

    if not (args.out / ABOUT).is_file() and (args.remove or not args.images):
        raise DearError(f"There is no gallery in {args.out} yet: name images to put into it.")
    if args.run_folder is None:
        gallery = Gallery.open(args.out)
    else:
        encoder = AdapterEncoder.load(args.run_folder, args.device)
        gallery = Gallery.create(args.out, encoder)  # refuses another adapter, and remembers where the right one is now
    if args.remove:
        print(f"removed {gallery.remove(args.remove)}")
    if args.images:
        added = gallery.add(encoder, args.images, args.label_from_folder)
        for sentence in added.unreadable:
            print(f"dear: skipped: {sentence}", file=sys.stderr)
        print(
            f"added {added.added}, already there {added.already}, duplicates {added.duplicates}, "
            f"unreadable {len(added.unreadable)}"
        )
        if len(gallery) == 0:
            raise DearError("No image could be read: check the files.")
    print(f"gallery: {args.out}, {len(gallery)} images    try: dear search {args.out} --image IMAGE --by color")

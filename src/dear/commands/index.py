"""dear index: embeds images into a gallery, and takes them out again."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="folder made by `dear train`")
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
    from dear import load
    from dear.errors import DearError
    from dear.gallery import Gallery
    from dear.gallery.store import ABOUT

    is_there = (args.out / ABOUT).is_file()
    if not is_there and (args.remove or not args.images):
        raise DearError(f"There is no gallery in {args.out} yet: name images to put into it.")
    if is_there:  # refuses another adapter before anything is loaded, and remembers where the right one is now
        gallery = Gallery.open(args.out)
        gallery.require_run(args.run_folder)
    if args.remove:
        print(f"removed {gallery.remove(args.remove)}")
    if args.images:
        model = load(args.run_folder, device=args.device)
        gallery = Gallery.create(args.out, args.run_folder, model)
        added = gallery.add(model, args.images, args.label_from_folder)
        for sentence in added.unreadable:
            print(f"dear: skipped: {sentence}", file=sys.stderr)
        print(
            f"added {added.added}, already there {added.already}, duplicates {added.duplicates}, "
            f"unreadable {len(added.unreadable)}"
        )
        if len(gallery) == 0:
            raise DearError("No image could be read: check the files.")
    print(f"gallery: {args.out}, {len(gallery)} images    try: dear search {args.out} --image IMAGE --by color")

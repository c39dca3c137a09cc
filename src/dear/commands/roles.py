"""dear roles: what each attention head does, as a table, a picture and a report; tests whether it is true."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dear.core.errors import DearError

if TYPE_CHECKING:
    from dear.heads.picture_list import PictureList
    from dear.heads.role_map import RoleMap

_WORLD = "world"
_WORLD_PICTURES = 2000
_MAP_HELP = (
    "role map file, or the name of one in the package (openai-vit-b-16, openai-vit-b-16-drawn, dear-mini, paper)"
)
_BY_PHRASES = ("images", "phrases", "sbert", "over_core")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.zero_shot import add_backbone_arguments
    from dear.core.config import number
    from dear.core.table import add_json_argument
    from dear.parallel.cluster import add_ray_arguments

    add_backbone_arguments(parser)
    parser.add_argument(
        "--by", choices=("pictures", "phrases"),
        help="judge heads by labelled pictures, or by phrases as the paper does (default: pictures; phrases if one of "
        "--images, --phrases, --sbert, --over-core is given)",
    )  # fmt: skip
    add_probe_arguments(parser)
    parser.add_argument("--images", metavar="DIR", help=f"by phrases: folder of images, or {_WORLD}")
    parser.add_argument("--phrases", type=Path, metavar="FILE", help="by phrases: phrases of your own, one a line")
    parser.add_argument("--sbert", metavar="X", help="sentence model (folder or hub name) for phrases of your own")
    parser.add_argument("--over-core", action="store_true", help="by phrases: entropy over the core concepts only")
    parser.add_argument(
        "--first-layer",
        type=number("--first-layer", 1, 1000),
        metavar="J",
        help="first layer analysed (default: last third)",
    )
    parser.add_argument(
        "--quantile", type=number("--quantile", 0.01, 0.5, float),
        help="share of heads that is specialised, and general (by phrases: 0.2; by pictures: clear and sure experts)",
    )  # fmt: skip
    parser.add_argument("--core", type=int, choices=(3, 5, 7), default=5, help="number of core concepts (5)")
    parser.add_argument("--out", type=Path, default=Path("roles.json"), help="role map (default: roles.json)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="HTML report with the evidence of each head")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="picture of the map, .png, .svg or .pdf")
    add_ray_arguments(parser, "worker")
    add_json_argument(parser)
    parser.set_defaults(action=_analyse)
    actions = parser.add_subparsers(metavar="show | compare | check | layers")

    show = actions.add_parser("show", help="print a role map as a table", description="Print a role map as a table.")
    show.add_argument("map", metavar="FILE|PRESET", help=_MAP_HELP)
    show.add_argument("--plot", type=Path, metavar="FILE", help="picture of the map, .png, .svg or .pdf")
    show.add_argument("--html", type=Path, metavar="FILE", help="HTML report")
    add_json_argument(show)
    show.set_defaults(action=_show)

    what = "how far two role maps agree, and how far by chance"
    compare = actions.add_parser("compare", help=what, description=what[0].upper() + what[1:] + ".")
    compare.add_argument("maps", metavar="FILE|PRESET", nargs=2, help=_MAP_HELP)
    add_json_argument(compare)
    compare.set_defaults(action=_compare, plot=None)

    what = "is a role map true? Search held-out pictures by its heads; on dear-mini, also take heads away"
    check = actions.add_parser("check", help=what, description=what + ".")
    check.add_argument("map", metavar="FILE|PRESET", nargs="?", default="dear-mini", help=_MAP_HELP)
    add_backbone_arguments(check)
    add_probe_arguments(check)
    check.add_argument("--out", type=Path, metavar="FILE", help="all numbers, as JSON")
    check.add_argument("--plot", type=Path, metavar="FILE", help="heat map, .png, .svg or .pdf")
    add_json_argument(check)
    check.set_defaults(action=_check)

    what = "what is lost without the heads of a layer, or of all up to it, and which first layer follows"
    layers = actions.add_parser("layers", help=what, description=what[0].upper() + what[1:] + ".")
    add_backbone_arguments(layers)
    layers.add_argument("--data", help="measure zero-shot accuracy on this dataset's test images (default: how near "
                        "features of Attribute World stay)")  # fmt: skip
    layers.add_argument("--data-root", metavar="DIR", help="folder that holds the known datasets")
    layers.add_argument(
        "--limit", type=number("--limit", 2, 10**9), metavar="N", help="at most N images, spread evenly"
    )
    layers.add_argument("--out", type=Path, metavar="FILE", help="all numbers, as JSON")
    layers.add_argument("--plot", type=Path, metavar="FILE", help="curves, .png, .svg or .pdf")
    add_json_argument(layers)
    layers.set_defaults(action=_layers)


def add_probe_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.core.config import number

    parser.add_argument(
        "--probe", action="append", default=[], metavar="ATTR=DATA",
        help="labelled pictures in which an attribute varies: texture=FOLDER, or any form of --data; color is told by "
        "pixels and needs no labels; what has no probe is drawn (world)",
    )  # fmt: skip
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the known datasets")
    limit = number("--limit", 2, 10**9)
    parser.add_argument("--limit", type=limit, metavar="N", help="at most N images (of each probe), spread evenly")


def run(args: argparse.Namespace) -> None:
    from dear.core.figure import check_suffix

    check_suffix(args.plot)
    args.action(args)


def _analyse(args: argparse.Namespace) -> None:
    by_phrases = [f"--{name.replace('_', '-')}" for name in _BY_PHRASES if getattr(args, name)]
    by = args.by or ("phrases" if by_phrases else "pictures")
    if by == "pictures" and by_phrases:
        raise DearError(f"{by_phrases[0]} is for --by phrases: leave one of the two out.")
    if by == "phrases" and args.probe:
        raise DearError("--probe is for --by pictures: leave out what asks for phrases, or the probes.")
    if by == "pictures":
        _by_pictures(args)
    else:
        _by_phrases(args)


def _by_pictures(args: argparse.Namespace) -> None:
    from dear.clip import load_backbone
    from dear.core.runtime import pick_device
    from dear.heads.probes import find_probes
    from dear.heads.rules import roles_by_pictures
    from dear.parallel.cluster import given_cluster

    cluster = given_cluster(args, args.device)
    backbone = load_backbone(args.model, args.pretrained, device=pick_device(args.device))
    probes = find_probes(args.probe, max(backbone.image.image_size), args.limit, args.data_root)
    role_map = roles_by_pictures(
        backbone, probes, first_layer=args.first_layer, core=_core(args.core), quantile=args.quantile, cluster=cluster
    )
    _write(role_map, args)
    if args.report is not None:
        from dear.heads.page import write_report

        write_report(role_map, args.report)
        print(f"wrote {args.report}")


def _by_phrases(args: argparse.Namespace) -> None:
    from dear.clip import MINI, load_backbone
    from dear.core.runtime import pick_device
    from dear.heads.by_phrases import analyse, thumbnails
    from dear.heads.phrases import WORLD, load_phrases
    from dear.parallel.cluster import given_cluster

    is_mini, cluster = args.model == MINI, given_cluster(args, args.device)
    pictures = _pictures(args.images or (_WORLD if is_mini else None), args.limit)
    phrases = load_phrases(args.phrases or (WORLD if is_mini else None))  # the mini model knows no other words
    backbone = load_backbone(args.model, args.pretrained, device=pick_device(args.device))
    checkpoint = args.out.with_name(args.out.name + ".moments.safetensors")
    analysis = analyse(
        backbone, pictures, phrases, first_layer=args.first_layer, core=_core(args.core),
        quantile=0.2 if args.quantile is None else args.quantile, over_core=args.over_core, sbert=args.sbert,
        checkpoint=checkpoint, cluster=cluster,
    )  # fmt: skip
    _write(analysis.role_map, args)
    if args.report is not None:
        from dear.heads.page import write_report

        write_report(analysis.role_map, args.report, thumbnails(analysis, pictures))
        print(f"wrote {args.report}")
    checkpoint.unlink(missing_ok=True)


def _core(count: int) -> tuple[str, ...]:
    from dear.heads.entropy import CORE_3, CORE_5, CORE_7

    return {3: CORE_3, 5: CORE_5, 7: CORE_7}[count]


def _write(role_map: "RoleMap", args: argparse.Namespace) -> None:
    role_map.save(args.out)
    _print(args, role_map)
    print(f"wrote {args.out}")
    _draw(role_map, args.plot)


def _pictures(images: str | None, limit: int | None) -> "PictureList":
    from dear.heads.picture_list import folder_pictures, world_pictures

    if images is None:
        raise DearError(f"Heads are judged by images: give a folder with --images, or --images {_WORLD}.")
    return world_pictures(limit or _WORLD_PICTURES) if images == _WORLD else folder_pictures(images).spread(limit)


def _show(args: argparse.Namespace) -> None:
    role_map = load_map(args.map)
    _print(args, role_map)
    _draw(role_map, args.plot)
    if args.html is not None:
        from dear.heads.page import write_report

        write_report(role_map, args.html)
        print(f"wrote {args.html}")


def _compare(args: argparse.Namespace) -> None:
    from dear.heads.map_table import overlap

    first, second = args.maps
    print(f"{first} against {second}")
    found = overlap(load_map(first), load_map(second))
    args.show("compared", found.table)
    print(f"\n{found.summary()}")


def _check(args: argparse.Namespace) -> None:
    from dear.commands.roles_check import check

    check(args)


def _layers(args: argparse.Namespace) -> None:
    from dear.commands.roles_check import layers

    layers(args)


def load_map(name: str) -> "RoleMap":
    from dear.heads.role_map import RoleMap

    is_file = Path(name).is_file() or "." in name or "/" in name
    return RoleMap.load(name) if is_file else RoleMap.preset(name)


def _print(args: argparse.Namespace, role_map: "RoleMap") -> None:
    from dear.heads.map_table import role_summary, role_table

    args.show("heads", role_table(role_map))
    print(f"\n{role_summary(role_map)}")
    if note := role_map.origin.get("note"):
        print(note)
    for probe in role_map.origin.get("probes", ()):
        print(f"{', '.join(probe['attributes'])}: {probe['used']} {probe['kind']} of {probe['source']}")
    if images := role_map.origin.get("images"):
        skipped = len(role_map.origin.get("skipped_images", ()))
        print(f"judged by {images.get('used')} images of {images.get('source')}; {skipped} could not be read")


def _draw(role_map: "RoleMap", path: Path | None) -> None:
    if path is not None:
        from dear.heads.map_figure import plot_role_map

        plot_role_map(role_map, path)
        print(f"wrote {path}")

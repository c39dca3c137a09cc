"""dear roles: what each attention head does, as a table, a picture and a report, and a test whether it is causal."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dear.errors import DearError

if TYPE_CHECKING:
    from dear.roles.pictures import PictureList
    from dear.roles.rolemap import RoleMap

_WORLD = "world"
_WORLD_PICTURES = 2000
_MAP_HELP = "role map file, or the name of a map that comes with dear (paper, dear-mini)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.zero_shot import add_backbone_arguments
    from dear.config import number
    from dear.tables import add_json_argument

    add_backbone_arguments(parser)
    parser.add_argument("--images", metavar="DIR", help=f"folder of images, or {_WORLD} (dear-mini's default)")
    parser.add_argument(
        "--limit", type=number("--limit", 2, 10**9), metavar="N", help="at most N images, spread evenly (default: all)"
    )
    parser.add_argument("--phrases", type=Path, metavar="FILE", help="phrases of your own, one a line")
    parser.add_argument("--sbert", metavar="X", help="sentence model (folder or hub name) for phrases of your own")
    parser.add_argument(
        "--first-layer",
        type=number("--first-layer", 1, 1000),
        metavar="J",
        help="first layer analysed (default: last third)",
    )
    parser.add_argument(
        "--quantile",
        type=number("--quantile", 0.01, 0.5, float),
        default=0.2,
        help="share that is specialised, and general (0.2)",
    )
    parser.add_argument("--core", type=int, choices=(3, 5, 7), default=5, help="number of core concepts (5)")
    parser.add_argument("--over-core", action="store_true", help="entropy over the core concepts only")
    parser.add_argument("--out", type=Path, default=Path("roles.json"), help="role map (default: roles.json)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="HTML report with each head's phrases and images")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="picture of the map, .png, .svg or .pdf")
    add_json_argument(parser)
    parser.set_defaults(action=_analyse)
    actions = parser.add_subparsers(metavar="show | check")

    show = actions.add_parser("show", help="print a role map as a table", description="Print a role map as a table.")
    show.add_argument("map", metavar="FILE|PRESET", help=_MAP_HELP)
    show.add_argument("--against", metavar="FILE|PRESET", help="compare it, head by head, with this one")
    show.add_argument("--plot", type=Path, metavar="FILE", help="picture of the map, .png, .svg or .pdf")
    show.add_argument("--html", type=Path, metavar="FILE", help="HTML report")
    add_json_argument(show)
    show.set_defaults(action=_show)

    what = "take away the heads of each concept from dear-mini, and see what it can't recognise any more"
    check = actions.add_parser("check", help=what, description=what[0].upper() + what[1:] + ".")
    check.add_argument("map", metavar="FILE|PRESET", nargs="?", default="dear-mini", help=_MAP_HELP)
    check.add_argument("--out", type=Path, metavar="FILE", help="all numbers, as JSON")
    check.add_argument("--plot", type=Path, metavar="FILE", help="heat map, .png, .svg or .pdf")
    add_json_argument(check)
    check.set_defaults(action=_check)


def run(args: argparse.Namespace) -> None:
    from dear.drawing import check_suffix

    check_suffix(args.plot)
    args.action(args)


def _analyse(args: argparse.Namespace) -> None:
    from dear.backbone import MINI, load_backbone
    from dear.roles.analyse import analyse, thumbnails
    from dear.roles.entropy import CORE_3, CORE_5, CORE_7
    from dear.roles.phrases import WORLD, load_phrases
    from dear.runtime import pick_device

    is_mini = args.model == MINI
    pictures = _pictures(args.images or (_WORLD if is_mini else None), args.limit)
    phrases = load_phrases(args.phrases or (WORLD if is_mini else None))  # the mini model knows no other words
    backbone = load_backbone(args.model, args.pretrained, device=pick_device(args.device))
    checkpoint = args.out.with_name(args.out.name + ".moments.safetensors")
    analysis = analyse(
        backbone, pictures, phrases, first_layer=args.first_layer, core={3: CORE_3, 5: CORE_5, 7: CORE_7}[args.core],
        quantile=args.quantile, over_core=args.over_core, sbert=args.sbert, checkpoint=checkpoint,
    )  # fmt: skip
    analysis.role_map.save(args.out)
    _print(args, analysis.role_map)
    print(f"wrote {args.out}")
    _draw(analysis.role_map, args.plot)
    if args.report is not None:
        from dear.roles.report import write_report

        write_report(analysis.role_map, args.report, thumbnails(analysis, pictures))
        print(f"wrote {args.report}")
    checkpoint.unlink(missing_ok=True)


def _pictures(images: str | None, limit: int | None) -> "PictureList":
    from dear.roles.pictures import folder_pictures, world_pictures

    if images is None:
        raise DearError(f"Heads are judged by images: give a folder with --images, or --images {_WORLD}.")
    return world_pictures(limit or _WORLD_PICTURES) if images == _WORLD else folder_pictures(images).spread(limit)


def _show(args: argparse.Namespace) -> None:
    role_map = _load_map(args.map)
    _print(args, role_map)
    if args.against is not None:
        from dear.roles.show import overlap

        print(f"\n{args.map} against {args.against}")
        found = overlap(role_map, _load_map(args.against))
        args.show("compared", found.table)
        print(f"\n{found.summary()}")
    _draw(role_map, args.plot)
    if args.html is not None:
        from dear.roles.report import write_report

        write_report(role_map, args.html)
        print(f"wrote {args.html}")


def _check(args: argparse.Namespace) -> None:
    from dear.backbone import load_backbone
    from dear.files import write_json
    from dear.roles.causal import causal_check

    result = causal_check(load_backbone(), _load_map(args.map))
    with_all = ", ".join(f"{attribute} {value:.1f}" for attribute, value in result.accuracy.items())
    print(f"zero-shot accuracy (%) on {result.pictures} held-out pictures: {with_all}")
    print("points lost without the heads whose dominant concept is the row's")
    print(f"(and without as many random heads of the same layers, mean ± std of {result.draws} draws)\n")
    args.show("points lost", result.table())
    print("\n" + result.verdict())
    if args.out is not None:
        write_json(args.out, result.to_json())
        print(f"wrote {args.out}")
    if args.plot is not None:
        from dear.roles.plot_causal import plot_causal

        plot_causal(result, args.plot)
        print(f"wrote {args.plot}")


def _load_map(name: str) -> "RoleMap":
    from dear.roles.rolemap import RoleMap

    is_file = Path(name).is_file() or "." in name or "/" in name
    return RoleMap.load(name) if is_file else RoleMap.preset(name)


def _print(args: argparse.Namespace, role_map: "RoleMap") -> None:
    from dear.roles.show import role_summary, role_table

    args.show("heads", role_table(role_map))
    print(f"\n{role_summary(role_map)}")
    if images := role_map.origin.get("images"):
        skipped = len(role_map.origin.get("skipped_images", ()))
        print(f"judged by {images.get('used')} images of {images.get('source')}; {skipped} could not be read")


def _draw(role_map: "RoleMap", path: Path | None) -> None:
    if path is not None:
        from dear.roles.plot import plot_role_map

        plot_role_map(role_map, path)
        print(f"wrote {path}")

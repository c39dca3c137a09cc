"""dear roles: the role of each attention head, as a table, a picture and a page; and checks of a role map."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dear.commands.shared import DATA_ROOT, add_action, add_backbone_arguments, add_limit_argument, chosen_backbone
from dear.core.config import number
from dear.core.errors import DearError
from dear.core.figure import check_suffix
from dear.core.files import write_json
from dear.core.table import add_json_argument
from dear.parallel.cluster import add_ray_arguments, cluster_from_args

if TYPE_CHECKING:
    from dear.heads.checks import RoleCheck
    from dear.heads.page import Thumbnails
    from dear.heads.pictures import PictureList
    from dear.heads.role_map import Head, RoleMap

_WORLD = "world"
_WORLD_PICTURES = 2000
_MAP_HELP = "file of a role map, or the name of a shipped one: openai-vit-b-16, openai-vit-b-16-drawn, dear-mini, paper"
_PICTURES, _PHRASES = "pictures", "phrases"
_PHRASE_FLAGS = ("images", "phrases", "sbert", "over_core")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_backbone_arguments(parser)
    parser.add_argument(
        "--using", choices=(_PICTURES, _PHRASES),
        help="evidence for the roles: labelled pictures, or phrases as in the paper (default: pictures; phrases with "
        "one of --images, --phrases, --sbert, --over-core)",
    )  # fmt: skip
    _add_probe_arguments(parser)
    parser.add_argument("--images", metavar="DIR", help=f"folder of images, or {_WORLD} (with phrases)")
    parser.add_argument("--phrases", type=Path, metavar="FILE", help="file of phrases, one per line (with phrases)")
    parser.add_argument("--sbert", metavar="X", help="sentence model for your own phrases, a folder or hub name")
    parser.add_argument(
        "--over-core", action="store_true", help="compute the entropy over core concepts only (with phrases)"
    )
    parser.add_argument(
        "--first-layer", type=number("--first-layer", 1, 1000), metavar="J",
        help="first layer to analyse (default: that of the last third)",
    )  # fmt: skip
    parser.add_argument(
        "--quantile", type=number("--quantile", 0.01, 0.5, float),
        help="share of specialised heads, and of generalization heads, by entropy (default with phrases: 0.2; with "
        "pictures: the best heads of each attribute)",
    )  # fmt: skip
    parser.add_argument("--core", type=int, choices=(3, 5, 7), default=5, help="number of core concepts (default: 5)")
    parser.add_argument(
        "--out", type=Path, default=Path("roles.json"), help="file for the role map (default: roles.json)"
    )
    _add_drawing_arguments(parser)
    add_ray_arguments(parser, "worker")
    add_json_argument(parser)
    parser.set_defaults(action=_analyse)
    actions = parser.add_subparsers(metavar="show | compare | check | layers")

    show = add_action(actions, "show", _show, "print a role map as a table")
    show.add_argument("map", metavar="MAP", help=_MAP_HELP)
    _add_drawing_arguments(show)

    compare = add_action(actions, "compare", _compare, "agreement of two role maps, and agreement by chance")
    compare.add_argument("maps", metavar="MAP", nargs=2, help=_MAP_HELP)
    compare.set_defaults(plot=None)

    what = "test a role map: search held-out pictures by its heads; on dear-mini also ablate heads"
    check = add_action(actions, "check", _check, what)
    check.add_argument("map", metavar="MAP", nargs="?", default="auto", help=f"{_MAP_HELP} (default: the backbone's)")
    add_backbone_arguments(check)
    _add_probe_arguments(check)
    check.add_argument("--out", type=Path, metavar="FILE", help="file for all numbers, as JSON")
    check.add_argument("--plot", type=Path, metavar="FILE", help="file for a heat map: .png, .svg or .pdf")

    what = "loss without the heads of a layer, or of all layers up to it, and the first layer to adapt"
    layers = add_action(actions, "layers", _layers, what)
    add_backbone_arguments(layers)
    layers.add_argument("--data", help="dataset to measure zero-shot accuracy on (default: measure the similarity of "
                        "features on Attribute World)")  # fmt: skip
    layers.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    add_limit_argument(layers)
    layers.add_argument("--out", type=Path, metavar="FILE", help="file for all numbers, as JSON")
    layers.add_argument("--plot", type=Path, metavar="FILE", help="file for the curves: .png, .svg or .pdf")
    for action in (show, compare, check, layers):
        add_json_argument(action)


def _add_drawing_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, metavar="FILE", help="file for a picture of the map: .png, .svg or .pdf")
    parser.add_argument("--html", type=Path, metavar="FILE", help="file for a page with the evidence of each head")


def _add_probe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--probe", action="append", default=[], metavar="ATTR=DATA",
        help="labelled pictures in which an attribute varies: texture=FOLDER, or any form of --data; color is measured "
        "in the pixels and needs no labels; attributes without a probe use Attribute World",
    )  # fmt: skip
    parser.add_argument("--data-root", metavar="DIR", help=DATA_ROOT)
    add_limit_argument(parser, " (per probe)")


def run(args: argparse.Namespace) -> None:
    check_suffix(args.plot)
    args.action(args)


def _analyse(args: argparse.Namespace) -> None:
    phrase_flags = [f"--{name.replace('_', '-')}" for name in _PHRASE_FLAGS if getattr(args, name)]
    using = args.using or (_PHRASES if phrase_flags else _PICTURES)
    if using == _PICTURES and phrase_flags:
        raise DearError(f"{phrase_flags[0]} is for --using phrases: leave one of the two out.")
    if using == _PHRASES and args.probe:
        raise DearError("--probe is for --using pictures: leave out --probe, or the flags for phrases.")
    if using == _PICTURES:
        _by_pictures(args)
    else:
        _by_phrases(args)


def _by_pictures(args: argparse.Namespace) -> None:
    from dear.heads.by_pictures import roles_by_pictures
    from dear.heads.pictures import find_probes
    from dear.heads.rules import CORE_SETS

    cluster = cluster_from_args(args, args.device)
    backbone, choice = chosen_backbone(args, probe_data(args))
    probes = find_probes(args.probe, max(backbone.image.image_size), args.limit, args.data_root)
    choice.say()
    role_map = roles_by_pictures(
        backbone,
        probes,
        first_layer=args.first_layer,
        core=CORE_SETS[args.core],
        quantile=args.quantile,
        cluster=cluster,
    )
    role_map.save(args.out)
    _show_map(role_map, args)
    print(f"wrote {args.out}")


def probe_data(args: argparse.Namespace) -> list[str]:
    """The datasets that --probe names and that exist; Attribute World if there are none."""
    named = [probe.partition("=")[2] for probe in args.probe]
    return [data for data in named if Path(data).exists()] or [_WORLD]


def _by_phrases(args: argparse.Namespace) -> None:
    from dear.clip import MINI
    from dear.heads.by_phrases import roles_by_phrases, thumbnails
    from dear.heads.concepts import WORLD_PHRASES, load_phrases
    from dear.heads.rules import CORE_SETS
    from dear.training.backbone import choose_backbone

    cluster = cluster_from_args(args, args.device)
    choice = choose_backbone(args.model, args.pretrained, [args.images or _WORLD])
    is_mini = choice.model == MINI
    pictures = _pictures(args.images or (_WORLD if is_mini else None), args.limit)
    phrases = load_phrases(args.phrases or (WORLD_PHRASES if is_mini else None))  # dear-mini has learned no other words
    backbone = choice.load(args.device, args.precision)
    choice.say()
    checkpoint = args.out.with_name(args.out.name + ".moments.safetensors")
    analysis = roles_by_phrases(
        backbone,
        pictures,
        phrases,
        first_layer=args.first_layer,
        core=CORE_SETS[args.core],
        quantile=0.2 if args.quantile is None else args.quantile,
        over_core=args.over_core,
        sbert=args.sbert,
        checkpoint=checkpoint,
        cluster=cluster,
    )
    analysis.role_map.save(args.out)
    images = thumbnails(analysis, pictures) if args.html is not None else None
    _show_map(analysis.role_map, args, images)
    print(f"wrote {args.out}")
    checkpoint.unlink(missing_ok=True)


def _pictures(images: str | None, limit: int | None) -> "PictureList":
    from dear.heads.pictures import folder_pictures, world_pictures

    if images is None:
        raise DearError(f"Roles are measured on images: give a folder with --images, or --images {_WORLD}.")
    return world_pictures(limit or _WORLD_PICTURES) if images == _WORLD else folder_pictures(images).spread(limit)


def _show(args: argparse.Namespace) -> None:
    from dear.heads.role_map import find_role_map

    _show_map(find_role_map(args.map), args)


def _compare(args: argparse.Namespace) -> None:
    from dear.heads.map_table import overlap
    from dear.heads.role_map import find_role_map

    first, second = args.maps
    print(f"{first} against {second}")
    agreement = overlap(find_role_map(first), find_role_map(second))
    args.show("compared", agreement.table)
    print(f"\n{agreement.summary()}")


def _check(args: argparse.Namespace) -> None:
    from dear.clip import MINI
    from dear.heads import check_causal, check_search
    from dear.heads.figures import plot_check
    from dear.heads.pictures import find_probes
    from dear.heads.role_map import find_role_map

    backbone, choice = chosen_backbone(args, probe_data(args))
    role_map = find_role_map(args.map, backbone)
    probes = find_probes(args.probe, max(backbone.image.image_size), args.limit, args.data_root, held_out=True)
    choice.say()
    checks: dict[str, Callable[[], RoleCheck]] = {
        "search": partial(check_search.check_by_search, backbone, role_map, probes)
    }
    if choice.model == MINI:  # it alone has learned the words of Attribute World
        checks["causal"] = partial(check_causal.causal_check, backbone, role_map)
    numbers = {}
    for name, measure in checks.items():
        result = measure()
        numbers[name] = result.to_json()
        print(*result.introduction(), "", sep="\n")
        args.show(result.kind, result.table())
        print(f"\n{result.verdict()}")
        if args.plot is not None:
            path = args.plot if name == "search" else args.plot.with_stem(f"{args.plot.stem}-{name}")
            plot_check(result, path)
            print(f"wrote {path}")
    if args.out is not None:
        write_json(args.out, numbers)
        print(f"wrote {args.out}")


def _layers(args: argparse.Namespace) -> None:
    from dear.data.resolve import resolve_dataset
    from dear.heads.check_layers import layer_losses
    from dear.heads.pictures import spread_evenly, world_pictures

    dataset = None if args.data is None else resolve_dataset(args.data, root=args.data_root)
    if dataset is not None:
        dataset = replace(dataset, test=tuple(spread_evenly(dataset.test, args.limit)))
    backbone, choice = chosen_backbone(args, [args.data or "world"])
    choice.say()
    pictures = world_pictures(args.limit or 500, max(backbone.image.image_size)).pictures if dataset is None else []
    losses = layer_losses(backbone, pictures, dataset)
    print(f"{losses.measure} over {losses.pictures} images, in %: {losses.whole:.1f} with all heads\n")
    args.show("layers", losses.table())
    print("\n" + losses.verdict())
    if args.out is not None:
        write_json(args.out, losses.to_json())
        print(f"wrote {args.out}")
    if args.plot is not None:
        from dear.heads.figures import plot_layers

        plot_layers(losses, args.plot)
        print(f"wrote {args.plot}")


def _show_map(role_map: "RoleMap", args: argparse.Namespace, images: "Mapping[Head, Thumbnails] | None" = None) -> None:
    """Prints the table of a role map; with --plot draws its picture, with --html writes its page."""
    from dear.heads.map_table import evidence_lines, role_summary, role_table, table_legend

    args.show("heads", role_table(role_map))
    print()
    for line in (table_legend(role_map), role_summary(role_map), *evidence_lines(role_map)):
        if line:
            print(line)
    if args.plot is not None:
        from dear.heads.figures import plot_role_map

        plot_role_map(role_map, args.plot)
        print(f"wrote {args.plot}")
    if args.html is not None:
        from dear.heads.page import write_page

        write_page(role_map, args.html, images)
        print(f"wrote {args.html}")

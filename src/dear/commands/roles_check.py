"""dear roles check and layers: tests of a role map on its backbone, and the loss without the heads of each layer."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dear.commands.shared import chosen_backbone
from dear.core.files import write_json

if TYPE_CHECKING:
    from dear.heads.checks import RoleCheck


def check(args: argparse.Namespace) -> None:
    from dear.clip import MINI
    from dear.commands.roles import probe_data
    from dear.heads import check_causal, check_search
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
            _plot(result, args.plot if name == "search" else args.plot.with_stem(f"{args.plot.stem}-{name}"))
    if args.out is not None:
        write_json(args.out, numbers)
        print(f"wrote {args.out}")


def _plot(result: "RoleCheck", path: Path) -> None:
    from dear.heads.figures import plot_check

    plot_check(result, path)
    print(f"wrote {path}")


def layers(args: argparse.Namespace) -> None:
    from dataclasses import replace

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

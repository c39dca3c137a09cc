"""dear roles check and layers: tests of a role map on its backbone, and the loss without the heads of each layer."""

import argparse
from typing import TYPE_CHECKING

from dear.commands.shared import chosen_backbone
from dear.core.files import write_json

if TYPE_CHECKING:
    from dear.clip import Backbone
    from dear.heads.role_map import RoleMap


def check(args: argparse.Namespace) -> None:
    from dear.clip import MINI
    from dear.commands.roles import probe_data
    from dear.heads.check_search import DRAWS, NEAREST, check_by_search
    from dear.heads.probes import find_probes
    from dear.heads.role_map import find_role_map

    backbone, choice = chosen_backbone(args, probe_data(args))
    role_map = find_role_map(args.map, backbone)
    probes = find_probes(args.probe, max(backbone.image.image_size), args.limit, args.data_root, held_out=True)
    choice.say()
    result = check_by_search(backbone, role_map, probes)
    for attribute, source in result.sources.items():
        print(f"{attribute}: {result.pictures[attribute]} held-out pictures of {source}")
    print(f"the {NEAREST} nearest pictures by the summed contributions of an attribute's heads")
    print(f"(in parentheses: by as many random heads of the same layers, mean ± std of {DRAWS} draws)\n")
    args.show("search", result.table())
    print("\n" + result.verdict())
    numbers = {"search": result.to_json()}
    if args.plot is not None:
        from dear.heads.check_figures import plot_search

        plot_search(result, args.plot)
        print(f"wrote {args.plot}")
    if choice.model == MINI:
        numbers["causal"] = _check_causal(args, backbone, role_map)
    if args.out is not None:
        write_json(args.out, numbers)
        print(f"wrote {args.out}")


def _check_causal(args: argparse.Namespace, backbone: "Backbone", role_map: "RoleMap") -> dict[str, object]:
    """Zero-shot accuracy without the heads of each concept; only dear-mini has learned the words of Attribute World."""
    from dear.heads.check_causal import causal_check

    result = causal_check(backbone, role_map)
    accuracies = ", ".join(f"{attribute} {value:.1f}" for attribute, value in result.accuracy.items())
    print(f"\nzero-shot accuracy (%) on {result.pictures} held-out pictures: {accuracies}")
    print("points lost without the heads with the dominant concept of the row")
    print(f"(in parentheses: without as many random heads of the same layers, mean ± std of {result.draws} draws)\n")
    args.show("points lost", result.table())
    print("\n" + result.verdict())
    if args.plot is not None:
        from dear.heads.check_figures import plot_causal

        path = args.plot.with_name(f"{args.plot.stem}-causal{args.plot.suffix}")
        plot_causal(result, path)
        print(f"wrote {path}")
    return result.to_json()


def layers(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from dear.data.resolve import resolve_dataset
    from dear.heads.check_layers import layer_losses
    from dear.heads.picture_list import spread, world_pictures

    dataset = None if args.data is None else resolve_dataset(args.data, root=args.data_root)
    if dataset is not None:
        dataset = replace(dataset, test=tuple(spread(dataset.test, args.limit)))
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
        from dear.heads.check_figures import plot_layers

        plot_layers(losses, args.plot)
        print(f"wrote {args.plot}")

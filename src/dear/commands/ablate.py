"""dear ablate: what each choice is worth, as a table with the difference to the default."""

import argparse
from collections.abc import Sequence

USUAL = "dear"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.bench import add_grid_arguments

    names = "masks, maps, loss, threshold, attributes, beta, first-layer, isolation, routing, fusion-start, fusion-lr"
    listed = f"{names}, fusion-loss, projection, lambda-reg, pull, rest, or all that --method (default: {USUAL}) has"
    parser.add_argument("ablations", nargs="+", metavar="NAME", help=listed)
    add_grid_arguments(parser)


def add_settings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    from dear.commands.bench import add_method_settings
    from dear.commands.train import early_method

    add_method_settings(parser, [early_method(argv, USUAL)])


def run(args: argparse.Namespace) -> None:
    from dear.bench.ablations import ablation_cells, ablations, choose
    from dear.bench.grid import plan
    from dear.bench.tables import ablation_tables
    from dear.clip import load_backbone
    from dear.commands.bench import given_settings, run_grid
    from dear.commands.train import chosen_method
    from dear.methods.shared.role_settings import RoleSettings, find_roles
    from dear.training.config import RunConfig

    method = chosen_method(args, USUAL)
    given = given_settings(args, [method])
    on = RunConfig.pick(given)
    defaults = plan("base-to-novel", args.datasets, [method], args.seeds, given, split=args.split)
    roles = find_roles(RoleSettings.pick(given).roles, load_backbone(on.model, on.pretrained))
    chosen = choose(args.ablations, ablations(roles, defaults[0].settings))
    results = run_grid(ablation_cells(defaults, chosen, roles), args, given)
    for title, table in ablation_tables(results).items():
        print(f"\n{title}")
        args.show(title, table)
    print(f"\n{len(results)} results in {args.out}    all tables and figures: dear report {args.out}")

"""dear ablate: what each choice is worth, as a table with the difference to the default."""

import argparse
from collections.abc import Sequence

METHOD = "dear"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.bench import add_grid_arguments

    names = "masks, loss, threshold, attributes, beta, first-layer, isolation, routing, fusion-start, fusion-lr"
    parser.add_argument(
        "ablations", nargs="+", metavar="NAME", help=f"{names}, fusion-loss, projection, lambda-reg, or all"
    )
    add_grid_arguments(parser)


def add_settings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    from dear.commands.bench import add_method_settings

    add_method_settings(parser, [METHOD])


def run(args: argparse.Namespace) -> None:
    from dear.commands.bench import given_settings, run_grid
    from dear.evaluation.ablations import ablation_cells, ablations, choose
    from dear.evaluation.bench import plan
    from dear.methods.roles import RoleSettings, find_roles
    from dear.report.tables import ablation_tables
    from dear.training.config import RunConfig

    given = given_settings(args, [METHOD])
    on = RunConfig.pick(given)
    roles = find_roles(RoleSettings.pick(given).roles, on.model, on.pretrained)
    chosen = choose(args.ablations, ablations(roles))
    defaults = plan("base-to-novel", args.datasets, [METHOD], args.seeds, given, split=args.split)
    results = run_grid(ablation_cells(defaults, chosen, roles), args, given)
    for title, table in ablation_tables(results).items():
        print(f"\n{title}")
        args.show(title, table)
    print(f"\n{len(results)} results in {args.out}    all tables and figures: dear report {args.out}")

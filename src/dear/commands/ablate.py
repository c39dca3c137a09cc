"""dear ablate: what each choice is worth, as a table with the difference to the default."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.commands.bench import add_grid_arguments

    names = "masks, loss, threshold, attributes, beta, first-layer, isolation, routing, fusion-start, fusion-lr"
    parser.add_argument(
        "ablations", nargs="+", metavar="NAME", help=f"{names}, fusion-loss, projection, lambda-reg, or all"
    )
    add_grid_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from dear.commands.bench import grid_configs, workbench
    from dear.evaluation.ablations import ablation_cells, ablations, choose
    from dear.evaluation.bench import plan, run_cells
    from dear.evaluation.report_tables import ablation_tables
    from dear.training.roles import find_roles

    configs = grid_configs(args)
    roles = find_roles(configs[0])
    chosen = choose(args.ablations, ablations(roles))
    defaults = plan("base-to-novel", args.datasets, ["dear"], args.seeds, configs, split=args.split)
    results = run_cells(
        ablation_cells(defaults, chosen, roles), args.out, workbench(args, configs), args.other_settings
    )
    for title, table in ablation_tables(results).items():
        print(f"\n{title}\n{table.text()}")
    print(f"\n{len(results)} results in {args.out}    all tables and figures: dear report {args.out}")

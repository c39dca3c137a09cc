"""dear ablate: the effect of each choice, as a table with the difference to the default."""

import argparse
from collections.abc import Sequence

from dear.bench.ablations import ABLATIONS, ablation_cells, ablation_rows, choose_ablations
from dear.bench.grid import plan
from dear.bench.results import BASE_TO_NOVEL
from dear.bench.tables import ablation_tables
from dear.clip import load_backbone
from dear.commands.bench import add_grid_arguments, add_method_settings, overridden_settings, run_grid, show_tables
from dear.commands.bench import after_interrupt as after_interrupt
from dear.commands.train import chosen_method, early_method
from dear.methods.shared.role_settings import RoleSettings, find_roles
from dear.training.config import RunConfig

_DEFAULT_METHOD = "dear"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    titles = "; ".join(f"{name}: {ablation.title}" for name, ablation in ABLATIONS.items())
    titles += f"; all: every ablation of --method (default: {_DEFAULT_METHOD})"
    parser.add_argument("ablations", nargs="+", metavar="NAME", help=titles)
    add_grid_arguments(parser)


def add_settings(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    add_method_settings(parser, [early_method(argv, _DEFAULT_METHOD)])


def run(args: argparse.Namespace) -> None:
    method = chosen_method(args, _DEFAULT_METHOD)
    overrides = overridden_settings(args, [method], args.datasets)
    config = RunConfig.pick(overrides)
    defaults = plan(BASE_TO_NOVEL, args.datasets, [method], args.seeds, overrides, split=args.split)
    roles = find_roles(RoleSettings.pick(overrides).roles, load_backbone(config.model, config.pretrained))
    ablations = choose_ablations(args.ablations, ablation_rows(roles, defaults[0].settings))
    results = run_grid(ablation_cells(defaults, ablations, roles), args, overrides)
    show_tables(ablation_tables(results), len(results), args)

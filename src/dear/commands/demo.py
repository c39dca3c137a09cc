"""dear demo: the main job on the embedded model and world."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.tables import add_json_argument

    add_json_argument(parser)
    parser.add_argument("--out", type=Path, default=Path("dear-demo"), help="folder of results (default: dear-demo)")


def run(args: argparse.Namespace) -> None:
    """Zero-shot, adaptation on half of the classes, both on the other half too, and one answer explained."""
    import dear
    from dear.backbone import load_backbone
    from dear.data.resolve import resolve_dataset
    from dear.data.world.sheet import contact_sheet
    from dear.errors import DearError
    from dear.evaluation.zero_shot import zero_shot
    from dear.explain import explain
    from dear.files import atomic_path
    from dear.methods.dear import DearConfig
    from dear.roles.rolemap import RoleMap
    from dear.roles.show import role_summary
    from dear.tables import Table
    from dear.training.config import RunConfig, TrainConfig
    from dear.training.run import train_run

    if args.out.exists():
        raise DearError(f"{args.out} is already there: choose another --out, or remove it.")
    with atomic_path(args.out / "world.png") as temporary:
        contact_sheet(0).save(temporary)
    dataset = resolve_dataset("world:signs")
    print(f"\ndear-mini and {len(dataset.classes)} kinds of signs, e.g. {', '.join(dataset.classes[:3])}")
    print(role_summary(RoleMap.preset("dear-mini")))

    before = zero_shot(load_backbone("dear-mini"), dataset)
    print(f"\ntraining on 16 pictures of each of the first {len(dataset.base().classes)} kinds ...")
    # A larger rate and more passes than the recipe for ViT-B/16: chosen for this small model on validation pictures.
    recipe = TrainConfig(classes="base", lr=0.01, epochs=20)
    after = train_run(RunConfig(data="world:signs"), DearConfig(), recipe, args.out / "signs")

    chosen = dataset.base().test[0]
    example, truth = chosen.picture.open(), dataset.classes[chosen.label]
    with atomic_path(args.out / "example.png") as temporary:
        example.save(temporary)
    answer = explain(dear.load(args.out / "signs"), example, args.out / "explain.png")
    print(f"\n{args.out / 'example.png'}, which shows: {truth}\n{answer}\n")

    table = Table(["accuracy (%)", "base", "novel", "HM"])
    table.add("zero-shot", before.base, before.novel, 2 * before.base * before.novel / (before.base + before.novel))
    table.add("DeAR, 16 shots", after["base"], after["novel"], after["hm"])
    args.show("accuracy", table)
    print("base: the kinds it was trained on; novel: the other half, seen never; HM: their harmonic mean")
    print(f"look at {args.out / 'explain.png'} and {args.out / 'world.png'}")

"""dear demo: the main job on the embedded model and world."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dear.data.dataset import Dataset, Example
    from dear.model.predictor import Predictor

_DATA = "world:signs:night"  # a style that dear-mini never saw, so that adaptation has something to do
_SEARCHED = ("colors", "shapes", "textures", "objects", "places")  # tasks in whose pictures every attribute varies
_FOUND = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dear.core.table import add_json_argument

    add_json_argument(parser)
    parser.add_argument("--out", type=Path, default=Path("dear-demo"), help="folder of results (default: dear-demo)")


def run(args: argparse.Namespace) -> None:
    """Zero-shot, adaptation on half of the classes, both on the other half too, one answer explained, one search."""
    import dear
    from dear.bench.zero_shot import zero_shot
    from dear.clip import load_backbone
    from dear.core.errors import DearError
    from dear.core.files import atomic_path
    from dear.core.table import Table
    from dear.data.resolve import resolve_dataset
    from dear.data.world.sheet import contact_sheet
    from dear.heads.map_table import role_summary
    from dear.heads.role_map import RoleMap
    from dear.methods.experts import ExpertsConfig
    from dear.methods.registry import recipe_of
    from dear.model.explain import explain
    from dear.model.train import train_run
    from dear.training.config import RunConfig, TrainConfig

    if args.out.exists():
        raise DearError(f"{args.out} is already there: choose another --out, or remove it.")
    with atomic_path(args.out / "world.png") as temporary:
        contact_sheet(0).save(temporary)
    dataset = resolve_dataset(_DATA)
    print(f"\ndear-mini, which has seen no night, and {len(dataset.classes)} kinds of signs by night:")
    print(f"{', '.join(dataset.classes[:3])}, ...")
    print(role_summary(RoleMap.preset("dear-mini")))

    before = zero_shot(load_backbone("dear-mini"), dataset)
    print(f"\ntraining on 16 pictures of each of the first {len(dataset.base().classes)} kinds ...")
    # A larger rate and more passes than the recipe for ViT-B/16, and less of a pull towards the class feature, which is
    # better on held-out pictures and leaves its say to the attribute that tells these kinds apart.
    recipe = TrainConfig(**{**recipe_of("experts"), "classes": "base", "lr": 0.01, "epochs": 20})
    run_config = RunConfig(method="experts", data=_DATA)
    after = train_run(run_config, ExpertsConfig(lambda_fusion=0.1), recipe, args.out / "signs")

    model = dear.load(args.out / "signs")
    chosen = typical(model, dataset.base())
    example, truth = chosen.picture.open(), dataset.classes[chosen.label]
    with atomic_path(args.out / "example.png") as temporary:
        example.save(temporary)
    answer = explain(model, example, args.out / "explain.png")
    print(f"\n{args.out / 'example.png'}, which shows: {truth}")
    print("(of all test pictures of these kinds, the one in the middle by the probability of its true kind)")
    print(f"{answer}\n")
    search_sheet(args.out / "search.png")

    table = Table(["accuracy (%)", "base", "novel", "HM"])
    table.add("zero-shot", before.base, before.novel, 2 * before.base * before.novel / (before.base + before.novel))
    table.add("expert tokens, 16 shots", after["base"], after["novel"], after["hm"])
    args.show("accuracy", table)
    print("base: the kinds it was trained on; novel: the other half, seen never; HM: their harmonic mean")
    print(f"look at {args.out / 'explain.png'}: why this answer")
    print(f"look at {args.out / 'search.png'}: one picture, and those like it in each attribute")


def typical(model: "Predictor", data: "Dataset") -> "Example":
    """The test picture that is neither easy nor hard: the median by the probability of its true class."""
    import torch

    from dear.core.names import inferences
    from dear.training.adapt import predict_logits
    from dear.training.images import ImageSource

    usual = inferences(model.model.components)[0]
    logits = predict_logits(model.model, data.test, ImageSource(model.model.backbone), "test", [usual])[usual]
    labels = torch.tensor([example.label for example in data.test])
    sure = logits.softmax(-1)[torch.arange(len(labels)), labels]
    return data.test[int(sure.argsort()[len(labels) // 2])]


def search_sheet(out: Path) -> None:
    """One picture, and those most like it in each attribute, by what the heads of frozen dear-mini write."""
    from dear.core.files import atomic_path
    from dear.data.world.tasks import world_task
    from dear.gallery import HeadEncoder, MemoryGallery
    from dear.gallery.sheet import attribute_sheet

    scenes = [example.picture for task in _SEARCHED for example in world_task(task).test[::5]]
    gallery = MemoryGallery(HeadEncoder.load("dear-mini"), {str(i): scene for i, scene in enumerate(scenes)})
    query = world_task("objects").val[0].picture.open()
    found = {by: gallery.search(query, by, _FOUND) for by in gallery.components if by != "cls"}
    with atomic_path(out) as temporary:
        attribute_sheet(query, found, gallery).save(temporary)

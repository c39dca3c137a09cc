"""dear demo: training, evaluation, explanation and search on the bundled model and data."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dear.core.errors import DearError
from dear.core.files import atomic_path
from dear.core.names import inferences
from dear.core.table import Table, add_json_argument

if TYPE_CHECKING:
    from dear.data.dataset import Dataset, Example
    from dear.model.predictor import Predictor

_DATA = "world:signs:night"  # a style that dear-mini has never seen, so that there is something to learn
_GALLERY_TASKS = ("colors", "shapes", "textures", "objects", "places")  # tasks whose pictures vary in every attribute
_HITS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser)
    parser.add_argument("--out", type=Path, default=Path("dear-demo"), help="folder of results (default: dear-demo)")


def run(args: argparse.Namespace) -> None:
    """Zero-shot accuracy, training on half of the classes, accuracy on both halves, an explanation, a search."""
    import dear
    from dear.core.metrics import harmonic_mean
    from dear.data.resolve import resolve_dataset
    from dear.data.world.sheet import world_sheet
    from dear.heads.map_table import role_summary
    from dear.heads.role_map import RoleMap
    from dear.training.run_folder import RunFolder

    if args.out.exists():
        raise DearError(f"{args.out} already exists: choose another --out, or remove it.")
    with atomic_path(args.out / "world.png") as temporary:
        world_sheet(0).save(temporary)
    dataset = resolve_dataset(_DATA)
    print(f"\ndear-mini, which was trained without night scenes, and {len(dataset.classes)} kinds of signs by night:")
    print(f"{', '.join(dataset.classes[:3])}, ...")
    print(role_summary(RoleMap.preset("dear-mini")))

    print(f"\ntraining on 16 pictures of each of the first {len(dataset.base().classes)} kinds ...")
    # A larger rate and more epochs than the recipe for ViT-B/16, and a weaker pull towards the class feature: better on
    # held-out pictures, and the attribute that distinguishes these kinds keeps its weight.
    model = dear.train(
        _DATA, method="experts", out=args.out / "signs", classes="base", lr=0.01, epochs=20, lambda_fusion=0.1
    )
    run = RunFolder(args.out / "signs")
    after, parts = run.test(), run.results()["parts"]
    before = {
        name: next(row["accuracy"] for row in part["board"]["outcomes"] if row["method"] == "zero-shot")
        for name, part in parts.items()
    }
    example = typical(model, dataset.base())
    picture, truth = example.picture.open(), dataset.classes[example.label]
    with atomic_path(args.out / "example.png") as temporary:
        picture.save(temporary)
    answer = model.explain(picture, args.out / "explain.png")
    print(f"\n{args.out / 'example.png'}, which shows: {truth}")
    print("(the median of all test pictures of these kinds by the probability of the true kind)")
    print(f"{answer}\n")
    search_sheet(args.out / "search.png")

    table = Table(["accuracy (%)", "base", "novel", "HM"])
    table.add("zero-shot", before["base"], before["novel"], harmonic_mean(**before))
    table.add("expert tokens, 16 shots", after["base"], after["novel"], after["hm"])
    args.show("accuracy", table)
    print("base: the kinds it was trained on; novel: the other half; HM: their harmonic mean")
    print(f"look at {args.out / 'explain.png'}: the reasons for this prediction")
    print(f"look at {args.out / 'search.png'}: a picture, and its nearest neighbours in each attribute")


def typical(model: "Predictor", data: "Dataset") -> "Example":
    """The median test picture by the probability of its true class."""
    import torch

    from dear.training.adapt import predict_logits
    from dear.training.images import ImageSource

    inference = inferences(model.model.components)[0]
    logits = predict_logits(model.model, data.test, ImageSource(model.model.backbone), "test", [inference])[inference]
    labels = torch.tensor([example.label for example in data.test])
    probabilities = logits.softmax(-1)[torch.arange(len(labels)), labels]
    return data.test[int(probabilities.argsort()[len(labels) // 2])]


def search_sheet(out: Path) -> None:
    """Draws a picture and its nearest neighbours in each attribute, by the heads of frozen dear-mini."""
    from dear.data.world.tasks import world_task
    from dear.gallery import HeadEncoder, MemoryGallery
    from dear.gallery.sheet import attribute_sheet

    scenes = [example.picture for task in _GALLERY_TASKS for example in world_task(task).test[::5]]
    gallery = MemoryGallery(HeadEncoder.load("dear-mini"), {str(i): scene for i, scene in enumerate(scenes)})
    query = world_task("objects").val[0].picture.open()
    hits = {by: gallery.search(query, by, _HITS) for by in gallery.components if by != "cls"}
    with atomic_path(out) as temporary:
        attribute_sheet(query, hits, gallery).save(temporary)

"""dear several: images with several labels, or none: fits, predicts and evaluates a model of its own."""

import argparse
import json
from pathlib import Path

from dear.commands.shared import add_action, add_device_arguments
from dear.core.config import number
from dear.core.errors import DearError
from dear.core.table import add_json_argument

_LIST = "CSV of path,label[,split] with labels as a;b (empty: none), or JSONL with lists"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="fit | predict | evaluate", required=True)
    fit = add_action(actions, "fit", _fit_list, "a threshold for each class, by answers of fits without each image")
    fit.add_argument("data", type=Path, metavar="LIST", help=_LIST)
    fit.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the model")
    fit.add_argument("--model", default="auto", metavar="MODEL", help="backbone, as of `dear fit` (default: auto)")
    fit.add_argument("--pretrained", help="OpenCLIP tag or checkpoint file")
    fit.add_argument("--template", help="prompt with one {} for the class name")
    fit.add_argument(
        "--right", type=number("--right", 1, 100), metavar="PERCENT",
        help="how many of the images that get a class shall have it (default: thresholds with the best F1)",
    )  # fmt: skip
    predict = add_action(actions, "predict", _predict, "the classes above their thresholds, surest first")
    predict.add_argument("folder", type=Path, metavar="DIR", help="folder made by `dear several fit`")
    predict.add_argument("images", nargs="+", metavar="IMAGE", help="image files, folders, or quoted globs")
    predict.add_argument("--json", action="store_true", help="print one JSON object per image")
    evaluate = add_action(actions, "evaluate", _evaluate, "mAP, micro and macro F1 on images with known labels")
    evaluate.add_argument("folder", type=Path, metavar="DIR", help="folder made by `dear several fit`")
    evaluate.add_argument("data", type=Path, metavar="LIST", help=f"{_LIST}; its test images, or all if it has none")
    for action in (fit, predict, evaluate):
        action.add_argument("--cache", type=Path, metavar="DIR", help="folder for encoded images, as of `dear fit`")
        add_device_arguments(action)
    for action in (fit, evaluate):
        add_json_argument(action)


def run(args: argparse.Namespace) -> None:
    args.action(args)


def _fit_list(args: argparse.Namespace) -> None:
    from dear.data.folder import TEMPLATE
    from dear.model.several import fit_several, measured, read_labelled
    from dear.training.backbone import choose_backbone
    from dear.training.images import ImageSource
    from dear.trials.fit import cache_folder

    if args.out.exists():
        raise DearError(f"{args.out} exists: choose another --out.")
    data, cache = read_labelled(args.data), cache_folder(args.cache)
    choice = choose_backbone(args.model, args.pretrained, [str(args.data)])
    backbone = choice.load(args.device, args.precision)
    choice.say()
    template = args.template or TEMPLATE
    promise = None if args.right is None else args.right / 100
    model, scores, targets = fit_several(data, ImageSource(backbone, cache), template, promise)
    table, line = measured(scores, scores > model.tensors["thresholds"], targets, model.classes)
    args.show("left out", table)
    print(f"{line}\nEach image was answered by a fit without it; the thresholds were chosen on these answers.")
    if never := [name for name, cut in zip(model.classes, model.tensors["thresholds"], strict=True) if cut.isinf()]:
        print(f"never named, as the promise cannot be kept: {', '.join(never)}")
    model.save(args.out, template)
    print(f"Next: dear several predict {args.out} IMAGE")


def _predict(args: argparse.Namespace) -> None:
    from dear.data.dataset import Example, ImageFile
    from dear.data.folder import find_images
    from dear.model.several import Several
    from dear.training.images import ImageSource
    from dear.trials.fit import cache_folder

    files = find_images(args.images)
    model = Several.load(args.folder, args.device, args.precision)
    source = ImageSource(model.backbone, cache_folder(args.cache))
    scores = model.scores(model.encode([Example(ImageFile(file), 0) for file in files], source))
    above = scores - model.tensors["thresholds"]
    for file, score, over in zip(files, scores, above, strict=True):
        places = [place for place in over.argsort(descending=True).tolist() if over[place] > 0]
        named = {model.classes[place]: round(float(score[place]), 4) for place in places}
        none = "none of the classes"
        print(json.dumps({"path": str(file), "classes": named}) if args.json else f"{file}: {', '.join(named) or none}")


def _evaluate(args: argparse.Namespace) -> None:
    from dear.model.several import Several, measured, read_labelled
    from dear.training.images import ImageSource
    from dear.trials.fit import cache_folder

    data = read_labelled(args.data)
    model = Several.load(args.folder, args.device, args.precision)
    rows = data.test.nonzero()[:, 0] if data.test.any() else (~data.test).nonzero()[:, 0]
    targets = data.targets(model.classes)[rows]
    source = ImageSource(model.backbone, cache_folder(args.cache))
    scores = model.scores(model.encode([data.examples[row] for row in rows.tolist()], source))
    table, line = measured(scores, scores > model.tensors["thresholds"], targets, model.classes)
    args.show("classes", table)
    print(line)

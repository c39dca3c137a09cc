"""The Python API does what the command line does."""

import inspect
import io
import json
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import dear
from dear.cli import main
from dear.core.errors import DearError
from dear.data.resolve import resolve_dataset
from dear.methods.registry import DEFAULT, METHODS, find_method
from dear.model.predictor import Predictor
from dear.training.config import RunConfig
from dear.training.run_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, RunFolder

COMPONENTS = ["cls", "color", "shape", "texture", "object", "location"]
pytestmark = pytest.mark.usefixtures("few_test_pictures")


@pytest.fixture(scope="module")
def settings(model_folder, role_file) -> dict[str, Any]:
    return {"model": f"local-dir:{model_folder}", "roles": role_file, "shots": 2, "epochs": 2, "first_layer": 2,
            "workers": 0, "device": "cpu"}  # fmt: skip


@pytest.fixture(scope="module")
def trained(settings, tmp_path_factory) -> tuple[Predictor, Path]:
    out = tmp_path_factory.mktemp("api") / "run"
    return dear.train("world:colors", "dear", out=out, **settings), out


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "red.png"
    resolve_dataset("world:colors").test[0].picture.open().save(path)
    return path


def test_only_the_api_is_listed() -> None:
    assert dir(dear) == ["DearError", "__version__", "create", "dataset", "evaluate", "fit", "load", "train"]
    assert all(hasattr(dear, name) for name in dir(dear))
    members = "comparison encode_text evaluate explain features predict predict_batch preprocess save with_gain"
    assert [name for name in dir(Predictor) if not name.startswith("_")] == members.split()


@pytest.mark.parametrize("method", ["dear", "experts", "promptsrc"])
def test_train_writes_the_folder_that_the_command_writes(method: str, settings, tmp_path) -> None:
    """Each method brings its recipe: promptsrc a bell over the epochs, experts its views."""
    if method == "promptsrc":
        settings = {name: value for name, value in settings.items() if name not in ("roles", "first_layer")}
    model = dear.train("world:colors", method, out=tmp_path / "api", **settings)
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["train", "--data", "world:colors", "--method", method, "--out", str(tmp_path / "cli"), *flags]
    assert main(command) == 0
    api, cli = RunFolder(tmp_path / "api"), RunFolder(tmp_path / "cli")
    assert api.settings() == cli.settings()
    assert api.test() == cli.test()
    assert api.few_shot() == cli.few_shot()
    for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
        assert (api.path / name).read_bytes() == (cli.path / name).read_bytes()
    assert model.method == method


def test_train_returns_what_load_returns(trained, picture) -> None:
    model, out = trained
    again = dear.load(out, device="cpu")
    assert type(model) is type(again)
    assert model.predict(picture) == again.predict(picture)
    assert repr(model) == repr(again)
    for part in ("dear", "12 classes", "red, orange, yellow, ...", model.model.backbone.name):
        assert part in repr(model)
    assert json.loads((out / "adapter_config.json").read_text())["components"] == COMPONENTS


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"epoch": 3}, "no setting 'epoch' for dear: did you mean epochs?"),
        ({"lambda_fuson": 1.0}, "did you mean lambda_fusion"),
        ({"xyzzy": 1}, "choose from .*shots"),
        ({"shots": "many"}, "--shots must be a whole number"),
        ({"method": "deer"}, "no method 'deer'"),
    ],
)
def test_wrong_settings_are_one_sentence(wrong, sentence: str, tmp_path) -> None:
    with pytest.raises(DearError, match=sentence):
        dear.train("world:colors", out=tmp_path / "run", **{"method": "dear", **wrong})
    assert not list(tmp_path.iterdir())
    if "method" not in wrong and "shots" not in wrong:
        with pytest.raises(DearError, match="no setting"):
            dear.create(classes=["a", "b"], **wrong)


def test_a_backbone_without_a_role_map_is_named(model_folder) -> None:
    with pytest.raises(DearError, match="no ready role map"):
        dear.create(f"local-dir:{model_folder}", classes=["a", "b"])


def test_the_default_method_is_that_of_the_command() -> None:
    assert signature(dear.train).parameters["method"].default == RunConfig().method == DEFAULT


def test_nothing_is_overwritten(trained, settings) -> None:
    with pytest.raises(DearError, match="already holds a run"):
        dear.train("world:colors", "dear", out=trained[1], **settings)
    with pytest.raises(DearError, match="already holds an adapter"):
        trained[0].save(trained[1])


def test_every_kind_of_image_gives_the_same_answer(trained, picture) -> None:
    model = trained[0]
    opened = Image.open(picture)
    kinds = [picture, str(picture), opened, np.asarray(opened.convert("RGB")), picture.read_bytes()]
    answers = model.predict(kinds, topk=2)
    assert isinstance(answers, list)
    for kind, answer in zip(kinds, answers, strict=True):
        alone = model.predict(kind, topk=2)
        assert (alone.choice, alone.top[1][0]) == (answer.choice, answer.top[1][0])
        assert alone.probability == pytest.approx(answers[0].probability, abs=1e-6)
    array = np.asarray(opened.convert("RGB"))
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    rows = pytest.importorskip("datasets").Dataset.from_dict({"image": [str(picture)] * 2})
    rows = rows.cast_column("image", pytest.importorskip("datasets").Image())
    for one in (array / 255, tensor, tensor / 255, rows[0], {"path": str(picture), "label": "red"}):
        assert model.predict(one).probability == pytest.approx(answers[0].probability, abs=1e-6)
    grey = np.asarray(opened.convert("L"))
    for one in (grey, grey[:, :, None]):
        assert model.predict(one) == model.predict(opened.convert("L"))
    frame = pytest.importorskip("pandas").DataFrame({"path": [picture] * 2, "other": [1, 2]})
    pairs = TensorDataset(torch.stack([tensor] * 2) / 255, torch.tensor([0, 1]))
    arrays = np.array([str(picture)] * 2), torch.stack([tensor] * 2)
    for images in (rows, frame, *arrays, pairs, DataLoader(pairs), iter(kinds[:2])):
        assert [a.probability for a in model.predict(images)] == pytest.approx([answers[0].probability] * 2, abs=1e-6)
    several = np.stack([np.asarray(opened.convert("RGB"))] * 2)  # [images, height, width, 3]
    column = pytest.importorskip("pandas").Series([str(picture)] * 2, index=[7, 8])  # of a DataFrame
    for images in (several, column, tuple(kinds[:2])):
        assert [answer.choice for answer in model.predict(images)] == [answers[0].choice] * 2
    assert model.predict([]) == []
    assert len(model.predict([picture] * 40)) == 40  # more than a batch
    assert [value.shape for value in model.features(kinds).values()] == [(5, 32)] * 6
    one, batch = model.features(picture), model.features(torch.stack([model.preprocess(opened.convert("RGB"))]))
    assert list(one) == COMPONENTS
    assert all(torch.equal(one[name], batch[name]) for name in COMPONENTS)


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (np.zeros((4, 4, 3), np.int64), r"uint8, not \[4, 4, 3\] of int64"),
        (torch.randn(3, 8, 8) - 9, r"must be in 0..1, not in -"),
        (Path(__file__).parent, "is a folder: give its files"),
        (io.BytesIO(b"line\nline"), "can't be a stream: give its bytes"),
        (np.zeros((2, 2, 4, 4, 3), np.uint8), r"not \[2, 2, 4, 4, 3\] of uint8"),
        (np.zeros((0, 4, 3), np.uint8), "no pixels"),
        (b"no image", "These bytes cannot be read as an image"),
        (None, "must be a path, a PIL image, an array .* or bytes, not NoneType"),
        (7, "not int"),
        ([[1]], "not list"),
    ],
)
def test_what_is_no_image_is_refused(trained, image, sentence: str) -> None:
    with pytest.raises(DearError, match=sentence):
        trained[0].predict(image)


def test_evaluate_agrees_with_the_run_and_with_predict(trained, settings) -> None:
    model, out = trained
    data = resolve_dataset("world:colors")
    result = model.evaluate("world:colors")
    assert result.accuracy == pytest.approx(RunFolder(out).test()["all"])
    assert result == dear.evaluate(out, data)
    assert result.images == len(data.test) == sum(result.class_images.values())
    assert list(result.per_class) == list(data.classes)
    assert result.interval[0] <= result.accuracy <= result.interval[1]
    answers = model.predict([example.picture.open() for example in data.test])
    for label, (name, accuracy) in enumerate(result.per_class.items()):
        own = [answer.choice == name for answer, e in zip(answers, data.test, strict=True) if e.label == label]
        low, high = result.class_interval(name)
        assert low <= accuracy <= high
        assert accuracy == pytest.approx(100 * np.mean(own))
    assert sum(count for _, _, count in result.confused) == round(result.images * (1 - result.accuracy / 100))
    assert len(str(result).splitlines()) == 2 + 12 + 1
    json.dumps(result.to_json(), allow_nan=False)
    alone = model.evaluate(data, inference="decoupled")
    decoupled = model.predict([e.picture.open() for e in data.test[:40]], inference="decoupled")
    assert alone.images == result.images
    assert decoupled[0].votes[0].weight == 1


def test_evaluate_chooses_among_the_models_classes_if_it_can(trained) -> None:
    """Fewer classes than the model's are no easier; other classes replace the model's for this call alone."""
    model, _ = trained
    data = resolve_dataset("world:colors")
    half = data.novel()
    answers = model.predict([example.picture.open() for example in half.test])
    right = [a.choice == half.classes[e.label] for a, e in zip(answers, half.test, strict=True)]
    assert model.evaluate(half).accuracy == pytest.approx(100 * np.mean(right))
    before = model.predict(half.test[0].picture.open())
    shapes = model.evaluate("world:shapes")
    assert set(shapes.per_class) == set(resolve_dataset("world:shapes").classes)
    assert model.predict(half.test[0].picture.open()) == before
    for wrong, sentence in (({"split": "tests"}, "no split 'tests'"), ({"inference": "plain"}, "not by plain")):
        with pytest.raises(DearError, match=sentence):
            model.evaluate(data, **wrong)
    assert model.evaluate(data, split="all").images == len(data.train) + len(data.val) + len(data.test)


def test_saved_and_explained(trained, picture, tmp_path) -> None:
    model = trained[0]
    model.save(tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {ADAPTER_CONFIG, ADAPTER_WEIGHTS}
    assert dear.load(tmp_path / "adapter", device="cpu").predict(picture) == model.predict(picture)
    explained = model.explain(picture, out=tmp_path / "why.png")
    assert [without.attribute for without in explained.without] == COMPONENTS[1:]
    assert replace(explained, without=()) == model.predict(picture)
    with Image.open(tmp_path / "why.png") as drawn:
        assert min(drawn.size) > 600
    with pytest.raises(DearError, match="ends in"):
        model.explain(picture, out=tmp_path / "why.txt")


def test_every_public_function_has_a_docstring() -> None:
    for owner in (dear, Predictor):
        for name, value in inspect.getmembers(owner, callable):
            if not name.startswith("_"):
                assert inspect.getdoc(value), name


@pytest.mark.parametrize("name", METHODS)
def test_an_untrained_model_answers_or_says_that_it_must_be_trained(name: str, model_folder, role_file) -> None:
    settings = {"roles": str(role_file), "first_layer": 2} if METHODS[name].ours else {}
    settings = {key: value for key, value in settings.items() if key in find_method(name).Config.names()}
    said = "train"
    try:
        model = dear.create(f"local-dir:{model_folder}", classes=["red", "blue"], method=name, device="cpu", **settings)
        assert 0 <= model.predict(Image.new("RGB", (32, 32), "red")).probability <= 1
    except DearError as error:
        said = str(error)
    assert "train" in said

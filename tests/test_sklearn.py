"""`DearClassifier` in scikit-learn's own tools, on files and on features."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dear.core.errors import DearError
from dear.sklearn import DearClassifier
from dear.trials.fit import ALONE
from noisy_pictures import noisy_folders


@parametrize_with_checks([DearClassifier()])
def test_it_is_an_estimator(estimator, check) -> None:
    check(estimator)


def test_it_is_one_where_scipy_takes_arrays_of_any_library() -> None:
    """SciPy reads the variable when it is imported, hence a process of its own."""
    run = """from dear.sklearn import DearClassifier
from sklearn.utils.estimator_checks import check_estimator
check_estimator(DearClassifier())"""
    command, environment = [sys.executable, "-W", "ignore", "-c", run], {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_a_replaced_file_and_another_folder_give_new_answers(on_files, tmp_path: Path, monkeypatch) -> None:
    """So does an estimator whose backbone is kept for all clones."""
    folders = noisy_folders(tmp_path, ("red", "green"), 4)
    paths = [str(folders / name / f"{i}.png") for name in ("red", "green") for i in range(4)]
    on_files.fit(paths, [name for name in ("red", "green") for _ in range(4)])
    found = []
    for name, place in (("red", "one"), ("green", "one"), ("red", "two")):
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        Path("x.png").write_bytes((folders / name / "0.png").read_bytes())
        found += on_files.predict(["x.png"]).tolist()
    assert found == ["red", "green", "red"]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[list[str], list[str]]:
    names = ["red"] * 6 + ["green"] * 6 + ["blue"] * 6
    folder = noisy_folders(tmp_path_factory.mktemp("photos"), ("red", "green", "blue"), 6)
    return [str(folder / name / f"{i % 6}.png") for i, name in enumerate(names)], names


@pytest.fixture
def on_files(model_folder: Path, tmp_path: Path) -> DearClassifier:
    return DearClassifier(model=f"local-dir:{model_folder}", cache=str(tmp_path), device="cpu")


def test_files_in_cross_validation_grid_search_and_a_pipeline(files, on_files: DearClassifier) -> None:
    paths, names = files
    assert cross_val_score(on_files, paths, names, cv=3).mean() > 0.9
    search = GridSearchCV(on_files, {"method": ["gda", "ss-text"], "template": ["a {} wall."]}, cv=2).fit(paths, names)
    assert search.best_params_["method"] in ("gda", "ss-text")
    assert list(search.predict(paths[:1])) == ["red"]
    pipeline = make_pipeline(FunctionTransformer(), on_files).fit(paths, names)
    assert pipeline.score(paths, names) > 0.9
    assert list(pipeline.classes_) == ["blue", "green", "red"]
    assert pipeline[-1].comparison_.chosen == pipeline[-1].method_
    assert pipeline[-1].get_params()["method"] == "auto"
    np.testing.assert_allclose(pipeline.predict_proba(paths).sum(1), 1)
    pictures = [Image.open(path) for path in paths]
    np.testing.assert_allclose(on_files.fit(pictures, names).predict_proba(pictures), pipeline.predict_proba(paths))


def test_features_with_class_texts() -> None:
    rng = np.random.default_rng(0)
    text = rng.normal(size=(3, 16))
    y = np.arange(60) % 3
    X = text[y] + 2.5 * rng.normal(size=(60, 16))
    few = slice(0, 9)  # three images per class: the texts know more
    with_text = DearClassifier("ss-text", text=text).fit(X[few], y[few]).score(X[9:], y[9:])
    without = DearClassifier("ss-text").fit(X[few], y[few]).score(X[9:], y[9:])
    assert with_text > without
    assert make_pipeline(StandardScaler(), DearClassifier("proker")).fit(X, y).score(X, y) > 0.8
    with pytest.raises(DearError, match=r"shape \[3, 16\]"):
        DearClassifier(text=text[:2]).fit(X, y)
    with pytest.raises(DearError, match="NaN"):
        DearClassifier(text=text * np.nan).fit(X, y)
    with pytest.raises(DearError, match="array of numbers"):
        DearClassifier(text="red").fit(X, y)
    with pytest.raises(DearError, match="has the methods"):
        DearClassifier("coop").fit(X, y)


def test_dear_needs_no_scikit_learn(monkeypatch) -> None:
    for name in [name for name in sys.modules if name == "dear.sklearn" or name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DearError, match=r"pip install 'dear-vlm\[sklearn\]'"):
        import dear.sklearn  # noqa: F401


def test_one_image_per_class_gives_the_same_choice_as_dear_fit() -> None:
    X = np.random.default_rng(0).normal(size=(4, 16))
    assert DearClassifier().fit(X, list("abcd")).method_ == ALONE
    assert DearClassifier("gda").fit(X, list("abcd")).method_ == "gda"


def test_wrong_images_are_refused_in_a_sentence(files, on_files: DearClassifier) -> None:
    paths, names = files
    on_files.fit(paths, names)
    for wrong, sentence in (
        (paths[0], "is one image"),
        (io.BytesIO(b"line\nline"), "is one image"),
        (Image.open(paths[0]), "is one image"),
        (pd.DataFrame({"path": paths}), "is a table"),
        (np.array(paths)[:, None], "is a table"),
    ):
        with pytest.raises(DearError, match=sentence):
            on_files.predict(wrong)
    with pytest.raises(DearError, match="cannot be kept in"):
        DearClassifier(model="dear-mini", cache="a\0b").fit(paths, names)
    with pytest.raises(DearError, match="need a backbone"):
        DearClassifier().fit(paths, names)
    with pytest.raises(DearError, match="need a backbone"):
        DearClassifier().fit([Image.open(path) for path in paths], names)
    assert list(on_files.predict(pd.DataFrame({"path": paths})["path"][:1])) == ["red"]


def test_classes_that_are_numbers_are_warned_of(files, on_files: DearClassifier) -> None:
    paths, names = files
    with pytest.warns(UserWarning, match="numbers, which say nothing to CLIP"):
        on_files.fit(paths, [["red", "green", "blue"].index(name) for name in names])

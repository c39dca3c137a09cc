"""Files that others wrote: whatever is missing, too much or of another kind, they are read or refused in a sentence."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from dear.core.config import Config
from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.core.schema import Count, Finite, check_shape, damaged
from dear.data.folder import read_dataset
from dear.data.resolve import resolve_dataset
from dear.heads.role_map import RoleMap
from hostile import ODD, survives


def test_role_maps() -> None:
    value = RoleMap.preset("dear-mini").to_json()
    layer = value["layers"][-1]
    small = {**value, "layers": [layer], "roles": {str(layer): value["roles"][str(layer)]}}
    assert RoleMap.from_json(small).to_json() == small

    def use(changed: Any) -> object:
        from dear.heads.map_table import role_summary, role_table

        found = RoleMap.from_json(changed)
        return role_table(found).text() + role_summary(found)

    heads = small["roles"][str(layer)]
    few = {**small, "heads": 2, "roles": {str(layer): {k: heads[k] for k in ("0", "1")}}}
    for head in few["roles"][str(layer)].values():
        head["phrases"] = [{"text": "a wavy sign", "variance": 0.5, "concept": "texture"}]  # as maps by phrases do
    assert survives(use, few) > 300


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    return tmp_path


def test_split_files(pictures: Path) -> None:
    rows = [["a.png", 0, "cat"], ["b.png", 1, "dog"]]
    value = {"train": rows, "val": [], "test": rows}

    def use(changed: Any) -> object:
        (pictures / "split.json").write_text(json.dumps(changed))
        return read_dataset(pictures / "split.json").prompts

    assert use(value) == ["a photo of a cat.", "a photo of a dog."]
    assert survives(use, value) > 100
    for rows, sentence in (
        ([["a.png", 0, "cat"], ["b.png", 0, "cat"]], "at least two"),
        ([["a.png", 0, "cat"], ["b.png", 1, "dog"], ["b.png", 1, "wolf"]], "two names, 'dog' and 'wolf'"),
    ):
        with pytest.raises(DearError, match=sentence):
            use({"train": rows})


def test_listings(pictures: Path) -> None:
    value = {"path": "a.png", "label": "cat", "split": "train"}

    def use(changed: Any) -> object:
        (pictures / "list.jsonl").write_text(json.dumps({**value, "label": "dog"}) + "\n" + json.dumps(changed) + "\n")
        return read_dataset(pictures / "list.jsonl").prompts

    assert use(value) == ["a photo of a cat.", "a photo of a dog."]
    assert survives(use, value) > 30


@example("")
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_csv(tmp_path_factory, text: str) -> None:
    folder = tmp_path_factory.mktemp("csv")
    for head in ("", "path,label\n", "path,label,split\n"):
        (folder / "list.csv").write_text(head + text, encoding="utf-8")
        with suppress(DearError):
            read_dataset(folder / "list.csv")


def test_spaces_make_no_other_class(pictures: Path) -> None:
    (pictures / "list.csv").write_text("path,label\na.png,a\nb.png,a \na.png, b\n")
    assert read_dataset(pictures / "list.csv").classes == ("a", "b")


def test_names_of_classes(tmp_path: Path) -> None:
    def use(changed: Any) -> object:
        write_json(tmp_path / "names.json", changed)
        return resolve_dataset("world:colors", class_names=str(tmp_path / "names.json"))

    assert use({"red": " scarlet "}).classes[0] == "scarlet"
    assert survives(use, {"red": "scarlet"}) > 15


@pytest.mark.parametrize("value", [*ODD, float("nan"), float("inf"), 10**400])
def test_any_settings(value: Any) -> None:
    from dear.training.config import TrainConfig

    for name in TrainConfig.__dataclass_fields__:
        with suppress(DearError):
            found: Config = TrainConfig(**{name: value})
            assert json.loads(json.dumps(found.to_json(), allow_nan=False))[name] == value


@given(
    st.binary(max_size=50) | st.sampled_from([b"[" * 10**5, b'{"a":' * 10**5, b"1" * 10**5, b"-1e999", b'"\\ud800"'])
)
def test_any_bytes_are_json_or_refused(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_bytes(data)
    with suppress(DearError):
        read_json(path)
        for load in (RoleMap.load, read_dataset, lambda path: resolve_dataset("world:colors", class_names=str(path))):
            with suppress(DearError):
                load(path)


def test_the_place_is_named() -> None:
    with pytest.raises(
        DearError, match=r"^It is damaged \(\[\.\.\.\]\[1\].*: expected int, got str\): copy it again\.$"
    ):
        check_shape({"a": [{"b": 1}, {"b": "1"}]}, dict[str, list[dict[str, int]]], "It", "copy it again")
    for bad in (float("nan"), float("inf"), 1e31, "1", None, True):
        with pytest.raises(DearError, match="damaged"):
            check_shape(bad, Finite, "It", "copy it again")
    with pytest.raises(DearError, match="damaged"):
        check_shape(-1, Count, "It", "copy it again")
    with pytest.raises(DearError, match=r"It is damaged .it lacks 'b'.: copy it again"), damaged("It", "copy it again"):
        {"a": 1}["b"]

"""Sharing: what is pushed loads elsewhere and tells nothing of this machine; what does not belong is refused."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import dear
from dear.cli import main
from dear.core.errors import DearError
from dear.heads.role_map import RoleMap
from dear.model.hub import fetch, without_paths, write_folder
from dear.training.adapter import CONFIG, WEIGHTS, read_config
from dear.training.run_folder import RunFolder

CLASSES = ["/m/0abc", "a/b", "red cube"]
COMPONENTS = {
    "dear": ["cls", "color", "shape", "texture", "object", "location"],
    "experts": ["cls", "color", "shape", "rest"],  # attributes without heads in the role map have no token
}


@pytest.fixture(scope="module", params=COMPONENTS)
def run_folder(request, tmp_path_factory, train_arguments, role_file) -> Path:
    """A run of `dear train`, with paths of this machine in every place that can have one."""
    folder = tmp_path_factory.mktemp("runs")
    rows = []
    for number in range(3 * 10):
        Image.new("RGB", (16, 16), (8 * number, 80, 255 - 8 * number)).save(folder / f"{number}.png")
        rows.append(f"{folder / f'{number}.png'},{CLASSES[number % 3]}")
    (folder / "pets.csv").write_text("\n".join(["path,label", *rows]))
    roles = json.loads(role_file.read_text())
    roles["origin"] = {"images": {"source": "/home/somebody/photos", "used": 3}, "skipped_images": ["/srv/x/y.jpg"]}
    (folder / "roles.json").write_text(json.dumps(roles))
    more = ["--method", request.param, "--data-root", "~/data", "--data", str(folder / "pets.csv"), "--roles",
            str(folder / "roles.json"), "--template", "a photo of {}.", "--shots", "4"]  # fmt: skip
    assert main(train_arguments(folder / "mine", *more)) == 0
    return folder / "mine"


@pytest.fixture
def pushed(hub, run_folder, capsys):
    assert main(["push", str(run_folder), "somebody/pets", "--private"]) == 0
    assert "hf-hub:somebody/pets" in capsys.readouterr().out
    return hub.repositories["somebody/pets"]


def test_a_pushed_adapter_answers_as_the_run_does(hub, pushed, run_folder, model_folder) -> None:
    here = dear.load(run_folder)
    there = dear.load("hf-hub:somebody/pets", model=f"local-dir:{model_folder}")
    torch.manual_seed(1)
    image = Image.fromarray(torch.randint(0, 255, (40, 40, 3), dtype=torch.uint8).numpy())
    assert there.predict(image) == here.predict(image)
    assert list(there.classes) == CLASSES
    assert hub.private["somebody/pets"]
    tokens = [call for call in hub.calls if WEIGHTS in call or CONFIG in call]
    assert not [call for call in hub.calls if "README" in call and call.startswith("GET")]  # only what is needed
    assert tokens


def test_what_is_pushed_is_the_adapter_and_its_story(pushed, run_folder) -> None:
    assert set(pushed) == {WEIGHTS, CONFIG, "roles.json", "README.md", "fusion.png"}
    assert RoleMap.from_json(json.loads(pushed["roles.json"])).heads == 4
    card = pushed["README.md"].decode()
    accuracy = f"| all | {RunFolder(run_folder).test()['all']:.1f} |"
    told = ["red cube", accuracy, "| shots | 4 |", "(fusion.png)", 'dear.load("hf-hub:somebody/pets")', "Data: pets"]
    assert [text for text in told if text not in card] == []
    assert pushed["fusion.png"].startswith(b"\x89PNG")
    assert len(pushed["fusion.png"]) < 50_000


def test_components_are_named_as_the_model_names_them(pushed, run_folder, tmp_path, monkeypatch) -> None:
    """The adapter and the picture of its card name them alike."""
    config, drawn = json.loads(pushed[CONFIG]), []
    expected = COMPONENTS[config["method"]]
    assert config["components"] == expected == list(dear.load(run_folder).model.components)
    monkeypatch.setattr("dear.model.hub.draw_fusion", lambda *given: drawn.append(given))
    (tmp_path / "again").mkdir()
    write_folder(run_folder, "somebody/pets", tmp_path / "again")
    [(names, weights, _)] = drawn
    assert dict(zip(names, weights, strict=True)) == dict(
        zip(expected, dear.load(run_folder).model.fusion_weights().tolist(), strict=True)
    )


def test_nothing_tells_of_this_machine(pushed, model_folder, role_file, run_folder) -> None:
    for name in (CONFIG, "roles.json", "README.md"):
        text = pushed[name].decode()
        for private in ("/home/", "somebody/photos", "/srv", "~", str(model_folder.parent), str(role_file.parent)):
            assert private not in text, (name, private)
        assert str(run_folder.parent) not in text
    config = json.loads(pushed[CONFIG])
    assert config["classes"] == CLASSES  # names that look like paths stay
    assert config["backbone"]["model"] == f"local-dir:{model_folder.name}"


def test_a_path_in_an_unforeseen_place_stops_the_push(hub, run_folder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("dear.model.hub.without_paths", lambda value: value)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/somebody"))
    assert main(["push", str(run_folder), "somebody/pets"]) == 2
    assert "would publish the path /home/somebody, so nothing was pushed" in capsys.readouterr().err
    assert hub.repositories == {}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter.pkl", "modeling.py", "sub/adapter_model.safetensors"])
def test_what_does_not_belong_is_refused_before_it_is_fetched(hub, pushed, name: str) -> None:
    pushed[name] = b"anything"
    with pytest.raises(DearError, match=f"holds {name}, which does not belong"):
        dear.load("hf-hub:somebody/pets")
    assert not [call for call in hub.calls if "/resolve/" in call]


@pytest.mark.parametrize(("file", "sentence"), [(WEIGHTS, "checksum differs"), (CONFIG, "was changed after training")])
def test_a_changed_file_is_noticed(pushed, file: str, sentence: str, model_folder) -> None:
    changed = bytearray(pushed[file])
    place = pushed[file].index(b"red cube") if file == CONFIG else len(changed) - 5
    changed[place] ^= 1
    pushed[file] = bytes(changed)
    with pytest.raises(DearError, match=sentence):
        dear.load("hf-hub:somebody/pets", model=f"local-dir:{model_folder}")


def test_offline_the_copy_in_the_cache_is_used(hub, pushed, monkeypatch) -> None:
    folder = fetch("hf-hub:somebody/pets")
    assert read_config(folder)["classes"] == CLASSES
    hub.repositories.clear()
    hub.shutdown()
    hub.server_close()
    assert fetch("hf-hub:somebody/pets") == folder
    with pytest.raises(DearError, match="could not be fetched"):
        fetch("hf-hub:somebody/unseen")


def test_unusable_names_and_refusals_of_the_hub_are_one_sentence(hub, run_folder, capsys, tmp_path) -> None:
    assert main(["push", str(run_folder), "no-slash"]) == 2
    assert "write ORG/NAME" in capsys.readouterr().err
    assert main(["push", str(tmp_path), "somebody/pets"]) == 2
    assert "is not an adapter" in capsys.readouterr().err
    hub.shutdown()
    hub.server_close()
    assert main(["push", str(run_folder), "somebody/pets"]) == 2
    assert "the hub cannot be reached; check the network" in capsys.readouterr().err


def test_without_paths_keeps_names_of_the_hub(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    names = ["hf-hub:org/model", "transformers:openai/clip-vit-base-patch16", "world:signs", "a photo of {}.", 3, None]
    assert without_paths(names) == names
    paths = ["/a/b", "~/b", "../x/b", "C:\\me\\b", "local-dir:/a/b/", "transformers:/a/b", "photos/cats"]
    assert without_paths(paths) == ["b", "b", "b", "b", "local-dir:b", "transformers:b", "cats"]

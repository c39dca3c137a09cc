"""Searching by attribute without training: what the heads of an attribute write, centred by the gallery's mean."""

import json

import numpy as np
import pytest
import torch

import dear
from dear.cli import main
from dear.clip import load_backbone
from dear.core.errors import DearError
from dear.core.files import read_json, write_json
from dear.data.world.tasks import world_task
from dear.gallery import AdapterEncoder, Gallery, HeadEncoder
from dear.heads.contributions import decompose
from dear.heads.role_map import RoleMap


@pytest.fixture(scope="module")
def heads(model_folder, role_file) -> HeadEncoder:
    return HeadEncoder.load(f"local-dir:{model_folder}", roles=str(role_file), device="cpu")


@pytest.fixture
def gallery(heads, photos, tmp_path) -> Gallery:
    gallery = Gallery.create(tmp_path / "gallery", heads)
    gallery.add(heads, [photos])
    return gallery


def naive(heads: HeadEncoder, roles: RoleMap, pixels: torch.Tensor, attribute: str) -> torch.Tensor:
    """The sum over the attribute's heads in the full decomposition of the image feature, [images, dim]."""
    parts = decompose(heads.backbone, pixels)
    chosen = [at for at, head in roles.roles.items() if (head.role, head.concept) == ("core_attribute", attribute)]
    return torch.stack([parts.heads[:, layer - 1, head] for layer, head in chosen]).sum(0)


def test_vectors_are_what_the_heads_write(heads, role_file) -> None:
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    features = heads.encode_image(pixels)
    assert list(features) == ["cls", "color", "shape"] == list(heads.components)
    plain = heads.backbone.image.encode(pixels)
    assert torch.allclose(features["cls"], torch.nn.functional.normalize(plain, dim=-1), atol=1e-5)
    for attribute in ("color", "shape"):
        expected = naive(heads, RoleMap.load(role_file), pixels, attribute)
        assert torch.allclose(features[attribute], expected, atol=1e-5)


def test_ranking_is_by_cosines_about_the_mean_of_the_gallery(gallery, heads, role_file) -> None:
    paths = gallery.paths()
    pixels = torch.stack([heads.preprocess(gallery.image(path)) for path in paths])
    written = naive(heads, RoleMap.load(role_file), pixels, "color").double().numpy()
    centred = written - written.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    for row in (0, 7):
        query = gallery.query(heads, gallery.image(paths[row]), ["color"])
        hits = gallery.search(query, {"color": 1.0}, k=12)
        expected = dict(zip(paths, centred @ centred[row], strict=True))
        assert [hit.score for hit in hits] == pytest.approx([expected[hit.path] for hit in hits], abs=5e-3)
        assert hits[0].path == paths[row]
        assert hits[0].score == pytest.approx(1, abs=1e-3)
        assert hits == sorted(hits, key=lambda hit: -hit.score)


def test_the_mean_is_that_of_all_images_however_they_came(gallery, heads, photos, tmp_path) -> None:
    other = Gallery.create(tmp_path / "other", heads)
    for folder in ("a", "01.d", "b_c"):
        other.add(heads, [photos / folder])
    query = gallery.query(heads, gallery.image(str(photos / "a" / "1.png")))
    scores = {hit.path: hit.score for hit in gallery.search(query, {"shape": 1.0}, k=12)}
    again = other.query(heads, other.image(str(photos / "a" / "1.png")))
    assert {hit.path: hit.score for hit in other.search(again, {"shape": 1.0}, k=12)} == pytest.approx(scores, abs=1e-5)
    other.remove([photos / "a"])  # and with other images it is another one
    assert np.abs(other.query(heads, gallery.image(str(photos / "a" / "1.png")))["shape"] - again["shape"]).max() > 1e-4


def test_a_sentence_is_compared_as_it_is(gallery, heads) -> None:
    query = gallery.query(heads, "a red sign")
    expected = torch.nn.functional.normalize(heads.backbone.text.encode(["a red sign"])[0], dim=-1)
    assert all(np.allclose(query[name], expected.detach(), atol=1e-6) for name in ("cls", "color", "shape"))
    hits = gallery.search(query, {"color": 1.0}, k=3)
    exact = gallery.vectors("color") @ query["color"]
    assert [hit.score for hit in hits] == pytest.approx(sorted(exact, reverse=True)[:3], abs=1e-5)


def test_index_and_search_without_an_adapter(model_folder, role_file, photos, run, tmp_path, capsys) -> None:
    out, model = str(tmp_path / "gallery"), ["--model", f"local-dir:{model_folder}", "--roles", str(role_file)]
    assert main(["index", *model, str(photos), "--out", out]) == 0
    assert "added 12" in capsys.readouterr().out
    query = str(photos / "a" / "2.png")
    assert main(["search", out, "--image", query, "--by", "color", "--json", "--device", "cpu"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["path"] == query
    assert main(["index", *model, str(photos), "--out", out]) == 0
    assert "already there 12" in capsys.readouterr().out
    assert main(["index", "--out", out, "--remove", str(photos / "a")]) == 0
    assert "removed 4" in capsys.readouterr().out
    assert main(["search", out, "--image", query, "--by", "texture"]) == 2
    assert "choose from cls, color, shape" in capsys.readouterr().err
    assert main(["index", str(run), str(photos), "--out", out]) == 2
    assert "was made with heads of local-dir:" in capsys.readouterr().err


def test_a_map_that_names_no_head_or_another_backbone_is_refused(model_folder, role_file, photos, tmp_path) -> None:
    roles, model = RoleMap.load(role_file), f"local-dir:{model_folder}"
    roles.all_mixed().save(tmp_path / "mixed.json")
    with pytest.raises(DearError, match="assigns no head to any attribute"):
        HeadEncoder.load(model, roles=str(tmp_path / "mixed.json"))
    with pytest.raises(DearError, match="made for another backbone"):
        HeadEncoder.load("dear-mini", roles=str(role_file))
    with pytest.raises(DearError, match="no ready role map"):
        HeadEncoder.load(model)
    with pytest.raises(DearError, match="3 layers of 4 heads"):
        HeadEncoder(load_backbone(model), {"color": [(4, 0)]})


@pytest.mark.parametrize(
    "changed",
    [
        {"heads": {"color": [[4, 0]]}},
        {"heads": {"color": [[0, 0]]}},
        {"heads": {"color": [[2]]}},
        {"heads": {"color": "12"}},
        {"heads": {}},
        {"backbone": {}},
        {"backbone": None},
        {"kind": "adapter"},
        {"kind": ["heads"]},
    ],
)
def test_what_the_gallery_says_of_its_heads_is_checked(gallery, changed) -> None:
    about = read_json(gallery.folder / "gallery.json")
    write_json(gallery.folder / "gallery.json", {**about, "encoder": {**about["encoder"], **changed}})
    with pytest.raises(DearError):
        Gallery.open(gallery.folder).encoder("cpu")


def test_other_weights_are_refused(gallery) -> None:
    about = read_json(gallery.folder / "gallery.json")
    about["encoder"]["backbone"]["weights"] = "0" * 64
    write_json(gallery.folder / "gallery.json", about)
    with pytest.raises(DearError, match="load the backbone it was made for"):
        Gallery.open(gallery.folder).encoder("cpu")


@pytest.mark.parametrize("method", ["gda", "head-gains"])
def test_an_adapter_with_one_feature_has_the_attributes_of_the_frozen_heads(method, tmp_path) -> None:
    settings = {"model": "dear-mini", "device": "cpu", "shots": 1}
    model = dear.train("world:colors", method=method, out=tmp_path / "run", **settings)
    encoder, frozen = AdapterEncoder.load(tmp_path / "run", "cpu"), HeadEncoder.load("dear-mini", device="cpu")
    pixels = torch.stack([model.preprocess(world_task("signs").test[n].picture.open()) for n in range(3)])
    vectors, of_heads = encoder.encode_image(pixels), frozen.encode_image(pixels)
    assert encoder.components == frozen.components == tuple(vectors)
    assert torch.allclose(vectors["cls"], model.features(pixels)["cls"], atol=1e-6)
    for name in encoder.centred:
        assert torch.allclose(vectors[name], of_heads[name], atol=1e-6)
    changed = encoder.with_gain({"texture": 0}).encode_image(pixels)["cls"]
    assert torch.allclose(changed, model.with_gain(texture=0).features(pixels)["cls"], atol=1e-6)

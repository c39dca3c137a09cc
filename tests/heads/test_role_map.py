"""RoleMap: the paper's table, the JSON form and what it refuses, and the maps for ablations."""

import copy
import json
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

from dear.clip import load_backbone
from dear.core.errors import DearError, DearWarning, warn_once
from dear.heads.head_role import HeadRole, Phrase
from dear.heads.map_table import role_summary, role_table
from dear.heads.role_map import RoleMap, find_role_map
from dear.methods.shared.role_settings import find_roles

PAPER = RoleMap.preset("paper")
ORIGIN = {"images": {"used": 7, "source": "photos"}}


def small_map() -> RoleMap:
    """Two layers of two heads with all the evidence."""
    evidence = (0.5, (0.75, 0.25, 0.0), (Phrase("a red thing", 0.4, "color"), Phrase("a cat", 0.1, "animal")))
    roles = {
        (3, 0): HeadRole("core_attribute", "color", *evidence),
        (3, 1): HeadRole("other_specialized", "animal", *evidence),
        (4, 0): HeadRole("generalization", "color", 1.0, (0.4, 0.3, 0.3)),
        (4, 1): HeadRole("mixed"),
    }
    backbone = {"model": "tiny", "pretrained": None, "weights": "abc"}
    return RoleMap(backbone, (3, 4), 2, ("color", "animal", "shape"), ("color", "shape"), roles, ORIGIN)


def test_the_paper_preset_is_table_2():
    assert role_summary(PAPER) == "28 core attribute, 8 other specialized, 7 generalization, 5 mixed"
    assert PAPER.layers == (9, 10, 11, 12)
    assert PAPER.core == ("color", "shape", "texture", "object", "location")
    # a few rows read off the printed table
    assert PAPER[9, 7] == HeadRole("core_attribute", "texture")
    assert PAPER[11, 7] == HeadRole("other_specialized", "action")
    assert PAPER[12, 1] == HeadRole("generalization", "style")
    assert PAPER[12, 3] == HeadRole("mixed", None)
    assert PAPER[12, 10] == HeadRole("core_attribute", "color")
    PAPER.check_backbone({"model": "ViT-B-16", "pretrained": "openai", "weights": "0123"}, layers=12, heads=12)


def test_the_measured_preset_fits_openais_weights_in_any_precision():
    measured = RoleMap.preset("openai-vit-b-16")
    assert (measured.layers, measured.heads, measured.core) == (PAPER.layers, 12, PAPER.core)
    assert all(measured.heads_for(attribute) for attribute in measured.core)
    assert measured.heads_for("color")[-1] == (12, 7)
    openai = {"model": "ViT-B-16", "pretrained": "openai", "activation": "quick_gelu", "weights": "0123"}
    for fits in ({}, {"model": "local-dir:x", "pretrained": None}, {"pretrained": "weights/ViT-B-16.pt"}):
        measured.check_backbone({**openai, **fits}, 12, 12)
    with pytest.raises(DearError, match="its pretrained is openai, and this one's is metaclip_400m"):
        measured.check_backbone({**openai, "pretrained": "metaclip_400m"}, 12, 12)
    with pytest.raises(DearError, match="its activation is quick_gelu"):
        measured.check_backbone({**openai, "activation": "gelu"}, 12, 12)


def test_whoever_takes_the_papers_table_is_told_what_was_measured():
    warn_once.cache_clear()
    mini = load_backbone()
    with pytest.warns(DearWarning, match="no better at their attribute than the other heads") as told:
        assert find_roles("paper", mini) == find_roles("paper", mini)
    assert len(told) == 1


def test_auto_takes_the_map_that_was_measured_on_these_weights():
    mini = load_backbone()
    assert find_roles("auto", mini) == RoleMap.preset("dear-mini")
    assert find_roles("auto", replace(mini, name="local-dir:somewhere")) == RoleMap.preset("dear-mini")
    with pytest.raises(DearError, match="no ready role map for ViT-B-16"):
        find_roles("auto", load_backbone("ViT-B-16", random_weights=True))
    with pytest.raises(DearError, match="depends on the backbone: name one of dear-mini, openai-vit-b-16"):
        find_role_map("auto")


def test_a_map_is_found_by_file_or_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_role_map("paper") == PAPER
    small_map().save("paper")  # a file comes before a shipped map
    assert find_role_map("paper") == find_role_map(str(tmp_path / "paper")) == small_map()
    for missing in ("roles.json", "folder/roles", "../roles"):
        with pytest.raises(DearError, match="does not exist"):
            find_role_map(missing)


def test_a_map_of_published_weights_knows_them_by_name_and_by_their_numbers():
    measured = RoleMap.preset("openai-vit-b-16")
    numbers = [float(number) for number in measured.backbone["class_embedding"].split()]
    copied = {"model": "local-dir:x", "pretrained": None, "activation": "quick_gelu", "weights": "0123"}
    assert measured.is_of(copied, torch.tensor([*numbers, 5.0]).bfloat16().tolist())
    assert not measured.is_of(copied, [*numbers[:-1], numbers[-1] + 0.1])
    assert not measured.is_of({**copied, "activation": "gelu"}, numbers)
    assert measured.is_of({**copied, "model": "ViT-B-16-quickgelu", "pretrained": "openai"}, [1.0] * 768)
    assert not measured.is_of({**copied, "model": "ViT-L-14", "pretrained": "openai"}, [1.0] * 768)


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(DearError, match=r"no role map named resnet; known: .*paper"):
        RoleMap.preset("resnet")


@pytest.mark.parametrize("role_map", [PAPER, small_map()])
def test_a_map_survives_a_file_and_a_copy(role_map, tmp_path):
    role_map.save(tmp_path / "roles.json")
    for same in (
        RoleMap.load(tmp_path / "roles.json"),
        pickle.loads(pickle.dumps(role_map)),
        copy.deepcopy(role_map),
    ):
        assert same == role_map


def test_a_map_cannot_be_changed():
    role_map = small_map()
    for change in (
        lambda: setattr(role_map, "heads", 3),
        lambda: role_map.roles.update({(3, 0): HeadRole("mixed")}),
        lambda: role_map.backbone.clear(),
    ):
        with pytest.raises((AttributeError, TypeError)):
            change()


def broken(path, value):
    """The small map's JSON with one place changed, or removed."""
    data = json.loads(json.dumps(small_map().to_json()))
    *parents, last = path
    place = data
    for key in parents:
        place = place[key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (["roles", "3", "0", "role"], "boss", "unknown role 'boss'; known: core_attribute, other_specialized"),
        (["roles", "3", "0", "role"], KeyError, "missing required field role"),
        (["roles", "3", "1"], KeyError, r"no role for \(layer, head\) \(3, 1\)"),
        (["roles", "4"], KeyError, r"no role for \(layer, head\) \(4, 0\), \(4, 1\)"),
        (["roles", "5"], {"0": {"role": "mixed"}}, r"\(5, 0\) is outside"),
        (["roles", "3", "2"], {"role": "mixed"}, r"\(3, 2\) is outside"),
        (["roles", "3", "0", "concept"], "sound", "'sound', which is not among its concepts"),
        (["roles", "3", "0", "concept"], "animal", "animal is not core"),
        (["roles", "3", "1", "concept"], "shape", "specialised in something else"),
        (["roles", "3", "0", "distribution"], {"sound": 1.0}, "concept sound is not among"),
        (["roles", "3", "0", "phrases", 0, "concept"], "sound", "'sound', which is not among"),
        (["roles", "3", "0", "entropy"], "low", "expected float"),
        (["roles", "x"], {"0": {"role": "mixed"}}, "invalid literal"),
        (["core"], ["color", "sound"], "core concept sound is not among"),
        (["core"], [], "the core needs concepts"),
        (["concepts"], ["color", "color", "animal", "shape"], "listed twice"),
        (["layers"], [4, 3], "must increase"),
        (["layers"], [], "must increase"),
        (["layers"], [0, 3, 4], "must increase"),
        (["layers"], 3, "role map is damaged"),
        (["heads"], 3, r"no role for \(layer, head\) \(3, 2\), \(4, 2\)"),
        (["heads"], "2", "role map is damaged"),
        (["backbone"], KeyError, "missing required field backbone"),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(path, value, sentence, tmp_path):
    file = tmp_path / "roles.json"
    file.write_text(json.dumps(broken(path, value)))
    with pytest.raises(DearError, match=sentence) as caught:
        RoleMap.load(file)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("value", [[], 3, "roles", None, {"roles": []}, {"concepts": [], "roles": []}])
def test_json_that_is_no_role_map_is_refused(value):
    with pytest.raises(DearError, match="role map is damaged"):
        RoleMap.from_json(value)


def test_another_backbone_is_refused():
    role_map = small_map()
    role_map.check_backbone({"model": "tiny", "pretrained": "web", "weights": None, "activation": "gelu"}, 4, 2)
    with pytest.raises(DearError, match="its weights is abc, and this one's is xyz; make a role map"):
        role_map.check_backbone({"model": "tiny", "weights": "xyz"}, 4, 2)
    with pytest.raises(DearError, match="2 heads per layer, and the backbone has 3"):
        role_map.check_backbone({}, 4, 3)
    with pytest.raises(DearError, match="ends at layer 4, and the backbone has 12"):
        role_map.check_backbone({}, 12, 2)


def test_restricting_to_the_deep_layers():
    deep = PAPER.for_layers(11)
    assert deep.layers == (11, 12)
    assert len(deep.roles) == 24
    assert deep[11, 2] == PAPER[11, 2]
    for first in (8, 13):
        with pytest.raises(DearError, match=f"no roles for layer {first} .* 9, 10, 11, 12"):
            PAPER.for_layers(first)


def test_ablation_maps():
    assert {head_role.role for head_role in PAPER.all_mixed().roles.values()} == {"mixed"}
    assert {head_role.role for head_role in PAPER.all_generalization().roles.values()} == {"generalization"}
    assert PAPER.all_mixed().core == PAPER.core
    one, again, two = PAPER.shuffled(1), PAPER.shuffled(1), PAPER.shuffled(2)
    assert one == again
    assert len({json.dumps(m.to_json()["roles"]) for m in (PAPER, one, two)}) == 3

    def pairs(role_map):
        return Counter((head_role.role, head_role.concept) for head_role in role_map.roles.values())

    assert pairs(one) == pairs(two) == pairs(PAPER)
    assert one.origin == {**PAPER.origin, "strategy": "shuffled", "seed": 1}
    # evidence is a fact about a head and stays with it
    assert small_map().shuffled(0)[3, 0].phrases == small_map()[3, 0].phrases


def test_the_table_names_every_head_and_its_best_phrases():
    table = role_table(small_map(), phrases=1)
    assert table.rows[0] == (3, 0, "core attribute", "color", "0.50", "a red thing")
    assert table.rows[3] == (4, 1, "mixed", None, None, None)
    assert len(role_table(PAPER).text().splitlines()) == 50


def test_reading_a_role_map_needs_nothing_heavy():
    heavy = {"torch", "numpy", "matplotlib", "PIL"}
    code = f"import sys, dear.heads.map_table; print({heavy} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"

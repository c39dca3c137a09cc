"""Ablations: every one of the paper's, each row one run, and the default run once."""

from pathlib import Path

import pytest

from dear.bench.ablations import ABLATIONS, ablation_cells, ablation_rows, choose_ablations
from dear.bench.grid import cell_settings, plan
from dear.cli import main
from dear.clip import load_backbone
from dear.core.errors import DearError
from dear.heads.head_role import CORE_ATTRIBUTE, GENERALIZATION, MIXED, OTHER_SPECIALIZED
from dear.heads.role_map import RoleMap
from dear.heads.rules import rejudge, with_core
from dear.methods.dear import DearConfig
from dear.methods.shared.role_settings import pick_roles
from dear.training.config import TrainConfig

MINI = RoleMap.preset("dear-mini")
SETTINGS = {method: cell_settings(method, "base-to-novel", {}) for method in ("dear", "experts")}


def test_every_ablation_belongs_to_a_method() -> None:
    rows = {method: ablation_rows(MINI, settings) for method, settings in SETTINGS.items()}
    assert set(rows["dear"]) | set(rows["experts"]) == set(ABLATIONS)
    assert set(rows["dear"]) - set(rows["experts"]) == {"masks", "isolation", "routing", "projection"}
    assert set(rows["experts"]) - set(rows["dear"]) == {"pull", "rest"}


@pytest.mark.parametrize("method", SETTINGS)
def test_every_row_is_one_run(method: str) -> None:
    available = ablation_rows(MINI, SETTINGS[method])
    defaults = plan("base-to-novel", ["world:signs"], [method], [1, 2], {})
    cells = ablation_cells(defaults, available, MINI)
    assert len({cell.name for cell in cells}) == len(cells)  # no two rows are the same run
    for name, rows in available.items():
        mine = [c for c in cells if c.variant and c.variant.ablation == name]
        assert len(mine) == 2 * (len(rows) - 1)
        assert {c.variant.default_value for c in mine} < set(rows)
        for cell in mine:
            changed = {k for k, v in cell.settings.items() if v != defaults[0].settings[k]}
            assert changed
            assert changed <= set(rows[cell.variant.value])


def test_every_row_can_be_configured() -> None:
    """A change that no config accepts, or a role map that cannot follow, would fail only after hours."""
    backbone = load_backbone()
    defaults = plan("base-to-novel", ["world:signs"], ["dear"], [1], {})
    for cell in ablation_cells(defaults, ablation_rows(MINI, SETTINGS["dear"]), MINI):
        TrainConfig.pick(cell.settings)
        config = DearConfig.pick(cell.settings)
        roles = pick_roles(config, backbone)
        roles.for_layers(config.first_layer or roles.layers[0])


def test_a_default_that_was_changed_is_the_row_it_became() -> None:
    defaults = plan("base-to-novel", ["world:signs"], ["dear"], [1], {"beta": 0.6})
    cells = ablation_cells(defaults, ablation_rows(MINI, SETTINGS["dear"]), MINI)[1:]
    rows = {c.variant.value: c.variant.default_value for c in cells
            if c.variant and c.variant.ablation == "beta"}  # fmt: skip
    assert set(rows.values()) == {"0.6"}
    assert "0.9" in rows


def test_a_map_without_phrases_has_no_threshold_to_move() -> None:
    available = ablation_rows(RoleMap.preset("paper"), SETTINGS["dear"])
    assert "threshold" not in available
    with pytest.raises(DearError, match="needs a role map with entropies"):
        choose_ablations(["threshold"], available)
    with pytest.raises(DearError, match="choose from masks"):
        choose_ablations(["colour"], available)
    assert choose_ablations(["all"], available) == available
    with pytest.raises(DearError, match="has no entropy"):
        rejudge(RoleMap.preset("paper"), 0.3)


def test_maps_of_one_backbone_are_compared() -> None:
    paper, measured = RoleMap.preset("paper"), RoleMap.preset("openai-vit-b-16")
    assert "openai-vit-b-16" in ablation_rows(paper, SETTINGS["experts"])["maps"]
    rows = ablation_rows(measured, SETTINGS["experts"])["maps"]
    assert {"paper", "openai-vit-b-16-drawn"} <= set(rows)
    assert "openai-vit-b-16" not in rows  # it is the one given
    assert not {"paper", "dear-mini"} & set(ablation_rows(MINI, SETTINGS["experts"])["maps"])


def test_a_wider_quantile_makes_more_heads_special() -> None:
    def extremes(quantile: float) -> int:
        return sum(role.role != MIXED for role in rejudge(MINI, quantile).roles.values())

    fifth = rejudge(MINI, 0.2)
    assert rejudge(fifth, 0.2) == fifth
    assert sum(role.role == CORE_ATTRIBUTE for role in fifth.roles.values()) == 5  # of 24 heads
    assert extremes(0.1) < extremes(0.2) <= extremes(0.3) <= extremes(0.4)


def test_another_core_moves_only_specialised_heads() -> None:
    paper = RoleMap.preset("paper")
    for core in (("texture", "object", "location"), (*paper.core, "human", "text")):
        changed = with_core(paper, core)
        assert changed.core == core
        for at, head in changed.roles.items():
            if head.role in (MIXED, GENERALIZATION):
                assert head == paper[at]
            else:
                assert head.role == (CORE_ATTRIBUTE if head.concept in core else OTHER_SPECIALIZED)
    with pytest.raises(DearError, match="knows no concept"):
        with_core(paper, ("smell",))


def test_ablate_refuses_unknown_names_at_once(tmp_path: Path, capsys) -> None:
    assert main(["ablate", "colour", "--out", str(tmp_path / "out")]) == 2
    assert "There is no ablation 'colour'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["ablate", "masks", "--method", "experts", "--out", str(tmp_path / "out")]) == 2
    assert "This --method has no ablation 'masks': choose from maps, loss" in capsys.readouterr().err
    assert main(["ablate", "masks", "--attributes", "4", "--out", str(tmp_path / "out"), "--seeds", "1"]) == 2
    assert "3, 5 or 7" in capsys.readouterr().err

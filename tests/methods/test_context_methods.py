"""Identities in the maths of CoOp and the methods built on it."""

import json
import math
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import naive_text
import pytest
import torch
from naive_text import LABELS, NAMES, TEMPLATE, make, pixels, slow_logits, slow_text, template_text
from torch.nn import functional as F

from dear.bench.grid import plan
from dear.cli import main
from dear.data.dataset import Example
from dear.data.known import KNOWN
from dear.methods import registry
from dear.methods.coop import without_conflict
from dear.methods.optional import set_gradients
from dear.methods.registry import recipe_of
from dear.training.config import RunConfig, TrainConfig, learning_rate, training_length
from dear.training.images import training_batches

TEXT_METHODS = {
    "coop": {},
    "kgcoop": {},
    "prograd": {"context_tokens": 4},
    "tcp": {},
    "atprompt": {"attributes": "color playfulness"},
}


def test_coop_starts_as_zero_shot_with_its_words(tiny) -> None:
    coop = make(tiny, "coop", spread=0.0)
    sentences = [f"a photo of a {name}." for name in NAMES]
    text = naive_text.frozen_text(coop.backbone.model, coop.backbone.text.tokenizer, sentences)
    torch.testing.assert_close(coop.encode_text(coop.classes), text, rtol=0, atol=1e-12)


def test_classes_in_another_order_give_the_same_features_in_that_order(tiny) -> None:
    for name in TEXT_METHODS:
        method = make(tiny, name)
        before = method.encode_text(method.classes)
        method.set_classes(NAMES[::-1], TEMPLATE)
        torch.testing.assert_close(method.encode_text(method.classes), before.flip(0), rtol=0, atol=1e-12)


def test_eot_follows_context_name_and_full_stop(tiny) -> None:
    coop, atprompt = make(tiny, "coop"), make(tiny, "atprompt", attributes="color shape", context_tokens=3)
    for method, before in ((coop, 4), (atprompt, 2 * (3 + 1) + 3)):
        prompts = method.classes.prompts
        lengths = prompts.shared + prompts.filled.sum(1)
        name_lengths = [len(method.backbone.text.word_embeddings(name)) for name in NAMES]
        assert lengths.tolist() == [1 + before + length + 2 for length in name_lengths]


def test_without_attributes_atprompt_is_coop(tiny) -> None:
    plain = make(tiny, "atprompt", attributes="", context_tokens=4)
    coop = make(tiny, "coop", context_words="", context_tokens=4)
    with torch.no_grad():
        coop.context.copy_(plain.context)
    torch.testing.assert_close(plain.encode_text(plain.classes), coop.encode_text(coop.classes), rtol=0, atol=1e-12)


def test_without_its_weight_kgcoop_is_coop_and_its_penalty_is_half_the_squared_distance(tiny) -> None:
    coop, held = make(tiny, "coop"), make(tiny, "kgcoop", knowledge=0.0)
    entry = coop.layer_input(pixels())
    assert held.loss(entry, LABELS).total == coop.loss(entry, LABELS).total
    penalty = held.loss(entry, LABELS).parts["knowledge"]
    squared = (held.encode_text(held.classes) - held.classes.frozen).square().sum(-1).mean()
    torch.testing.assert_close(penalty, squared / 2, rtol=1e-10, atol=0)
    some = held.layer_input(pixels()[:2])
    assert held.loss(some, LABELS[:2]).parts["knowledge"] == penalty  # it does not depend on the batch
    start = make(tiny, "kgcoop", spread=0.0)
    assert start.loss(entry, LABELS).parts["knowledge"] > 1e-4
    start.set_classes(NAMES, "a photo of a {}.")
    loss = start.loss(entry, LABELS).parts["knowledge"]
    (gradient,) = torch.autograd.grad(loss, start.context)
    assert loss.abs() < 1e-12
    assert gradient.abs().max() < 1e-12


# --- ProGrad -------------------------------------------------------------------------------------------------


def test_a_conflict_is_removed_from_the_gradient() -> None:
    torch.manual_seed(0)
    own, general = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    if (own * general).sum() > 0:
        general = -general
    free = without_conflict(own, general, 1.0)
    assert (free * general).sum().abs() < 1e-12
    torch.testing.assert_close(without_conflict(own, 7 * general, 1.0), free)
    assert torch.equal(without_conflict(own, -general, 1.0), own)  # they agree
    assert torch.equal(without_conflict(own, general, 0.0), own)
    assert torch.equal(without_conflict(own, torch.zeros_like(own), 1.0), own)  # nothing to go against
    for share in (0.5, 1.0, 2.0):
        assert without_conflict(own, general, share).norm() <= own.norm() + 1e-12


def test_prograd_steps_along_the_projected_gradient(tiny) -> None:
    """If gradients agree, the step is CoOp's; otherwise the conflict is removed."""
    method = make(tiny, "prograd", context_tokens=4)
    entry, agreed = method.layer_input(pixels()), set()
    text = slow_text(method, "x x x x {}.", method.context, [1, 2, 3, 4])
    student, teacher = (slow_logits(method, pixels(), t) for t in (text, template_text(method)))
    for label in range(len(NAMES)):
        labels = torch.full((8,), label)
        own = F.cross_entropy(student, labels)
        (of_labels,) = torch.autograd.grad(own, method.context, retain_graph=True)
        kl = F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")
        (of_teacher,) = torch.autograd.grad(kl, method.context, retain_graph=True)
        unit, conflict = of_teacher / of_teacher.norm(), (of_labels * of_teacher).sum() < 0
        expected = of_labels - (of_labels * unit).sum() * unit if conflict else of_labels
        scaled = lambda loss, keep_graph=False: torch.autograd.grad(3 * loss, method.context, retain_graph=keep_graph)  # noqa: E731 - as AMP
        set_gradients(method, method.loss(entry, labels), scaled)
        torch.testing.assert_close(method.context.grad, 3 * expected, rtol=1e-9, atol=1e-12)
        agreed.add(bool(conflict))
    assert agreed == {True, False}, "both cases must occur"


def test_prograd_starts_as_zeros_and_the_words_of_the_template(tiny) -> None:
    method = make(tiny, "prograd", spread=0.0, context_tokens=6)
    method.before_training(SimpleNamespace(template=TEMPLATE))
    words = method.backbone.text.word_embeddings("a picture of a")
    assert torch.equal(method.context, torch.cat([torch.zeros(2, 32, dtype=torch.float64), words]))
    short = make(tiny, "prograd", spread=0.0, context_tokens=3)
    short.before_training(SimpleNamespace(template=TEMPLATE))
    assert torch.equal(short.context, words[1:])


def test_a_context_leaves_room_for_class_names(tiny) -> None:
    method = make(tiny, "prograd", context_tokens=1000)
    assert len(method.context) == 77 // 2
    assert method.encode_text(method.classes).shape == (5, 24)


# --- counts and recipes --------------------------------------------------------------------------------------


def test_constants_of_a_dataset_are_off_by_default() -> None:
    assert recipe_of("coop")["epochs"] == 200
    assert recipe_of("coop", "few-shot", 1) == {**recipe_of("coop"), "context_words": "", "epochs": 50}
    assert recipe_of("coop", "few-shot", 16)["epochs"] == 200
    assert recipe_of("coop", "few-shot", 16, "imagenet")["epochs"] == 50
    assert "attributes" not in recipe_of("atprompt")
    assert recipe_of("atprompt", constants_of="dtd")["attributes"] == "pattern color design"
    assert recipe_of("atprompt", constants_of="world:signs") == recipe_of("atprompt")
    assert "projection" not in recipe_of("prograd", "base-to-novel", 16, "DTD")
    assert recipe_of("prograd", "few-shot", 16, "DTD")["projection"] == 0.8


def test_fewer_shots_are_trained_as_long_as_published() -> None:
    epochs = {
        name: [recipe_of(name, "few-shot", shots)["epochs"] for shots in (1, 2, 4, 8, 16)]
        for name in ("coop", "prograd", "clip-adapter", "provp")
    }
    assert all(found == [50, 100, 100, 200, 200] for found in epochs.values()), epochs
    assert recipe_of("prograd", "base-to-novel", 16)["epochs"] == 100
    assert [recipe_of("provp", "few-shot", shots)["weight_decay"] for shots in (1, 2)] == [1e-3, 5e-4]


def test_constants_of_imagenet_differ_for_transfer() -> None:
    for name, reg, transferred in (("mmrl", 0.5, 0.2), ("mmrlpp", 0.2, 0.1)):
        own, few, cross = (recipe_of(name, kind, 16, "ImageNet") for kind in ("base-to-novel", "few-shot", "domain"))
        assert (own["lambda_reg"], own["epochs"], own["batch"], own["lr"]) == (reg, 5, 32, 1e-3)
        assert (few["lambda_reg"], few["epochs"], few["lr"]) == (reg, 5, 1e-3)
        assert (cross["lambda_reg"], cross["epochs"], cross["warmup_epochs"]) == (transferred, 1, 0)


def test_a_number_of_epochs_wins_over_a_recipe_in_steps() -> None:
    recipe = recipe_of("clip-lora")
    assert registry.with_overrides(recipe, {})["steps_per_shot"] == 500
    assert "steps_per_shot" not in registry.with_overrides(recipe, {"epochs": 3})
    assert registry.with_overrides(recipe, {"epochs": 3, "steps_per_shot": 64})["steps_per_shot"] == 64


def test_clip_lora_counts_steps_not_images() -> None:
    """The official loop: 500 steps for each shot, epochs of ceil(images / 32) batches, the last one cut."""
    for shots, classes in ((1, 10), (2, 37), (16, 10), (3, 5)):
        config, images = TrainConfig.pick({**recipe_of("clip-lora"), "shots": shots}), shots * classes
        steps, epochs = 0, 0
        while steps < 500 * shots:
            epochs, steps = epochs + 1, min(steps + math.ceil(images / 32), 500 * shots)
        assert training_length(config, images, math.ceil(images / 32)) == (epochs, 500 * shots)


def test_rates_of_groups_follow_the_official_schedulers() -> None:
    """Dassl's constant warm-up knows no groups (SkipT's image tower has the rate of its text tower there), and so does
    the final rate of CLIP-LoRA's cosine per step."""
    config = TrainConfig.pick(recipe_of("skipt"))
    rates = [[learning_rate(config, full, 20, epoch) for full in (2e-5, 5e-6)] for epoch in range(20)]
    assert rates[0] == [1e-6, 1e-6]
    assert rates[1] == [2e-5, 5e-6]
    assert rates[5] == pytest.approx([full * 0.5 * (1 + math.cos(math.pi * 4 / 20)) for full in (2e-5, 5e-6)])
    config, done = TrainConfig.pick(recipe_of("clip-lora")), 2000
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=2e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8000, eta_min=1e-6)
    for _ in range(done):
        optimizer.step()
        scheduler.step()
    assert learning_rate(config, 2e-4, 1000, 0, done / 8000) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-6)


def test_batches_of_skipt_are_of_one_class_where_a_class_fills_one() -> None:
    config = TrainConfig.pick(recipe_of("skipt"))
    for shots in (1, 2, 3, 4, 6, 16):
        labels = [c for c in range(5) for _ in range(shots)]
        batches = training_batches([Example(None, c) for c in labels], config).of_epoch(0)  # type: ignore[arg-type]
        kinds = [{labels[index] for index in batch} for batch in batches]
        assert all(len(batch) == 4 for batch in batches)  # as there, what does not fill a batch is left out
        assert len(batches) == (5 * (shots // 4) if shots >= 4 else 5 * shots // 4)
        assert (max(map(len, kinds)) == 1) == (shots >= 4)


def test_atprompt_with_maple_has_maples_recipes() -> None:
    assert recipe_of("maple-atprompt", "base-to-novel") == recipe_of("maple", "base-to-novel")
    cross = recipe_of("maple-atprompt", "cross-dataset")
    assert (cross["lr"], cross["depth"], cross["epochs"]) == (0.0026, 3, 2)


def test_published_constants_are_settings_of_known_datasets() -> None:
    """Each entry of the file is a valid setting, of an existing method and dataset."""
    listed = json.loads((Path(registry.__file__).parent / "assets" / "published_constants.json").read_text())
    for name, datasets in listed.items():
        known = {
            field.name for kind in (RunConfig, TrainConfig, registry.find_method(name).Config) for field in fields(kind)
        }
        for dataset in datasets:
            assert any(dataset == entry.name for entry in KNOWN), dataset
            for shots in (1, 2, 4, 8, 16):
                for protocol in ("base-to-novel", "few-shot", "cross-dataset"):
                    found = recipe_of(name, protocol, shots, dataset)
                    assert found.keys() <= known, (name, dataset)
                    TrainConfig.pick(found), registry.find_method(name).Config.pick(found)


@pytest.mark.parametrize("asked", [True, False])
def test_train_and_bench_use_published_constants_by_flag(asked: bool, monkeypatch, tmp_path: Path) -> None:
    trained = []

    def train_run(run, settings, train, *rest) -> dict[str, float]:
        trained.append(settings)
        return {"all": 0.0}

    monkeypatch.setattr("dear.commands.train.train_run", train_run)
    monkeypatch.setattr("dear.commands.train.print_next", lambda out: None)  # there is no adapter
    flags = ["--published-constants"] * asked
    assert main(["train", "--method", "atprompt", "--data", "dtd", "--out", str(tmp_path), *flags]) == 0
    cells = plan("base-to-novel", ["DTD", "world:signs"], ["atprompt"], [1], {}, published_constants=asked)
    expected = ("pattern color design", 4) if asked else ("color shape", 2)
    for found in (trained[0].to_json(), cells[0].settings):
        assert (found["attributes"], found["context_tokens"]) == expected
    assert cells[1].settings["attributes"] == "color shape"  # nobody has published any for it

"""Identities in the maths of methods on features, and of those with class texts per image."""

import naive_text
import pytest
import torch
from naive_text import LABELS, NAMES, TEMPLATE, make, pixels
from naive_words import LabelledImages, slow_refiner, taught
from torch.nn import functional as F

from dear.core.errors import DearError
from dear.methods.optional import targets_of

# --- projection ----------------------------------------------------------------------------------------------


def test_prolip_starts_as_zero_shot_and_its_pull_is_one_over_the_shots(tiny) -> None:
    start, zero_shot = make(tiny, "prolip", spread=0.0), make(tiny, "zero-shot")
    x = start.layer_input(pixels())
    logits = [m.logits(m.encode_image(x), m.encode_text(m.classes)) for m in (start, zero_shot)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-12)
    assert start.loss(x, LABELS).parts["distance"] == 0
    start.before_training(LabelledImages(pixels()))
    assert start.pull == 1 / 2
    moved = make(tiny, "prolip", pull=0.0)
    with torch.no_grad():
        before = moved.loss(x, LABELS).total
        moved.projection *= 7  # the length of a feature does not matter
    torch.testing.assert_close(moved.loss(x, LABELS).total, before)
    assert torch.equal(make(tiny, "prolip", pull=0.0).backbone.image.visual.proj, zero_shot.backbone.image.visual.proj)


# --- adapter and cache ---------------------------------------------------------------------------------------


def test_an_adapter_of_ratio_zero_is_zero_shot_and_the_length_of_a_feature_does_not_matter(tiny) -> None:
    entry = make(tiny, "clip-adapter").layer_input(pixels())
    none = make(tiny, "clip-adapter", ratio=0.0)
    torch.testing.assert_close(none.encode_image(entry)[:, 0], none.backbone.image.frozen_feature(entry))
    adapter = make(tiny, "clip-adapter").adapter
    feature = torch.randn(3, 24, dtype=torch.float64)
    assert (adapter(feature) >= 0).all()
    torch.testing.assert_close(adapter(7 * feature), 7 * adapter(feature))


def test_keys_start_as_the_cache_and_weigh_nothing_without_alpha(tiny) -> None:
    learned, plain = make(tiny, "tip-adapter-f", alpha=2.0, beta=3.0), make(tiny, "tip-adapter")
    shown, entry = LabelledImages(pixels().flip(3)), learned.layer_input(pixels())
    for method in (learned, plain):
        method.before_training(shown)
    plain.strength = plain.strength.new_tensor([2.0, 3.0])
    features, text = plain.encode_image(entry), plain.encode_text(plain.classes)
    torch.testing.assert_close(learned.logits(features, text), plain.logits(features, text))
    off = make(tiny, "tip-adapter-f", alpha=0.0)
    off.before_training(shown)
    torch.testing.assert_close(off.logits(features, text), plain.backbone.temperature * features[:, 0] @ text.T)
    learned.set_classes(["whale", "tree"], TEMPLATE)  # classes that are not in the cache
    zero_shot = plain.backbone.temperature * features[:, 0] @ learned.encode_text(learned.classes).T
    torch.testing.assert_close(learned.logits(features, learned.encode_text(learned.classes)), zero_shot)


def test_the_pair_is_chosen_after_training_on_validation_images(tiny) -> None:
    method = make(tiny, "tip-adapter-f", largest_alpha=10.0)
    images = LabelledImages(pixels(), val=pixels())  # each finds its own key: the more the cache counts, the better
    method.before_training(images)
    assert method.strength.tolist() == [1.17, 1.0]
    features, truth = method.encode_image(method.layer_input(pixels())), LABELS
    before = method.logits(features, method.encode_text(method.classes)).argmax(1).eq(truth).sum()
    method.after_training(images)
    after = method.logits(features, method.encode_text(method.classes)).argmax(1).eq(truth).sum()
    assert method.strength.tolist() != [1.17, 1.0]
    assert after >= before


# --- CoCoOp --------------------------------------------------------------------------------------------------


def test_cocoop_without_its_shift_is_coop(tiny) -> None:
    cocoop = make(tiny, "cocoop")
    features = cocoop.encode_image(cocoop.layer_input(pixels()))
    with torch.no_grad():
        cocoop.network[2].weight.zero_()
        cocoop.network[2].bias.zero_()
    expected = (
        cocoop.backbone.temperature * features[:, 0] @ cocoop.encode_text(cocoop.classes).T
    )  # without an image: CoOp's
    torch.testing.assert_close(cocoop.logits(features), expected)


# --- TextRefiner ---------------------------------------------------------------------------------------------


def test_the_cache_is_written_row_by_row(tiny) -> None:
    refiner = make(tiny, "textrefiner")
    before = refiner.cache.clone()
    slow_refiner(refiner, pixels())
    rows = F.normalize(refiner.expected_tokens, dim=-1)
    scores = rows @ before.T
    share, expected = scores.softmax(0), before.clone()
    for slot in range(25):
        members = [j for j in range(len(rows)) if scores[j].argmax() == slot]
        if members:
            added = sum(share[j, slot] / share[:, slot].max() * rows[j] for j in members)
            expected[slot] = F.normalize(0.8 * before[slot] + 0.2 * added, dim=0)
    refiner.loss(refiner.layer_input(pixels()), LABELS)
    torch.testing.assert_close(refiner.cache, expected)
    untouched = (refiner.cache == before).all(1)
    assert untouched.any()
    assert not untouched.all()
    torch.testing.assert_close(refiner.cache.norm(dim=1), torch.ones(25, dtype=torch.float64))


def test_evaluation_leaves_the_cache_and_uses_the_class_feature_alone(tiny) -> None:
    refiner = make(tiny, "textrefiner").eval()
    before = {name: value.clone() for name, value in refiner.state_dict().items()}
    entry = refiner.layer_input(pixels())
    assert entry.layer == 5
    torch.testing.assert_close(
        refiner.encode_image(entry)[:, 0], naive_text.frozen_image(refiner.backbone.model, pixels())
    )
    refiner.logits(refiner.encode_image(entry), refiner.encode_text(refiner.classes))
    assert all(torch.equal(value, before[name]) for name, value in refiner.state_dict().items())


def test_without_refinement_the_text_is_coops(tiny) -> None:
    plain, coop = make(tiny, "textrefiner", refinement=0.0), make(tiny, "coop")
    with torch.no_grad():
        coop.context.copy_(plain.context)
    torch.testing.assert_close(plain.encode_text(plain.classes), coop.encode_text(coop.classes))
    loss = plain.loss(plain.layer_input(pixels()), LABELS)
    assert loss.parts["stay"] < 1e-12


# --- PromptKD ------------------------------------------------------------------------------------------------


def test_a_student_that_agrees_has_no_loss_and_answers_are_slices(tiny) -> None:
    method = taught(tiny)
    entry, rows = method.layer_input(pixels()), torch.arange(8)
    logits = method.loss(entry, targets_of(method, rows)).logits
    method.probabilities[rows] = (logits + 5).softmax(-1).detach()  # a constant on a row changes nothing
    assert method.loss(entry, targets_of(method, rows)).total.abs() < 1e-9
    method.eval()
    features = method.encode_image(entry)
    method.set_classes((*NAMES, "whale", "tree"), TEMPLATE)
    whole = method.logits(features, method.encode_text(method.classes))
    for names, part in ((NAMES, whole[:, :5]), (("whale", "tree"), whole[:, 5:]), (("tree", "cat"), whole[:, [6, 0]])):
        method.set_classes(names, TEMPLATE)
        torch.testing.assert_close(method.logits(features, method.encode_text(method.classes)), part)
    assert not method.can_answer(["house"])
    with pytest.raises(DearError, match="it was trained on"):
        method.set_classes(["house"], TEMPLATE)
    with pytest.raises(DearError, match="training classes only: search by image"):
        method.encode_text(method.encode_classes(["a house"], "{}"))

"""Identities in the maths of methods with tokens, low-rank terms or trained blocks."""

import naive_text
import naive_words
import pytest
import token_cases
import torch
from token_cases import GIVEN, OWN, TEMPLATE, batch, make
from torch import Tensor
from torch.nn import functional as F

from dear.clip.text_table import TextTable
from dear.training.config import TrainConfig, learning_rate


def features(method, pixels) -> Tensor:
    return method.encode_image(method.layer_input(pixels))[:, 0]


def test_text_of_shallow_prompts_starts_as_zero_shot(tiny) -> None:
    """The first tokens start as the words they replace; deeper tokens do not."""
    for name, settings in (("ivlp", {"text_depth": 1}), ("maple", {"depth": 1})):
        method = make(tiny, name, spread=0.0, **settings)
        with torch.no_grad():
            expected = method.backbone.model.encode_text(method.backbone.text.tokenizer(OWN), normalize=True)
        torch.testing.assert_close(method.encode_text(method.classes), expected, atol=1e-12, rtol=0)


def test_low_rank_terms_start_as_clip_with_dropout_too_and_only_b_gets_a_gradient(tiny) -> None:
    method, (pixels, labels) = make(tiny, "clip-lora", spread=0.0).train(), batch()
    clip = method.backbone.model.encode_image(pixels, normalize=True)
    torch.testing.assert_close(features(method, pixels), clip, atol=1e-12, rtol=0)
    method.loss(method.layer_input(pixels), labels).total.backward()
    assert method.image_terms.down.grad.abs().max() == 0 == method.text_terms.down.grad.abs().max()
    assert min(method.image_terms.up.grad.abs().max(), method.text_terms.up.grad.abs().max()) > 0


@pytest.mark.parametrize("name", ["clip-lora", "tac"])
def test_dropout_changes_training_only(tiny, name: str) -> None:
    method, (pixels, _) = make(tiny, name), batch()
    assert torch.equal(features(method, pixels), features(method, pixels))
    method.train()
    assert not torch.equal(features(method, pixels), features(method, pixels))


def test_mmrl_fuses_features_as_it_fuses_logits(tiny) -> None:
    for name in ("mmrl", "mmrlpp"):
        method, (pixels, _) = make(tiny, name, space=16), batch()
        found, text = method.encode_image(method.layer_input(pixels)), method.encode_text(method.classes)
        of_cls, of_tokens = method.votes(found, text).unbind(1)
        torch.testing.assert_close(method.logits(found, text), 0.7 * of_cls + 0.3 * of_tokens)
        torch.testing.assert_close(method.logits(found, text, "decoupled"), of_cls)


def test_at_their_start_all_layers_of_mmrl_get_the_same_tokens(tiny) -> None:
    for name in ("mmrl", "mmrlpp"):
        method = make(tiny, name, spread=0.0, space=16)
        for layers in (method.image_layers(), method.text_layers()):
            first, *others = layers.values()
            assert others
            assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(method.token_projection(), method.backbone.image.visual.proj)


def test_a_student_that_is_its_teacher_has_no_promptsrc_penalty(tiny, monkeypatch) -> None:
    method, (pixels, labels) = make(tiny, "promptsrc"), batch()
    entry = method.layer_input(pixels)
    kind = type(method)
    monkeypatch.setattr(kind, "encode_image", lambda self, x: self.backbone.image.frozen_feature(x)[:, None])
    monkeypatch.setattr(kind, "encode_text", lambda self, classes=None: self.classes.frozen)
    parts = method.loss(entry, labels).parts
    for name in ("text", "image", "answers"):
        assert parts[name].abs() < 1e-12, name


def test_promptsrc_without_its_penalties_is_ivlp(tiny) -> None:
    held = make(tiny, "promptsrc", lambda_text=0.0, lambda_image=0.0, lambda_logits=0.0)
    free, (pixels, labels) = make(tiny, "ivlp"), batch()
    assert held.loss(held.layer_input(pixels), labels).total == free.loss(free.layer_input(pixels), labels).total


def test_couplings_of_deeper_layers_start_alike_and_tokens_get_gradients_of_both_towers(tiny) -> None:
    first, *deeper = make(tiny, "maple", spread=0.0).couplings
    assert all(torch.equal(deeper[0].weight, other.weight) for other in deeper[1:])
    assert not torch.equal(first.weight, deeper[0].weight)
    method, (pixels, labels) = make(tiny, "maple"), batch()
    entry = method.layer_input(pixels)

    def gradient(image: bool, text: bool) -> Tensor:
        of_image, of_text = method.encode_image(entry), method.encode_text(method.classes)
        logits = method.logits(of_image if image else of_image.detach(), of_text if text else of_text.detach())
        return torch.autograd.grad(F.cross_entropy(logits, labels), method.text_tokens)[0]

    both, of_image, of_text = gradient(True, True), gradient(True, False), gradient(False, True)
    assert min(of_image.abs().amax((1, 2)).min(), of_text.abs().amax((1, 2)).min()) > 0
    torch.testing.assert_close(both, of_image + of_text)


def test_provp_is_vpt_for_beta_one_and_zero(tiny) -> None:
    (pixels, labels), deep, shallow = batch(), make(tiny, "vpt-deep"), make(tiny, "vpt-shallow")
    fresh, carried = (make(tiny, "provp", image_tokens=8, beta=beta) for beta in (1.0, 0.0))
    norm = deep.backbone.image.visual.ln_pre  # VPT's first tokens go through it, ProVP's enter behind it
    with torch.no_grad():
        for own, vpt in ((fresh, deep), (carried, shallow)):
            own.image_tokens[: len(vpt.image_tokens)] = vpt.image_tokens
            own.image_tokens[0] = norm(vpt.image_tokens[0])
            torch.testing.assert_close(features(own, pixels), features(vpt, pixels), atol=1e-12, rtol=0)
    carried.loss(carried.layer_input(pixels), labels).total.backward()
    assert carried.image_tokens.grad[0].abs().max() > 0 == carried.image_tokens.grad[1:].abs().max()


def test_only_logits_of_tokens_need_their_projection(tiny) -> None:
    method, (pixels, labels) = make(tiny, "mmrl", space=16, alpha=1.0), batch()
    entry = method.layer_input(pixels)
    method.loss(entry, labels).total.backward()
    assert method.projection.grad.abs().max() == 0 < method.space.grad.abs().max()
    before = method.encode_image(entry)
    with torch.no_grad():
        method.projection += 1
    after = method.encode_image(entry)
    assert torch.equal(after[:, 0], before[:, 0])
    assert not torch.equal(after[:, 1], before[:, 1])


def test_low_rank_parts_of_mmrlpp_start_with_a_gradient_on_one_side(tiny) -> None:
    method, (pixels, labels) = make(tiny, "mmrlpp", spread=0.0, space=16), batch()
    method.loss(method.layer_input(pixels), labels).total.backward()
    for part in (method, method.of_image, method.of_text):
        assert part.down.grad.abs().max() == 0 < part.up.grad.abs().max()


def test_provp_contrast_of_one_image_is_nothing(tiny) -> None:
    method, (pixels, labels) = make(tiny, "provp"), batch()
    assert method.loss(method.layer_input(pixels[:1]), labels[:1]).parts["contrast"] == 0
    assert method.loss(method.layer_input(pixels), labels).parts["contrast"] > 0


def test_task_tokens_are_centres_of_the_classes_trained_on(tiny) -> None:
    method = make(tiny, "tac")
    torch.testing.assert_close(method.centres.norm(dim=-1), torch.ones(5, dtype=torch.float64))
    # Five classes and five centres: each class is one.
    assert sorted((method._embeddings @ method.centres.T).argmax(-1).tolist()) == [0, 1, 2, 3, 4]
    before = method.centres.clone()
    method.set_classes(["lynx", "ocelot"], TEMPLATE)
    assert torch.equal(method.centres, before)


def test_few_classes_still_make_five_centres() -> None:
    from dear.methods.tac import centres

    found = centres(F.normalize(torch.randn(2, 6), dim=-1), 5)
    assert found.shape == (5, 6)
    assert torch.isfinite(found).all()


def test_skipt_leaves_the_backbone_alone(tiny) -> None:
    method, (pixels, labels) = make(tiny, "skipt", spread=0.0), batch()
    method.loss(method.layer_input(pixels), labels).total.backward()
    assert all(p.grad is None for p in method.backbone.model.parameters())
    assert all(p.grad is not None for p in method.parameters())
    groups = method.parameter_groups(1.0)
    assert [group["lr"] for group in groups] == [1.0, 0.25]
    assert sum(p.numel() for group in groups for p in group["params"]) == sum(p.numel() for p in method.parameters())


def test_a_step_of_skipt_contains_its_labels_and_skips_other_classes(tiny) -> None:
    method, (pixels, _) = make(tiny, "skipt", spread=0.0, class_share=0.4), batch()
    labels = torch.tensor([3, 3, 4, 3, 3, 3])
    entry = method.layer_input(pixels)
    seen = [method.sample_classes(method.encode_image(entry), labels).tolist() for _ in range(20)]
    assert all({3, 4} <= set(kept) for kept in seen)
    assert min(map(len, seen)) == 3  # two always, and the next one, whose chance is one
    loss = method.loss(entry, labels)
    kept = torch.isfinite(loss.logits[0])
    assert loss.logits.shape == (6, 5)
    assert kept[[3, 4]].all()
    whole = F.cross_entropy(method.logits(method.encode_image(entry), method.encode_text(method.classes)), labels)
    assert loss.total <= whole  # fewer classes to be mistaken for


# --- 2SFS and CLIP-SVD ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2sfs", "clip-svd", "clip-lora", "skipt", "fine-tune"])
def test_changes_of_layers_start_as_clip(tiny, name: str) -> None:
    method, (pixels, _) = make(tiny, name, spread=0.0), batch()
    model = method.backbone.model
    clip = model.encode_image(pixels, normalize=True)
    torch.testing.assert_close(features(method, pixels), clip, rtol=0, atol=1e-10)
    text = model.encode_text(method.backbone.text.tokenizer(GIVEN), normalize=True)
    torch.testing.assert_close(method.encode_text(method.classes), text, rtol=0, atol=1e-10)


def test_the_second_stage_begins_where_the_first_ended_and_answers_by_class(tiny) -> None:
    method = token_cases.make(tiny, "2sfs")
    pixels, labels = token_cases.batch()
    x, text = method.layer_input(pixels), method.encode_text(method.classes)
    first = method.loss(x, labels)
    method.done = method.config.restart
    second = method.loss(x, labels)
    torch.testing.assert_close(second.logits, first.logits)
    used = [torch.autograd.grad(loss.total, list(method.parameters()), allow_unused=True) for loss in (first, second)]
    names = [name for name, _ in method.named_parameters()]
    for trained, stage in ((lambda name: name != "classifier", used[0]), (lambda name: name == "classifier", used[1])):
        assert all((gradient is not None) == trained(name) for name, gradient in zip(names, stage, strict=True))
    with torch.no_grad():
        method.classifier *= torch.randn(5, 24, dtype=torch.float64)
    method.set_classes(("whale", *token_cases.NAMES[::-1]), token_cases.TEMPLATE)
    mixed = method.encode_text(method.classes)
    torch.testing.assert_close(mixed[1:], torch.nn.functional.normalize(method.classifier, dim=1).flip(0))
    assert not torch.allclose(mixed[1:], text.flip(0))
    other = token_cases.make(tiny, "2sfs")
    other.set_classes(["whale"], token_cases.TEMPLATE)
    torch.testing.assert_close(mixed[:1], other.encode_text(other.classes))


@pytest.mark.parametrize(("name", "stage"), [("clip-lora", 1), ("clip-svd", 1), ("2sfs", 1), ("2sfs", 2)])
def test_with_fixed_texts_the_image_side_is_the_same(tiny, name: str, stage: int) -> None:
    """A table of frozen CLIP's texts, against a text tower whose learned parts are at their start."""
    whole, (pixels, labels) = token_cases.make(tiny, name, spread=0.0), token_cases.batch()
    table = TextTable(token_cases.NAMES, whole.classes.frozen, "given")
    fixed = type(whole)(whole.backbone.with_text_table(table), whole.config).eval()
    fixed.set_classes(token_cases.NAMES, token_cases.TEMPLATE)
    fixed.before_training(token_cases.Named())
    torch.manual_seed(6)
    with torch.no_grad():
        for key, parameter in fixed.named_parameters():
            parameter += 0.2 * torch.randn_like(parameter)
            whole.get_parameter(key).copy_(parameter)
    own = [key for key, _ in whole.named_parameters() if key.startswith("text_")]
    assert own
    assert {key for key, _ in whole.named_parameters()} - {key for key, _ in fixed.named_parameters()} == set(own)
    losses = []
    for method in (whole, fixed):
        method.done = 0.0 if stage == 1 else 0.9
        losses.append(method.loss(method.layer_input(pixels), labels))
    torch.testing.assert_close(losses[1].logits, losses[0].logits, rtol=0, atol=1e-10)
    for key, parameter in fixed.named_parameters():
        gradients = [
            torch.autograd.grad(loss.total, of, allow_unused=True, retain_graph=True)[0]
            for loss, of in zip(losses, (whole.get_parameter(key), parameter), strict=True)
        ]
        assert (gradients[0] is None) == (gradients[1] is None), key
        if gradients[0] is not None:
            torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-10)


def test_a_schedule_that_begins_again() -> None:
    config = TrainConfig(lr=1e-3, final_lr=1e-5, schedule="step", restart=0.6)
    rates = [learning_rate(config, 1e-3, 1, 0, done) for done in (0.0, 0.3, 0.599999, 0.6, 0.8, 1.0)]
    assert rates == pytest.approx([1e-3, 5.05e-4, 1e-5, 1e-3, 5.05e-4, 1e-5], rel=1e-3)


# --- full fine-tuning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["texts", "probe"])
def test_fine_tuning_starts_at_its_classifier_and_its_mix_is_a_line(tiny, start: str) -> None:
    pixels, labels, other = naive_text.pixels(), naive_text.LABELS, {"texts": "zero-shot", "probe": "linear-probe"}
    tuned = naive_text.make(tiny, "fine-tune", spread=0.0, start=start)
    plain = naive_text.make(tiny, other[start])
    images = naive_words.LabelledImages(pixels)
    for method in (tuned, plain):
        method.before_training(images)
    x = tuned.layer_input(pixels)

    def answer(method) -> torch.Tensor:
        return method.logits(method.encode_image(method.layer_input(pixels)), method.encode_text(method.classes))

    torch.testing.assert_close(answer(tuned), answer(plain))
    before = [parameter.detach().clone() for parameter in tuned.parameters()]
    optimizer = torch.optim.SGD(tuned.parameters(), 0.01)
    tuned.loss(x, labels).total.backward()
    optimizer.step()
    after = [parameter.detach().clone() for parameter in tuned.parameters()]
    tuned.mix(0.5)
    for now, old, new in zip(tuned.parameters(), before, after, strict=True):
        assert not torch.equal(old, new)
        torch.testing.assert_close(now.detach(), (old + new) / 2)

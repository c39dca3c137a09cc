"""Methods that act on features, and those whose texts meet images, equal their naive forms; their identities hold."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dear.core.errors import DearError
from dear.methods.base import Method

sys.path.append(str(Path(__file__).parent))
import naive_text
from naive_text import LABELS, NAMES, TEMPLATE, make, pixels, slow_logits, slow_text, template_text

SLOTS = [1, 2, 3, 4]


class LabelledImages:
    classes, template = NAMES, TEMPLATE

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def train(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.images, LABELS

    def val(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()


def slow_adapter(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    plain = method.backbone.model.encode_image(images).detach()
    first, second = (layer.weight for layer in method.adapter[::2])
    added = torch.relu(torch.relu(plain @ first.T) @ second.T)
    features = F.normalize(0.2 * added + 0.8 * plain, dim=-1)
    logits = method.backbone.model.logit_scale.exp() * features @ template_text(method).T
    return F.cross_entropy(logits, LABELS), logits


def slow_tip(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    features = naive_text.frozen_image(method.backbone.model, images)
    logits = list(slow_logits(method, images, template_text(method)))
    for i, image in enumerate(features):
        for key, label in zip(method.keys, LABELS, strict=True):
            logits[i] = logits[i] + 1.17 * torch.exp(-(1 - image @ key)) * F.one_hot(label, len(NAMES))
    return F.cross_entropy(torch.stack(logits), LABELS), torch.stack(logits)


def slow_cocoop(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    first, _, last = method.network
    rows = []
    for image in naive_text.frozen_image(method.backbone.model, images):
        shift = torch.relu(image @ first.weight.T + first.bias) @ last.weight.T + last.bias
        text = slow_text(method, "x x x x {}.", method.context + shift, SLOTS)
        rows.append(method.backbone.model.logit_scale.exp() * image @ text.T)
    return F.cross_entropy(torch.stack(rows), LABELS), torch.stack(rows)


def slow_refiner(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    visual, scale = method.backbone.model.visual, method.backbone.model.logit_scale.exp()
    first, norm, _, last = method.projector
    with torch.no_grad():
        x = visual._embeds(images)
        size, blocks = x.shape[1], visual.transformer.resblocks
        heads = blocks[0].attn.num_heads
        for layer in blocks:
            before, allowed = x, torch.ones(heads, size, size, dtype=torch.bool)
            x = naive_text.naive.block(layer, x, allowed)
        tokens = visual.ln_post(x) @ visual.proj
        normed, attn = blocks[-1].ln_1(before), blocks[-1].attn
        weights = attn(normed, normed, normed, need_weights=True, average_attn_weights=True)[1][:, 0, 1:]
    rows = tokens.flatten(0, 1) @ first.weight.T + first.bias
    rows = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt() * norm.weight + norm.bias
    projected = (torch.relu(rows) @ last.weight.T + last.bias).view_as(tokens)
    text = slow_text(method, "x x x x {}.", method.context, SLOTS)
    read = torch.stack([(t @ method.cache.T).softmax(0) @ method.cache for t in text])
    corrected = text + 0.2 * torch.cat([text, read], 1) @ method.extractor.weight.T
    logits = scale * F.normalize(tokens[:, 0], dim=-1) @ corrected.T
    local, labels = [], []
    for i, label in enumerate(LABELS):
        best = sorted(range(size - 1), key=lambda p: -weights[i, p])[:5]
        local += [projected[i, 0], *(projected[i, 1 + p] for p in best), projected[i].mean(0)]
        labels += [label] * 7
    method.expected_local = torch.stack(local).detach()
    near = F.cross_entropy(scale * torch.stack(local) @ text.T, torch.stack(labels))
    stay = (F.normalize(corrected, dim=-1) - text).abs().mean()
    return F.cross_entropy(logits, LABELS) + near / 50 + 20 * stay, logits


TWINS = {"clip-adapter": slow_adapter, "tip-adapter-f": slow_tip, "cocoop": slow_cocoop, "textrefiner": slow_refiner}


@pytest.mark.parametrize(("dtype", "loss_tolerance", "grad_tolerance"), [
    (torch.float32, 1e-6, 1e-5), (torch.float64, 1e-10, 1e-10),
])  # fmt: skip
@pytest.mark.parametrize("name", TWINS)
def test_equals_the_naive_form(tiny, name, dtype, loss_tolerance, grad_tolerance) -> None:
    method = make(tiny, name, dtype)
    images = pixels(dtype)
    if name == "tip-adapter-f":
        method.look(LabelledImages(images.flip(3)))
    slow, logits = TWINS[name](method, images)
    expected = torch.autograd.grad(slow, list(method.parameters()))
    fast = method.loss(method.trunk(images), LABELS)
    got = torch.autograd.grad(fast.total, list(method.parameters()))
    torch.testing.assert_close(fast.total, slow, rtol=loss_tolerance, atol=loss_tolerance)
    torch.testing.assert_close(fast.logits, logits, rtol=grad_tolerance, atol=10 * grad_tolerance)
    for (parameter, _), value, gradient in zip(method.named_parameters(), got, expected, strict=True):
        if parameter == "projector.0.bias":  # the mean that BatchNorm takes away: its gradient is nothing but rounding
            assert max(value.abs().max(), gradient.abs().max()) < 1e3 * loss_tolerance
            continue
        assert gradient.abs().max() > 0, f"{parameter} gets no gradient: the comparison would say nothing"
        assert (value - gradient).norm() < grad_tolerance * gradient.norm(), parameter


# --- adapter and cache ---------------------------------------------------------------------------------------


def test_an_adapter_of_ratio_zero_is_zero_shot_and_the_length_of_a_feature_does_not_matter(tiny) -> None:
    entry = make(tiny, "clip-adapter").trunk(pixels())
    none = make(tiny, "clip-adapter", ratio=0.0)
    torch.testing.assert_close(none.image_features(entry)[:, 0], none.frozen_image(entry))
    adapter = make(tiny, "clip-adapter").adapter
    feature = torch.randn(3, 24, dtype=torch.float64)
    assert (adapter(feature) >= 0).all()
    torch.testing.assert_close(adapter(7 * feature), 7 * adapter(feature))


def test_keys_start_as_the_cache_and_weigh_nothing_without_alpha(tiny) -> None:
    learned, plain = make(tiny, "tip-adapter-f", alpha=2.0, beta=3.0), make(tiny, "tip-adapter")
    shown, entry = LabelledImages(pixels().flip(3)), learned.trunk(pixels())
    for method in (learned, plain):
        method.look(shown)
    plain.strength = plain.strength.new_tensor([2.0, 3.0])
    features, text = plain.image_features(entry), plain.text_features()
    torch.testing.assert_close(learned.logits(features, text), plain.logits(features, text))
    off = make(tiny, "tip-adapter-f", alpha=0.0)
    off.look(shown)
    torch.testing.assert_close(off.logits(features, text), plain.backbone.temperature * features[:, 0] @ text.T)
    learned.set_classes(["whale", "tree"], TEMPLATE)  # classes that are not in the cache
    zero_shot = plain.backbone.temperature * features[:, 0] @ learned.text_features().T
    torch.testing.assert_close(learned.logits(features, learned.text_features()), zero_shot)


def test_the_pair_is_chosen_after_training_on_validation_images(tiny) -> None:
    method = make(tiny, "tip-adapter-f", largest_alpha=10.0)

    class Validated(LabelledImages):
        def val(self) -> Iterator[tuple[Tensor, Tensor]]:
            yield self.images, LABELS  # each image finds its own key: the more the cache counts, the better

    method.look(Validated(pixels()))
    assert method.strength.tolist() == [1.17, 1.0]
    features, truth = method.image_features(method.trunk(pixels())), LABELS
    before = method.logits(features, method.text_features()).argmax(1).eq(truth).sum()
    method.look_again(Validated(pixels()))
    after = method.logits(features, method.text_features()).argmax(1).eq(truth).sum()
    assert method.strength.tolist() != [1.17, 1.0]
    assert after >= before


# --- CoCoOp --------------------------------------------------------------------------------------------------


def test_cocoop_without_its_shift_is_coop(tiny) -> None:
    cocoop = make(tiny, "cocoop")
    features = cocoop.image_features(cocoop.trunk(pixels()))
    with torch.no_grad():
        cocoop.network[2].weight.zero_()
        cocoop.network[2].bias.zero_()
    expected = cocoop.backbone.temperature * features[:, 0] @ cocoop.text_features().T  # without an image: CoOp's
    torch.testing.assert_close(cocoop.logits(features), expected)


def test_cocoop_answers_image_by_image_and_shift_and_context_can_be_exchanged(tiny) -> None:
    cocoop = make(tiny, "cocoop")
    features = cocoop.image_features(cocoop.trunk(pixels()))
    whole = cocoop.logits(features)
    torch.testing.assert_close(whole, torch.cat([cocoop.logits(one[None]) for one in features]))
    vector = torch.randn(32, dtype=torch.float64)
    with torch.no_grad():
        cocoop.context += vector
        cocoop.network[2].bias -= vector
    torch.testing.assert_close(cocoop.logits(features), whole)


# --- TextRefiner ---------------------------------------------------------------------------------------------


def test_the_cache_is_written_row_by_row(tiny) -> None:
    refiner = make(tiny, "textrefiner")
    before = refiner.cache.clone()
    slow_refiner(refiner, pixels())
    rows = F.normalize(refiner.expected_local, dim=-1)
    scores = rows @ before.T
    share, expected = scores.softmax(0), before.clone()
    for slot in range(25):
        members = [j for j in range(len(rows)) if scores[j].argmax() == slot]
        if members:
            added = sum(share[j, slot] / share[:, slot].max() * rows[j] for j in members)
            expected[slot] = F.normalize(0.8 * before[slot] + 0.2 * added, dim=0)
    refiner.loss(refiner.trunk(pixels()), LABELS)
    torch.testing.assert_close(refiner.cache, expected)
    untouched = (refiner.cache == before).all(1)
    assert untouched.any()
    assert not untouched.all()
    torch.testing.assert_close(refiner.cache.norm(dim=1), torch.ones(25, dtype=torch.float64))


def test_evaluation_leaves_the_cache_and_reads_the_class_feature_alone(tiny) -> None:
    refiner = make(tiny, "textrefiner").eval()
    before = {name: value.clone() for name, value in refiner.state_dict().items()}
    entry = refiner.trunk(pixels())
    assert entry.layer == 5
    torch.testing.assert_close(
        refiner.image_features(entry)[:, 0], naive_text.frozen_image(refiner.backbone.model, pixels())
    )
    refiner.logits(refiner.image_features(entry), refiner.text_features())
    assert all(torch.equal(value, before[name]) for name, value in refiner.state_dict().items())


def test_without_refinement_the_text_is_coops(tiny) -> None:
    plain, coop = make(tiny, "textrefiner", refinement=0.0), make(tiny, "coop")
    with torch.no_grad():
        coop.context.copy_(plain.context)
    torch.testing.assert_close(plain.text_features(), coop.text_features())
    loss = plain.loss(plain.trunk(pixels()), LABELS)
    assert loss.parts["stay"] < 1e-12


def test_parameters_are_as_many_as_published(tiny) -> None:
    def counts(width: int, dim: int) -> dict[str, int]:
        projector = 2 * (dim * dim + dim) + 2 * dim
        hidden = max(1, dim // 16)
        return {
            "clip-adapter": 2 * dim * (dim // 4),
            "cocoop": 4 * width + dim * hidden + hidden + hidden * width + width,
            "textrefiner": 4 * width + projector + 2 * dim * dim,
        }

    assert counts(512, 512) == {"clip-adapter": 131_072, "cocoop": 35_360, "textrefiner": 1_052_672}
    for name, count in counts(32, 24).items():
        assert make(tiny, name).learned() == count, name
    cache = make(tiny, "tip-adapter-f")
    cache.look(LabelledImages(pixels()))
    assert cache.learned() == len(LABELS) * 24


# --- PromptKD ------------------------------------------------------------------------------------------------


def taught(tiny, dtype=torch.float64, dim: int = 20, **settings) -> Method:
    """A student of a teacher with features of another width, who knows the classes and two more."""
    method = make(tiny, "promptkd", dtype, **settings)
    names = (*NAMES, "whale", "tree")
    texts = F.normalize(torch.randn(len(names), dim, dtype=dtype), dim=-1)
    method.learn_from(names, texts, 3 * torch.randn(10, len(names), dtype=dtype))
    method.set_classes(NAMES, TEMPLATE)
    return method


@pytest.mark.parametrize(("dtype", "loss_tolerance", "grad_tolerance"), [
    (torch.float32, 1e-5, 1e-4), (torch.float64, 1e-10, 1e-10),
])  # fmt: skip
def test_promptkd_equals_its_naive_form(tiny, dtype, loss_tolerance, grad_tolerance) -> None:
    """Three sets of tokens in four layers: replaced twice, then carried on. BatchNorm asks for looser fp32."""
    method, images, rows = taught(tiny, dtype, image_depth=3), pixels(dtype), torch.tensor([3, 9, 1, 0, 4, 7, 2, 5])
    visual, (first, norm, _, last) = method.backbone.model.visual, method.projector
    x = visual._embeds(images)
    size, heads = x.shape[1], visual.transformer.resblocks[0].attn.num_heads
    for number, layer in enumerate(visual.transformer.resblocks):
        if number < 3:
            tokens = visual.ln_pre(method.image_tokens[0]) if number == 0 else method.image_tokens[number]
            x = torch.cat([x[:, :size], tokens.expand(8, -1, -1)], 1)
        x = naive_text.naive.block(layer, x, torch.ones(heads, x.shape[1], x.shape[1], dtype=torch.bool))
    hidden = (visual.ln_post(x[:, 0]) @ visual.proj) @ first.weight.T + first.bias
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt() * norm.weight + norm.bias
    features = F.normalize(torch.relu(hidden) @ last.weight.T + last.bias, dim=-1)
    student = (method.backbone.model.logit_scale.exp() * features @ method.class_texts.T).log_softmax(-1)
    slow = sum(
        p * (p.log() - q)
        for of_teacher, of_student in zip(method.answers[rows], student, strict=True)
        for p, q in zip(of_teacher, of_student, strict=True)
    )
    slow = 1000 * slow / (8 * 7)
    parameters = [p for name, p in method.named_parameters() if name != "projector.0.bias"]  # BatchNorm takes it away
    expected = torch.autograd.grad(slow, parameters)
    fast = method.loss(method.trunk(images), rows)
    torch.testing.assert_close(fast.total, slow, rtol=loss_tolerance, atol=loss_tolerance)
    for value, gradient in zip(torch.autograd.grad(fast.total, parameters), expected, strict=True):
        assert (value - gradient).norm() < grad_tolerance * gradient.norm()


def test_a_student_that_agrees_has_no_loss_and_answers_are_slices(tiny) -> None:
    method = taught(tiny)
    entry, rows = method.trunk(pixels()), torch.arange(8)
    logits = method.loss(entry, rows).logits
    method.answers[rows] = (logits + 5).softmax(-1).detach()  # a constant on a row changes nothing
    assert method.loss(entry, rows).total.abs() < 1e-9
    method.eval()
    features = method.image_features(entry)
    method.set_classes((*NAMES, "whale", "tree"), TEMPLATE)
    whole = method.logits(features, method.text_features())
    for names, part in ((NAMES, whole[:, :5]), (("whale", "tree"), whole[:, 5:]), (("tree", "cat"), whole[:, [6, 0]])):
        method.set_classes(names, TEMPLATE)
        torch.testing.assert_close(method.logits(features, method.text_features()), part)
    assert not method.can_answer(["house"])
    with pytest.raises(DearError, match="there in training"):
        method.set_classes(["house"], TEMPLATE)
    with pytest.raises(DearError, match="no other text"):
        method.encode_text(["a house"])


def test_a_student_has_as_many_parameters_as_published(tiny) -> None:
    def count(width: int, dim: int, teacher: int, depth: int) -> int:
        return depth * 4 * width + dim * teacher + teacher + 2 * teacher + teacher * teacher + teacher

    assert count(768, 512, 768, 9) == 1_013_760
    assert taught(tiny).learned() == count(48, 24, 20, 4)

"""Classes with and without labelled images in one list: neither kind is given up for the other."""

from itertools import product

import pytest
import torch
from naive_text import NAMES, TEMPLATE, make, pixels
from naive_words import LabelledImages
from torch import Tensor
from torch.nn import functional as F

import dear
from dear.core.errors import DearWarning
from dear.core.progress import reporting_phases
from dear.data.resolve import resolve_dataset
from dear.data.world.render import render
from dear.methods.base import Method
from dear.methods.closed_forms import GdaHead, gaussians_refit
from dear.methods.shared.fair_lists import SHARES, beside, fair_offsets, list_note, share_weights
from dear.methods.shared.leave_one_out import Gaussians, KernelRidge, rounds_of
from dear.model.hub import model_card
from dear.training.adapter import read_config

CLASSES, DIM, EACH = 6, 12, 4


@pytest.fixture
def shots() -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and texts, in fp64."""
    torch.manual_seed(0)
    labels = torch.arange(CLASSES).repeat(EACH)
    text = F.normalize(torch.randn(CLASSES, DIM, dtype=torch.float64), dim=1)
    noise = torch.randn(len(labels), DIM, dtype=torch.float64)
    return F.normalize(text[labels] + 0.6 * noise, dim=1), labels, text


def test_neither_kind_loses_what_plain_logits_give_it() -> None:
    torch.manual_seed(0)
    plain, adapted, new = torch.randn(500, 7), 5 * torch.randn(500, 7), torch.arange(7) >= 4
    answers = beside(adapted, plain, new).argmax(1)
    plainly, among_others = plain.argmax(1), adapted[:, :4].argmax(1)
    assert torch.equal(answers[new[plainly]], plainly[new[plainly]])
    agreed = plainly == among_others
    assert torch.equal(answers[agreed], plainly[agreed])
    assert torch.equal(answers[~new[answers]], among_others[~new[answers]])
    order = torch.tensor([5, 0, 3, 6, 1, 2, 4])
    assert torch.equal(order[beside(adapted[:, order], plain[:, order], new[order]).argmax(1)], answers)
    counts = [int(new[beside(adapted, plain, new, offset).argmax(1)].sum()) for offset in (0.0, 0.5, 1.0, 3.0, 1e4)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 500


def test_offsets_are_interpolated_and_vanish_where_no_kind_is_rarer() -> None:
    expected = {0.0: [1, 0], 0.1: [1, 0], 0.175: [0.5, 0.5], 0.25: [0, 1], 0.375: [0, 0.5], 0.5: [0, 0], 0.9: [0, 0]}
    for share, weights in expected.items():
        assert share_weights(share) == pytest.approx(weights)
    assert len(SHARES) == 2


def test_fits_without_classes_equal_refits(shots) -> None:
    features, labels, text = shots
    targets, rows = F.one_hot(labels, CLASSES) - features @ text.T, torch.tensor([3, 0, 17, 11, 8])
    cosines, everything = features @ features.T, torch.arange(len(labels))
    ridge = KernelRidge(cosines, targets, everything, 1.0)
    together = KernelRidge(cosines, targets, everything, 1.0, rounds_of(features, labels))
    for used in (labels != 2, labels < 3):
        gda = gaussians_refit(features, labels, CLASSES, 0.1, used, rows)
        alone, as_one = (each.left_out(0.1, rows, used) for each in (ridge, together))
        spread = Gaussians(features[used], labels[used], CLASSES).spread(0.1)
        for at, row in enumerate(rows):
            keep = used & (everything != row)
            weight, bias = Gaussians(features[keep], labels[keep], CLASSES).weights(0.1, spread)
            torch.testing.assert_close(gda[at], features[row] @ weight.T + bias, rtol=1e-10, atol=1e-8)
            block = keep & ~(used[row] & (together.rounds == together.rounds[row]))
            for kept, computed in ((keep, alone), (block, as_one)):
                kernel = torch.exp(cosines[kept][:, kept] - 1) + 0.1 * torch.eye(int(kept.sum())).double()
                expected = torch.exp(cosines[row, kept] - 1) @ torch.linalg.solve(kernel, targets[kept])
                torch.testing.assert_close(computed[at], expected, rtol=1e-10, atol=1e-10)


def test_the_offset_is_the_least_of_the_best(shots) -> None:
    """CLIP always prefers the next class by one, and the fit is right for the classes that it was shown."""
    _, labels, _ = shots
    plain = -5 * torch.ones(len(labels), CLASSES)
    plain = plain.scatter(1, labels[:, None], 1.0).scatter(1, (labels[:, None] + 1) % CLASSES, 2.0)

    def refit(used: Tensor, rows: Tensor) -> Tensor:
        return (plain + 10 * used[:, None] * F.one_hot(labels, CLASSES))[rows]

    assert fair_offsets(plain, labels, refit) == pytest.approx([1.05] * len(SHARES))
    right = F.one_hot(labels, CLASSES).float()  # CLIP alone is always right: nothing is to be gained
    assert fair_offsets(right, labels, lambda _, rows: right[rows]) == [0.0] * len(SHARES)


def test_nothing_can_be_left_out(shots) -> None:
    _, labels, _ = shots
    features = F.normalize(torch.randn(CLASSES, DIM), dim=1)
    for few, text in ((labels[:CLASSES], features), (labels[:12] % 3, features[:3]), (labels[:12] % 2, features[:2])):
        head = GdaHead(DIM, 100.0, features)
        given = text[few] + 0.1, few, text
        head.be_fair(*given, head.fit(*given))
        assert not head.offsets.any()  # one image of each class, three classes, two


@pytest.mark.parametrize("name", ["gda", "ss-text", "proker", "tip-adapter", "head-gains"])
def test_lists_of_trained_names_are_as_before(tiny, name: str) -> None:
    method, images = make(tiny, name), pixels().repeat(3, 1, 1, 1)
    torch.manual_seed(0)
    noisy = LabelledImages(images + 0.5 * torch.randn_like(images), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2]).repeat(3), 3)
    method.before_training(noisy)
    shown = method.encode_image(method.layer_input(pixels()))
    whole = method.logits(shown, method.encode_text(method.classes))
    assert method.fair
    for names in (NAMES, NAMES[::-1], NAMES[1:4]):
        method.set_classes(names, TEMPLATE)
        places = [NAMES.index(each) for each in names]
        torch.testing.assert_close(method.logits(shown, method.encode_text(method.classes)), whole[:, places])


class Answering(torch.nn.Module):
    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, features: Tensor) -> Tensor:
        return self.method.logits(features, self.method.classes.frozen)


@pytest.mark.parametrize("names", [(*NAMES, "whale"), NAMES[::-1]])
def test_any_list_is_exported_for_batches_of_any_size(tiny, names: tuple[str, ...]) -> None:
    method, shown = make(tiny, "gda"), F.normalize(torch.randn(3, 1, 24, dtype=torch.float64), dim=-1)
    method.before_training(LabelledImages(pixels(), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2]), 2))
    method.set_classes(names, TEMPLATE)
    side = Answering(method)
    program = torch.export.export(side, (shown[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(shown), side(shown))


def test_a_new_class_beside_old_ones_is_answered(tmp_path, capsys) -> None:
    """Ten signs of Attribute World, two of them without an image; by corrections alone not one is answered."""
    data = resolve_dataset("world:signs")
    new, old = (3, 9), (0, 1, 2, 4, 5, 6, 7, 8)
    names = [data.classes[label] for label in (*old, *new)]

    def pictures(examples, labels, count: int) -> list[tuple]:
        own = ([each for each in examples if each.label == label][:count] for label in labels)
        return [(render(each.picture), data.classes[each.label]) for group in own for each in group]

    shown = dear.dataset(*zip(*pictures(data.train, old, 4), strict=True), template=data.template)
    dear.fit(shown, method="gda", model="dear-mini", out=tmp_path / "run", device="cpu")
    with reporting_phases():
        model = dear.load(tmp_path / "run", classes=names, device="cpu")
    assert "2 of 10 classes have no labelled images" in capsys.readouterr().err
    for labels, least in ((new, 0.9), (old, 0.9)):
        asked = pictures(data.test, labels, 20)
        answers = model.predict([picture for picture, _ in asked])
        right = [answer.choice == name for answer, (_, name) in zip(answers, asked, strict=True)]
        assert sum(right) / len(right) >= least
    shown = [picture for picture, _ in pictures(data.test, new, 20)]
    model.save(tmp_path / "mixed")
    assert "2 of 10 classes have no labelled images" in model_card("a/b", read_config(tmp_path / "mixed"), {}, {}, None)
    again = dear.load(tmp_path / "mixed", device="cpu").predict(shown)
    assert [answer.choice for answer in again] == [answer.choice for answer in model.predict(shown)]
    features = model.features(shown)["cls"]
    head = model.model.head
    plain = head.mix[0] * head.zero_shot(features, model._text)
    alone = plain[:, : len(old)] + head.mix[1] * head.correction(features)[:, model.model.trained_rows(names[:8])]
    assert (alone.amax(1) > plain[:, len(old) :].amax(1)).all()


def test_what_is_not_made_fair_says_so(finished_run) -> None:
    known = dear.load(finished_run, device="cpu").classes
    with pytest.warns(DearWarning, match=r"1 of \d+ classes have no labelled images \(mauve\): this method may favour"):
        dear.load(finished_run, classes=[*known, "mauve"], device="cpu")


@pytest.mark.parametrize(("of", "fair"), product([["mauve"], [*NAMES]], [True, False]))
def test_other_lists_need_no_words(of: list[str], fair: bool) -> None:
    assert not list_note(of, NAMES, fair)

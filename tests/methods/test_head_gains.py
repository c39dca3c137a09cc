"""Head gains against a full forward pass with hooks, and the identities of gains."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from dear_cases import role_map
from naive_text import LABELS, NAMES, TEMPLATE, frozen_image, make, pixels
from naive_words import LabelledImages
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dear.core.errors import DearError
from dear.heads.gains import Gains, with_gains
from dear.heads.head_role import CORE_ATTRIBUTE, MIXED, HeadRole
from dear.methods.closed_forms import SHRINKS
from dear.methods.head_gains import HeadGains, HeadGainsConfig, folds_of
from dear.methods.registry import find_method
from small_models import small


def blocks_of(backbone) -> list:
    visual = backbone.model.visual
    return list(visual.trunk.blocks if hasattr(visual, "trunk") else visual.transformer.resblocks)


@torch.no_grad()
def naive_heads(backbone, images: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Outputs of the heads of a layer, [images, heads, head_dim], and the last state, [images, width].

    Both come from the model's own blocks, at CLS, or averaged over the patches (CLIPA).
    """
    visual = backbone.model.visual
    timm = hasattr(visual, "trunk")
    x = backbone.image.embed(images) if timm else visual._embeds(images)
    for number, block in enumerate(blocks_of(backbone), 1):
        if number == layer:
            attn, y = block.attn, block.norm1(x) if timm else block.ln_1(x)
            q, k, v = (attn.qkv(y) if timm else F.linear(y, attn.in_proj_weight, attn.in_proj_bias)).chunk(3, -1)
            if getattr(attn, "q_bias", None) is not None:
                q, v = q + attn.q_bias, v + attn.v_bias
            q, k, v = (part.unflatten(-1, (attn.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
            outputs = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        x = block(x)
    if getattr(visual, "pool_type", "") == "avg":
        return outputs[:, :, 1:].mean(2), x[:, 1:].mean(1)
    return outputs[:, :, 0], x[:, 0]


def naive_sum(method, images: Tensor, shown: Tensor) -> Tensor:
    """The formula, head by head, up to the last LayerNorm: [images, width]."""
    visual = method.backbone.model.visual
    _, x = naive_heads(method.backbone, images, 1)
    for layer, gains in enumerate(method.gains, method.heads_from):
        outputs, _ = naive_heads(method.backbone, images, layer)
        mean = naive_heads(method.backbone, shown, layer)[0].mean(0)
        attn = blocks_of(method.backbone)[layer - 1].attn
        columns = (attn.proj if hasattr(attn, "proj") else attn.out_proj).weight.unflatten(1, (len(mean), -1))
        for head, gain in enumerate(gains):
            x = x + (gain - 1) * (outputs[:, head] - mean[head]) @ columns[:, head].T
    return visual.trunk.fc_norm(visual.trunk.norm(x)) if hasattr(visual, "trunk") else visual.ln_post(x)


def naive_features(method, images: Tensor, shown: Tensor) -> Tensor:
    return F.normalize(naive_sum(method, images, shown) @ method.projection, dim=-1)


def features(method, images: Tensor) -> Tensor:
    return method.encode_image(method.layer_input(images))[:, 0]


def adapted(tiny, **settings):
    method = make(tiny, "head-gains", **settings)
    method.before_training(LabelledImages(pixels().flip(3)))
    return method


@pytest.mark.parametrize("settings", [{}, {"gains": "one"}, {"first_layer": 2, "pull": None}], ids=str)
def test_equals_the_formula_over_a_full_forward_pass(tiny, settings: dict) -> None:
    method = adapted(tiny, **settings)
    assert (method.gains - 1).abs().max() > 1e-3
    torch.testing.assert_close(features(method, pixels()), naive_features(method, pixels(), pixels().flip(3)))


def test_it_starts_as_clip_and_stays_clip_under_a_strong_pull(tiny) -> None:
    clip = frozen_image(make(tiny, "zero-shot").backbone.model, pixels())
    torch.testing.assert_close(features(make(tiny, "head-gains"), pixels()), clip)
    held = adapted(tiny, gain_pull=1e6, pull=1e6)
    torch.testing.assert_close(features(held, pixels()), clip, atol=1e-4, rtol=0)
    none = adapted(tiny, gains="none", pull=None)
    torch.testing.assert_close(features(none, pixels()), clip)


def test_it_ends_in_a_minimum_of_both_losses(tiny) -> None:
    """Gradients by a loss written out here."""
    method = adapted(tiny, gain_pull=0.1, pull=1.0)
    start, shown = method.backbone.image.projection.detach(), pixels().flip(3)
    projection = method.projection.clone().requires_grad_()
    logarithms = method.gains.log().requires_grad_()
    tau, text = method.backbone.temperature, method.encode_text(method.classes)
    method.gains, method.projection = logarithms.exp(), start
    loss = F.cross_entropy(tau * naive_features(method, shown, shown) @ text.T, LABELS)
    (slope,) = torch.autograd.grad(loss + 0.1 * logarithms.square().sum(), logarithms)
    method.gains, method.projection = logarithms.detach().exp(), projection
    loss = F.cross_entropy(tau * naive_features(method, shown, shown) @ text.T, LABELS)
    (other,) = torch.autograd.grad(loss + (projection - start).square().sum(), projection)
    for gradient in (slope, other):
        assert gradient.abs().max() < 1e-4


def test_one_gain_is_the_same_for_all_heads(tiny) -> None:
    gains = adapted(tiny, gains="one").gains
    assert torch.equal(gains, gains[0, 0].expand_as(gains))
    assert adapted(tiny).gains.unique().numel() > 1


def test_heads_of_one_role_share_a_gain(tiny, tmp_path: Path) -> None:
    dealt = [*(HeadRole(CORE_ATTRIBUTE, name) for name in ("color", "shape")), HeadRole(MIXED)]
    role_map(roles=dealt).save(tmp_path / "roles.json")
    settings = {"gains": "roles", "roles": str(tmp_path / "roles.json"), "first_layer": 3}
    gains = adapted(tiny, **settings).gains.flatten()
    assert gains.unique().numel() == 3
    assert torch.equal(gains, gains[:3].repeat(3)[: len(gains)])
    (tmp_path / "roles.json").rename(tmp_path / "gone.json")
    method = HeadGains.restore(
        make(tiny, "head-gains").backbone, HeadGainsConfig(**settings), {"classes": [], "shots": 0}
    )
    assert method.gains.numel() == len(gains)
    with pytest.raises(DearError, match=r"roles\.json"):
        make(tiny, "head-gains", **settings)
    (tmp_path / "gone.json").rename(tmp_path / "roles.json")
    alike = adapted(tiny, **settings, role_strategy="all_mixed").gains
    torch.testing.assert_close(alike, adapted(tiny, gains="one", first_layer=3).gains)


def labelled(count: int) -> tuple[Tensor, Tensor]:
    """So many images of each class, those of a class alike."""
    torch.manual_seed(7)
    labels = torch.arange(len(NAMES)).repeat(count)
    kinds = torch.randn(len(NAMES), 3, 32, 32, dtype=torch.float64)
    return kinds[labels] + 1.5 * torch.randn(len(labels), 3, 32, 32, dtype=torch.float64), labels


def fitted(tiny, images: Tensor, labels: Tensor):
    method = make(tiny, "head-gains", pull=10.0)
    method.before_training(SimpleNamespace(train=lambda: [(images, labels)]))
    return method


def test_gda_behind_the_features_is_chosen_on_images_left_out(tiny) -> None:
    """Folds, refits and scores written out: weights of the two parts, and the shrinkage, have the least cross entropy
    on answers to images by a fit without their fold."""
    images, labels = labelled(5)
    method = fitted(tiny, images, labels)
    folds, text, tau = folds_of(labels, 4), method.encode_text(method.classes), float(method.backbone.temperature)
    own, scores = torch.zeros(len(labels), len(NAMES)).double(), {}
    for fold in range(4):
        used, out = folds != fold, folds == fold
        part = make(tiny, "head-gains", pull=10.0)
        part.before_training(SimpleNamespace(train=lambda used=used: [(images[used], labels[used])]))
        trained, shown = features(part, images[used]), features(part, images[out])
        own[out] = tau * shown @ text.T
        for shrink in SHRINKS:
            scores.setdefault(shrink, torch.zeros_like(own))[out] = naive_gda(trained, labels[used], shown, shrink)
    losses = {}
    for shrink, gda in scores.items():
        weights = minimum(own, gda, labels)
        losses[shrink] = smooth_loss(weights[0] * own + weights[1] * gda, labels), weights
    best = min(losses, key=lambda shrink: losses[shrink][0])
    torch.testing.assert_close(method.head.mix.double(), losses[best][1], atol=2e-3, rtol=2e-2)
    assert method.head.mix[1] > 0
    new, _ = labelled(7)
    shown = features(method, new[-5:])
    gda = naive_gda(features(method, images), labels, shown, best)
    expected = method.head.mix[0] * tau * shown @ text.T + method.head.mix[1] * gda
    torch.testing.assert_close(method.logits(shown[:, None], text), expected, atol=1e-5, rtol=1e-5)


def naive_gda(trained: Tensor, labels: Tensor, shown: Tensor, shrink: float) -> Tensor:
    """Scores x P mu - mu P mu / 2, their mean over the classes taken off, with P of the shrunk pooled covariance."""
    means = torch.stack([trained[labels == label].mean(0) for label in range(len(NAMES))])
    residuals = trained - means[labels]
    scatter = residuals.T @ residuals
    spare = len(labels) - len(NAMES)
    ridge = shrink * scatter.trace() / len(scatter) * torch.eye(len(scatter)).double()
    precision = spare * torch.linalg.inv(scatter + ridge)
    raw = shown @ precision @ means.T - ((means @ precision) * means).sum(1) / 2
    return raw - raw.mean(1, keepdim=True)


def smooth_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with Platt's targets: 1 - 1 / (n + 2) for the truth, the rest spread by the mean logit."""
    centred = logits - logits.mean(1, keepdim=True)
    return (centred.logsumexp(1) - (1 - 1 / (len(labels) + 2)) * centred.gather(1, labels[:, None])[:, 0]).mean()


def minimum(own: Tensor, gda: Tensor, labels: Tensor) -> Tensor:
    roots = torch.tensor([1.0, 0.1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([roots], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        weights = roots.square()  # none is below zero
        loss = smooth_loss(weights[0] * own + weights[1] * gda, labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return roots.detach().square()


def test_every_class_is_in_every_fold_that_it_has_images_for() -> None:
    labels = torch.tensor([0] * 9 + [1] * 2 + [2])
    folds = folds_of(labels, 4)
    counts = torch.stack([torch.bincount(folds[labels == label], minlength=4) for label in range(3)])
    assert counts.tolist() == [[3, 2, 2, 2], [1, 1, 0, 0], [1, 0, 0, 0]]
    assert torch.equal(folds, folds_of(labels, 4))


def test_one_image_per_class_has_no_gda(tiny) -> None:
    images, labels = labelled(1)
    method = fitted(tiny, images, labels)
    assert method.head.mix.tolist() == [1.0, 0.0]
    text = method.encode_text(method.classes)
    expected = method.backbone.temperature * features(method, images) @ text.T
    torch.testing.assert_close(method.logits(features(method, images)[:, None], text), expected)


def test_texts_stay_clips_so_other_classes_can_be_answered(tiny) -> None:
    images, labels = labelled(5)
    method = fitted(tiny, images, labels)
    tau, shown = method.backbone.temperature, features(method, images)
    known = method.logits(shown[:, None], method.encode_text(method.classes))
    method.set_classes(["whale", "oak"], TEMPLATE)
    assert method.can_answer(["whale"])
    assert method.head.mix[1] > 0
    torch.testing.assert_close(
        method.logits(shown[:, None], method.encode_text(method.classes)), tau * shown @ method.classes.frozen.T
    )
    method.set_classes(["whale", *NAMES[:2]], TEMPLATE)
    mixed = method.logits(shown[:, None], method.encode_text(method.classes))
    torch.testing.assert_close(mixed[:, 1:], known[:, :2])
    plain, best = tau * shown @ method.classes.frozen.T, known[:, :2].argmax(1, keepdim=True)
    credit = (known[:, :2] - plain[:, 1:]).gather(1, best)[:, 0]
    torch.testing.assert_close(mixed[:, 0], plain[:, 0] + credit)


@pytest.mark.parametrize("family", ["CLIPA", "EVA01", "MobileCLIP2-L"])
def test_other_towers_whose_state_is_a_sum_of_heads(family: str) -> None:
    """Read by a mean behind the last layer, or at the CLS of timm's towers, with a bias at the end."""
    backbone = small(family)
    torch.manual_seed(5)
    images = torch.randn(6, 3, *backbone.image.image_size, dtype=torch.float64)
    kind = find_method("head-gains")
    method = kind(backbone, kind.Config(first_layer=3, gain_pull=0.01)).double()
    method.set_classes(NAMES[:3], TEMPLATE)
    with torch.no_grad():
        clip = F.normalize(backbone.model.encode_image(images), dim=-1)
        torch.testing.assert_close(features(method, images), clip)
    method.before_training(SimpleNamespace(train=lambda: [(images, torch.tensor([0, 1, 2, 0, 1, 2]))]))
    assert (method.gains - 1).abs().max() > 1e-3
    normed, visual = naive_sum(method, images, images), backbone.model.visual
    bias = visual.trunk.head.bias if hasattr(visual, "trunk") else 0.0
    expected = F.normalize(normed @ method.projection + bias, dim=-1)
    torch.testing.assert_close(features(method, images), expected, atol=1e-9, rtol=1e-9)
    gained = with_gains(backbone, Gains(3, method.head_means, method.gains)).image
    same = gained.project(gained.layer_input(images, 4).frozen_cls)
    torch.testing.assert_close(same, normed @ backbone.image.head_matrix + bias, atol=1e-9, rtol=1e-9)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is computed inside."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(t.numel() for t in tree_leaves(out) if isinstance(t, Tensor))])
        return out


@pytest.mark.parametrize("gains", ["heads", "one"])
def test_what_each_head_writes_is_never_kept_for_all_images(tiny, gains: str) -> None:
    """All of it, [images, heads, width], is 2.4 GB for 1000 classes of 16 images and ViT-B/16."""
    images, labels = labelled(8)
    method = make(tiny, "head-gains", gains=gains)
    tower = method.backbone.image
    seen = tower.head_outputs(images, method.heads_from)
    with Largest() as largest:
        method.fit(seen, labels)
    assert (method.gains - 1).abs().max() > 1e-3
    assert seen.outputs.numel() <= largest.elements < method.gains.numel() * len(images) * tower.width

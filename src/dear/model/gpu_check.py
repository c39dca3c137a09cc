"""`dear doctor --gpu`: a few real steps on the card, compared with the CPU and with OpenCLIP's plain step."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dear.clip import Backbone, load_backbone
from dear.core.errors import DearError, first_line
from dear.core.names import CORE_ATTRIBUTES
from dear.core.runtime import autocast, gradient_scaler, pick_precision, seed_everything, to_device
from dear.core.table import Table
from dear.heads.head_role import CORE_ATTRIBUTE, MIXED, HeadRole
from dear.heads.role_map import RoleMap
from dear.methods.base import Method
from dear.methods.dear import Dear
from dear.methods.optional import set_gradients
from dear.methods.registry import find_method
from dear.training.config import TrainConfig
from dear.training.loop import make_optimizer

CHECKED = ("dear", "maple", "coop")
STEPS = 3
_TIMED_STEPS = 10
_CLASSES, _IMAGES = 37, 16
# Largest difference of a loss that rounding explains, as a share of it.
_TOLERANCE = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.05}


class _Steps(NamedTuple):
    losses: list[float]
    step: Callable[[], Tensor]


def check_gpu(model: str = "ViT-B-16", device: str = "cuda") -> str:
    """A table of precisions and methods that fits one screen; raises an error if a loss differs from the CPU's."""
    if not torch.cuda.is_available():
        advice = f"it is built for CUDA {torch.version.cuda}, so look whether `nvidia-smi` lists a card and its driver"
        if torch.version.cuda is None:
            advice = "it is built without CUDA: where there is an NVIDIA card, install a build for it (pytorch.org)"
        raise DearError(
            f"PyTorch {torch.__version__} sees no GPU here; {advice}. All commands work on the CPU, and on a Mac with "
            "--device mps."
        )
    where = torch.device(device)
    free, total = torch.cuda.mem_get_info(where)
    major, minor = torch.cuda.get_device_capability(where)
    title = f"{torch.cuda.get_device_name(where)}, capability {major}.{minor}, {free / 2**30:.1f} of "
    title += f"{total / 2**30:.1f} GiB free; CUDA {torch.version.cuda}, PyTorch {torch.__version__}"
    table = Table(["precision", "method", "loss, CPU", "loss, GPU", "difference", "ms a step", "times plain", "GiB"])
    expected = {name: _train(name, _backbone(model, torch.device("cpu"), "fp32")).losses for name in CHECKED}
    wrong: list[str] = []
    has_bf16 = pick_precision("auto", where) is torch.bfloat16
    for precision in ("fp32", "fp16", *(["bf16"] if has_bf16 else [])):
        plain = _milliseconds(_plain_step(model, where, precision))
        backbone = _backbone(model, where, precision)
        for name in CHECKED:
            torch.cuda.reset_peak_memory_stats()
            try:
                run = _train(name, backbone)
                taken, peak = _milliseconds(run.step), torch.cuda.max_memory_allocated() / 2**30
            except RuntimeError as error:  # the others are tried, and all are reported
                wrong.append(f"{name} in {precision} ended with: {first_line(error)[:200]}")
                continue
            difference = max(abs(a - b) / abs(b) for a, b in zip(run.losses, expected[name], strict=True))
            if not difference < _TOLERANCE[precision]:
                wrong.append(f"{name} in {precision} differs from the CPU by more than rounding")
            table.add(
                precision, name, f"{expected[name][-1]:.4f}", f"{run.losses[-1]:.4f}", f"{difference:.1e}",
                f"{taken:.1f}", f"{taken / plain:.2f}", f"{peak:.2f}",
            )  # fmt: skip
    report = f"{title}\n{model}, {_IMAGES} images, {_CLASSES} classes, after {STEPS} steps\n\n{table.text()}"
    if wrong:
        raise DearError(f"{'; '.join(wrong)}. Please report this:\n{report}")
    return report


def _backbone(model: str, device: torch.device, precision: str) -> Backbone:
    """The same random weights on every device: they are drawn on the CPU."""
    seed_everything(0)
    return load_backbone(model, random_weights=True, precision=precision, device=device)


def _method(name: str, backbone: Backbone) -> Method:
    kind: Any = find_method(name)
    settings = kind.Config()
    if not issubclass(kind, Dear):
        return kind(backbone, settings)
    core = [HeadRole(CORE_ATTRIBUTE, attribute) for attribute in CORE_ATTRIBUTES]
    kinds = [*core, HeadRole(MIXED), HeadRole("generalization")]
    tower = backbone.image
    layers = tuple(range(1, tower.layers + 1))
    roles = {(layer, head): kinds[(layer + head) % len(kinds)] for layer in layers for head in range(tower.heads)}
    identity = backbone.identity.to_json()
    return kind(backbone, settings, RoleMap(identity, layers, tower.heads, CORE_ATTRIBUTES, CORE_ATTRIBUTES, roles))


def _train(name: str, backbone: Backbone) -> _Steps:
    """Three steps on fixed pixels, started alike on every device; and a function that takes one more."""
    seed_everything(1)
    method = _method(name, backbone)
    method.set_classes([f"class {number}" for number in range(_CLASSES)], "a photo of a {}.")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in method.parameters():  # a GPU draws other numbers
            parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    pixels = torch.randn(_IMAGES, 3, *backbone.image.image_size, generator=generator)
    device, labels = backbone.device, torch.arange(_IMAGES) % _CLASSES
    pixels, labels = to_device(pixels, device), to_device(labels, device)
    optimizer = make_optimizer(method, TrainConfig(optimizer="adamw", lr=1e-3))
    scaler, parameters = gradient_scaler(device, backbone.precision), list(method.parameters())

    def gradients(loss: Tensor, keep_graph: bool = False) -> list[Tensor | None]:
        return list(torch.autograd.grad(scaler.scale(loss), parameters, retain_graph=keep_graph, allow_unused=True))

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = method.loss(method.layer_input(pixels), labels)
        set_gradients(method, loss, gradients)
        scaler.step(optimizer)
        scaler.update()
        return loss.total.detach()

    return _Steps([step().item() for _ in range(STEPS)], step)


def _plain_step(model: str, device: torch.device, precision: str) -> Callable[[], Any]:
    """OpenCLIP's own forward and backward of both towers, all weights trained, every text with all its places."""
    backbone = _backbone(model, device, "fp32")
    clip = backbone.model.requires_grad_(True)
    pixels = torch.randn(_IMAGES, 3, *backbone.image.image_size, device=device)
    texts = backbone.text.tokenizer([f"a photo of a class {number}." for number in range(_CLASSES)]).to(device)
    labels = torch.arange(_IMAGES, device=device) % _CLASSES
    dtype = pick_precision(precision, device)

    def step() -> None:
        clip.zero_grad(set_to_none=True)
        with autocast(device, dtype):
            image, text = clip.encode_image(pixels, normalize=True), clip.encode_text(texts, normalize=True)
            logits = clip.logit_scale.exp() * image @ text.T
        F.cross_entropy(logits.float(), labels).backward()

    return step


def _milliseconds(step: Callable[[], Any]) -> float:
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(_TIMED_STEPS):
        step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / _TIMED_STEPS

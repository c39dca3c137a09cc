"""The one training loop, for every method: few parameters on a frozen backbone."""

import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from dear.data.loading import from_workers
from dear.errors import DearError
from dear.files import write_text
from dear.runtime import autocast, gradient_scaler, pick_precision
from dear.training.checkpoint import load_checkpoint, save_checkpoint
from dear.training.config import TrainConfig, learning_rate

CHECKPOINT, METRICS = "checkpoint.safetensors", "metrics.jsonl"


class Epochs(Protocol):
    """Batches of images (pixels, or what was kept of them) and labels, for any epoch."""

    def epoch(self, number: int) -> Iterable[tuple[Any, Tensor]]: ...


class Trainable(Protocol):
    """What a method must offer to be trained; `nn.Module` gives the rest."""

    def trunk(self, images: Any) -> Any: ...

    def loss(self, entry: Any, labels: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]: ...

    def fusion_weights(self) -> Tensor: ...


def fit(
    model: Any,
    data: Epochs,
    config: TrainConfig,
    out: Path,
    validate: Callable[[], float] | None = None,
) -> None:
    """Trains in place, from the last checkpoint in `out` if there is one.

    Every epoch is decided by its number and the state before it, so a run that was killed and resumed ends
    in the same bits as one that was not.
    """
    device = model.backbone.device
    dtype = pick_precision(config.precision, device)
    optimizer = torch.optim.AdamW(_parameter_groups(model, config), weight_decay=config.weight_decay)
    scaler = gradient_scaler(device, dtype)
    done = load_checkpoint(out / CHECKPOINT, model, optimizer, scaler) if (out / CHECKPOINT).exists() else 0
    lines = _finished_lines(out / METRICS, done)
    board = _tensorboard(out) if config.tensorboard else None
    model.train()
    for epoch in range(done, config.epochs):
        share = learning_rate(config, epoch)
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * share
        began, seen, right, sums = time.perf_counter(), 0, 0, {"loss": 0.0}
        with tqdm(data.epoch(epoch), desc=f"epoch {epoch + 1}/{config.epochs}", unit="step", disable=None) as steps:
            for images, labels in from_workers(steps):
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                with autocast(device, dtype):
                    loss, parts, logits = model.loss(model.trunk(images), labels)
                _refuse_nan(loss, epoch, out, done=epoch)
                optimizer.zero_grad(set_to_none=True)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                seen += len(labels)
                right += int((logits.argmax(-1) == labels).sum())
                for name, value in {"loss": loss, **parts}.items():
                    sums[name] = sums.get(name, 0.0) + value.item() * len(labels)
                rate = seen / (time.perf_counter() - began)
                steps.set_postfix(
                    loss=f"{sums['loss'] / seen:.3f}", acc=f"{100 * right / seen:.1f}", lr=f"{config.lr * share:.1e}",
                    cls=f"{model.fusion_weights()[0].item():.2f}", img_s=f"{rate:.1f}",
                )  # fmt: skip
        record: dict[str, Any] = {"epoch": epoch + 1, "lr": config.lr * share}
        record |= {name: total / seen for name, total in sums.items()}
        record |= {"accuracy": 100 * right / seen, "fusion": model.fusion_weights().tolist(), "images_per_second": rate}
        if validate is not None:
            record["validation"] = validate()
        lines.append(json.dumps(record))
        write_text(out / METRICS, "\n".join(lines) + "\n")
        save_checkpoint(out / CHECKPOINT, model, optimizer, scaler, epoch + 1)
        if board is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    board.add_scalar(name, value, epoch + 1)
    model.eval()


def _parameter_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """The fusion scalars may learn at a rate of their own: there are few, and AdamW moves each by about the
    sum of the rates at most, so on a small set their start would otherwise be the fusion."""
    named = dict(model.named_parameters())
    fusion = [named.pop("fusion")] if "fusion" in named else []
    own_rate = config.lr if config.fusion_lr is None else config.fusion_lr
    groups = [{"params": list(named.values()), "full_lr": config.lr}, {"params": fusion, "full_lr": own_rate}]
    return [group for group in groups if group["params"]]


def _refuse_nan(loss: Tensor, epoch: int, out: Path, done: int) -> None:
    if not math.isfinite(loss.item()):
        kept = f"the state after epoch {done} is kept in {out / CHECKPOINT}" if done else "no epoch was finished"
        raise DearError(
            f"The loss became {loss.item()} in epoch {epoch + 1}, so training stopped; {kept}. "
            "Try a lower --lr, or --precision fp32."
        )


def _finished_lines(path: Path, epochs: int) -> list[str]:
    """The lines of the epochs that the checkpoint holds; a kill may have left one more."""
    return path.read_text().splitlines()[:epochs] if path.exists() and epochs else []


def _tensorboard(out: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise DearError("--tensorboard needs the tensorboard package: pip install tensorboard.") from None
    return SummaryWriter(str(out / "tensorboard"))

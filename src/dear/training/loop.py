"""The training loop of all methods."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dear.core.errors import DearError
from dear.core.progress import Progress, log_line
from dear.core.runtime import autocast, gradient_scaler, pick_precision
from dear.core.tensors import require_finite
from dear.data.loading import from_workers
from dear.methods.base import Method
from dear.parallel import processes
from dear.training.averaging import WeightAverage
from dear.training.checkpoint import job_of, load_checkpoint, save_checkpoint
from dear.training.config import TrainConfig, learning_rate
from dear.training.run_folder import CHANGEABLE, CHECKPOINT, TENSORBOARD, RunFolder


class Epoch(Protocol):
    """Batches of images (pixels or cached tensors) and labels."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Any: ...


class Epochs(Protocol):
    def epoch(self, number: int) -> Epoch: ...


def fit(
    model: Method,
    data: Epochs,
    config: TrainConfig,
    epochs: int,
    steps: int,
    out: Path,
    validate: Callable[[], float] | None = None,
) -> None:
    """Trains in place, from the last checkpoint in `out` if there is one; the last of `epochs` ends with step `steps`.

    An epoch depends only on its number and the state before it, so on the CPU a resumed run ends in the same bits as an
    uninterrupted one.
    """
    device = model.backbone.device
    dtype = pick_precision(config.precision, device)
    optimizer = make_optimizer(model, config)
    full_rates = [group["lr"] for group in optimizer.param_groups]
    scaler = gradient_scaler(device, dtype)
    average = WeightAverage(model, config, epochs) if config.average != "none" else None
    sums = average.sums if average else {}
    settings = {name: value for name, value in config.to_json().items() if name not in CHANGEABLE}
    job = job_of(settings, model.config.to_json(), model.backbone.identity.weights, model.classes.names)
    processes.broadcast_from_first(model.state_dict().values())
    resumes = (out / CHECKPOINT).exists()
    done = load_checkpoint(out / CHECKPOINT, model, optimizer, scaler, sums, epochs, job) if resumes else 0
    processes.require_same(
        f"{done} {job}", "The processes of this run differ in settings or in the content of --out: all need the same."
    )
    history = RunFolder(out).history(done) if done else []
    board = _tensorboard(out) if config.tensorboard and processes.is_rank_zero() else None
    parameters = list(model.parameters())

    def gradients(loss: Tensor, keep_graph: bool = False) -> list[Tensor | None]:
        scaled = scaler.scale(loss / processes.world_size())
        values = torch.autograd.grad(scaled, parameters, retain_graph=keep_graph, allow_unused=True)
        processes.all_reduce_sum(value for value in values if value is not None)
        return list(values)

    model.train()
    for epoch in range(done, epochs):
        torch.manual_seed(hash((config.seed, epoch)))  # dropout depends on the epoch only
        batches = data.epoch(epoch)
        start, images_seen, correct, lr = time.perf_counter(), 0, 0.0, 0.0
        totals = {"loss": 0.0}
        first = epoch * len(batches)
        numbers = range(first, min(first + len(batches), steps))
        with Progress(f"epoch {epoch + 1}/{epochs}", len(numbers), "step", leave=True) as bar:
            for step, (images, labels) in zip(numbers, from_workers(batches), strict=False):
                model.done = step / steps
                lr = learning_rate(config, config.lr, epochs, epoch, model.done)
                for group, full in zip(optimizer.param_groups, full_rates, strict=True):
                    group["lr"] = learning_rate(config, full, epochs, epoch, model.done)
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                optimizer.zero_grad(set_to_none=True)
                with autocast(device, dtype):
                    x = model.layer_input(images)
                with processes.step(len(labels)):
                    with autocast(device, dtype):
                        loss = model.loss(x, labels)
                    if not math.isfinite(loss.total.item()):
                        raise _diverged(f"The loss became {loss.total.item()}", epoch, out, dtype)
                    model.backward(loss, gradients)
                scaler.step(optimizer)
                scaler.update()
                images_seen += len(labels)
                predictions = loss.logits.argmax(-1).view(-1, len(labels))  # [views, batch]
                targets = labels if loss.targets is None else loss.targets
                correct += int((predictions == targets).sum()) / len(predictions)
                for name, value in {"loss": loss.total, **loss.parts}.items():
                    totals[name] = totals.get(name, 0.0) + value.item() * len(labels)
                images_per_second = images_seen / (time.perf_counter() - start)
                state = (
                    f"loss {totals['loss'] / images_seen:.3f}, accuracy {100 * correct / images_seen:.1f}%, "
                    f"lr {lr:.1e}, {images_per_second:.1f} images/s"
                )
                bar.note(state)
                bar.update()
        try:
            require_finite(model.state_dict(), "The model", "")
        except DearError:
            raise _diverged("Weights became infinite", epoch, out, dtype) from None
        if average:
            average.add(model, epoch)
        record: dict[str, Any] = {"epoch": epoch + 1, "lr": lr}
        record |= {name: total / images_seen for name, total in totals.items()}
        record |= {"accuracy": 100 * correct / images_seen, "images_per_second": images_per_second}
        if len(model.components) > 1:
            record["fusion"] = model.fusion_weights().tolist()
        if validate is not None:
            record["validation"] = validate()
            model.train()
        log_line(f"epoch {epoch + 1}/{epochs}: {state}")
        history.append(record)
        if processes.is_rank_zero():
            RunFolder(out).write_history(history)
            save_checkpoint(out / CHECKPOINT, model, optimizer, scaler, sums, epoch + 1, job)
        if board is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    board.add_scalar(name, value, epoch + 1)
    if average:
        average.put_into(model)
    model.eval()


def make_optimizer(model: Method, config: TrainConfig) -> torch.optim.Optimizer:
    groups, decay = model.parameter_groups(config.lr), config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, config.lr, momentum=config.momentum, weight_decay=decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, config.lr, eps=config.eps, weight_decay=decay)


def _diverged(what: str, epoch: int, out: Path, dtype: torch.dtype) -> DearError:
    """`epoch` is the number of finished epochs."""
    state = f"the state after epoch {epoch} is in {out / CHECKPOINT}" if epoch else "no epoch was finished"
    advice = "" if dtype is torch.float32 else ", or --precision fp32"
    return DearError(f"{what} in epoch {epoch + 1}, so training stopped; {state}. Try a lower --lr{advice}.")


def _tensorboard(out: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise DearError("--tensorboard needs the tensorboard package: pip install tensorboard.") from None
    return SummaryWriter(str(out / TENSORBOARD))

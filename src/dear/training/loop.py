"""The training loop of all methods, with its sums over an epoch and its averages of weights."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dear.core.errors import DearError
from dear.core.progress import Progress, duration, log_line
from dear.core.runtime import gradient_scaler, precision_name, rounding, to_device
from dear.core.tensors import require_finite
from dear.data.augment import FreshViews
from dear.data.loading import from_workers
from dear.methods.base import Loss, Method
from dear.methods.optional import Staged, set_gradients, targets_of
from dear.parallel import processes
from dear.training.checkpoint import Checkpoint, job_of
from dear.training.config import TrainConfig, learning_rate
from dear.training.estimate import RunEstimate
from dear.training.images import CachedViews
from dear.training.reporters import Report
from dear.training.run_folder import CHANGEABLE, CHECKPOINT, RunFolder

_LOG_EVERY = 5.0  # seconds: short epochs do not all get a line in a log
_READ_EVERY = 20  # steps: on a GPU, losses are read and checked after so many


def train_epochs(
    model: Method,
    data: FreshViews | CachedViews,
    config: TrainConfig,
    epochs: int,
    steps: int,
    out: Path,
    validate: Callable[[], float] | None = None,
    estimate: RunEstimate | None = None,
    report: Report | None = None,
) -> None:
    """Trains in place, from the last checkpoint in `out` if there is one; the last of `epochs` ends with step `steps`.

    `report` gets the numbers of each epoch. `estimate` tells the time left, and may have a deadline: then there are
    fewer epochs, and the learning rate falls sooner.

    An epoch depends only on its number and the state before it, so on the CPU a resumed run ends in the same bits as an
    uninterrupted one.
    """
    device, dtype = model.backbone.device, model.backbone.precision
    read_every = 1 if device.type == "cpu" else _READ_EVERY
    optimizer = make_optimizer(model, config)
    full_rates = [group["lr"] for group in optimizer.param_groups]
    scaler = gradient_scaler(device, dtype)
    average = WeightAverage(model, config, epochs) if config.average != "none" else None
    settings = {name: value for name, value in config.to_json().items() if name not in CHANGEABLE}
    settings["precision"] = precision_name(dtype)  # "auto" depends on the device, on which nothing else does
    job = job_of(settings, model.config.to_json(), model.backbone.identity.weights, model.classes.names)
    processes.broadcast_from_first(model.state_dict().values())
    checkpoint = Checkpoint(out / CHECKPOINT, model, optimizer, scaler, average.sums if average else {}, job)
    done = checkpoint.load(epochs)
    processes.require_same(
        f"{done} {job}", "The processes of this run differ in settings or in the content of --out: all need the same."
    )
    history = RunFolder(out).history(done) if done else []
    parameters = list(model.parameters())

    def gradients(loss: Tensor, keep_graph: bool = False) -> list[Tensor | None]:
        scaled = scaler.scale(loss / processes.world_size())
        values = torch.autograd.grad(scaled, parameters, retain_graph=keep_graph, allow_unused=True)
        processes.all_reduce_sum(value for value in values if value is not None)
        return list(values)

    # The first step is not compiled: it computes what is constant, which then is no part of the graph.
    compiled = torch.compile(model.loss) if config.compile else model.loss
    compute_loss = model.loss
    estimate, planned, epoch = estimate or RunEstimate(), epochs, done
    if done:
        log_line(f"epoch {done} of {epochs} is done: training continues after it")
    model.train()
    estimate.start()
    logged = -math.inf
    while epoch < epochs:
        torch.manual_seed(hash((config.seed, epoch)))  # dropout depends on the epoch only
        batches = data.epoch(epoch)
        start, sums, lr = time.perf_counter(), EpochSums(device), 0.0
        first = epoch * len(batches)
        numbers = range(first, min(first + len(batches), steps))

        def seconds_left() -> float:
            return estimate.left(steps - numbers.start - bar.done, steps)  # noqa: B023

        title = f"epoch {epoch + 1}/{epochs}"
        with rounding(dtype), Progress(title, len(numbers), "step", leave=True, left=seconds_left) as bar:
            for step, (images, labels) in zip(numbers, from_workers(batches), strict=False):
                share = step / steps
                if isinstance(model, Staged):
                    model.done = share
                lr = learning_rate(config, config.lr, epochs, epoch, share)
                for group, full in zip(optimizer.param_groups, full_rates, strict=True):
                    group["lr"] = learning_rate(config, full, epochs, epoch, share)
                images, labels = to_device(images, device), to_device(targets_of(model, labels), device)
                optimizer.zero_grad(set_to_none=True)
                x = model.layer_input(images)
                with processes.step(len(labels)):
                    loss = compute_loss(x, labels)
                    set_gradients(model, loss, gradients)
                scaler.step(optimizer)
                scaler.update()
                compute_loss = compiled
                estimate.step()
                sums.add(loss, labels)
                if (step + 1) % read_every == 0 or step == numbers[-1]:
                    means = sums.means()
                    if not math.isfinite(means["loss"]):
                        raise _diverged(f"The loss became {means['loss']}", epoch, out, dtype)
                    images_per_second = sums.images / (time.perf_counter() - start)
                    state = (
                        f"loss {means['loss']:.3f}, accuracy {means['accuracy']:.1f}%, "
                        f"lr {lr:.1e}, {images_per_second:.1f} images/s"
                    )
                    state += f", about {duration(seconds_left())} left" if estimate.is_measured else ""
                    bar.note(state)
                bar.update()
        try:
            require_finite(model.state_dict(), "The model", "")
        except DearError:
            raise _diverged("Weights became infinite", epoch, out, dtype) from None
        if average:
            average.add(model, epoch)
        record: dict[str, Any] = {"epoch": epoch + 1, "lr": lr}
        record |= means | {"images_per_second": images_per_second}
        if len(model.components) > 1:
            record["fusion"] = model.fusion_weights().tolist()
        if validate is not None:
            record["validation"] = validate()
            model.train()
        if time.monotonic() - logged >= _LOG_EVERY or epoch + 1 == epochs:
            logged = time.monotonic()
            log_line(f"epoch {epoch + 1}/{epochs}: {state}")
        history.append(record)
        if processes.is_rank_zero():
            RunFolder(out).write_history(history)
            checkpoint.save(epoch + 1)
        if report is not None:
            report({name: value for name, value in record.items() if isinstance(value, float)}, epoch + 1)
        epoch += 1
        if estimate.deadline is not None:  # by the clock of the first process, for all
            epochs = processes.all_gather_objects(estimate.affordable_epochs(epoch, epochs, len(batches)))[0]
            steps = min(steps, epochs * len(batches))
    estimate.epochs = (epochs, planned)
    if average:
        average.put_into(model)
    model.eval()


def make_optimizer(model: Method, config: TrainConfig) -> torch.optim.Optimizer:
    groups, decay = model.parameter_groups(config.lr), config.weight_decay
    # One kernel for all weights, which skips a step with infinite fp16 gradients without the host: faster on a GPU.
    fused = True if model.backbone.device.type == "cuda" else None
    if config.optimizer == "sgd":
        sgd = torch.optim.SGD(groups, config.lr, momentum=config.momentum, weight_decay=decay, fused=fused)
        if fused and config.momentum:  # PyTorch leaves them uninitialised where fp16 skips the first step
            for parameter in model.parameters():
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, config.lr, eps=config.eps, weight_decay=decay, fused=fused)


def _diverged(what: str, epoch: int, out: Path, dtype: torch.dtype) -> DearError:
    """`epoch` is the number of finished epochs."""
    state = f"the state after epoch {epoch} is in {out / CHECKPOINT}" if epoch else "no epoch was finished"
    advice = "" if dtype is torch.float32 else ", or --precision fp32"
    return DearError(f"{what} in epoch {epoch + 1}, so training stopped; {state}. Try a lower --lr{advice}.")


class EpochSums:
    """Losses and correct predictions of the steps so far.

    A loss that is not finite makes its sum not finite for good, so one reading checks all steps before it.
    """

    def __init__(self, device: torch.device) -> None:
        self._dtype = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
        self._names: list[str] = []
        self._sums: Tensor | None = None
        self.images = 0

    @torch.no_grad()
    def add(self, loss: Loss, labels: Tensor) -> None:
        """Adds a step; `labels` [batch], or what the method has in their place."""
        images = len(labels)
        predictions = loss.logits.argmax(-1).view(-1, images)  # [views, batch]
        correct = (predictions == (labels if loss.targets is None else loss.targets)).sum()
        values = {"loss": loss.total, **loss.parts}
        sums = torch.stack([value.to(self._dtype) for value in values.values()]) * images
        sums = torch.cat([sums, correct.to(self._dtype)[None] / len(predictions)])
        self._names = [*values, "accuracy"]
        self._sums = sums if self._sums is None else self._sums + sums
        self.images += images

    def means(self) -> dict[str, float]:
        """Mean loss, its parts, and accuracy (%) of all images so far; the host waits once."""
        assert self._sums is not None
        means = {name: total / self.images for name, total in zip(self._names, self._sums.tolist(), strict=True)}
        return means | {"accuracy": 100 * means["accuracy"]}


def epoch_weights(config: TrainConfig, epochs: int) -> list[float]:
    """The weight of each epoch in the average, summing to one.

    Peak and width of the gaussian are for `config.epochs`, and scaled if another number of epochs is trained.
    """
    if config.average == "uniform":
        return [1 / epochs] * epochs
    scale = epochs / config.epochs if config.epochs else 1.0
    peak, width = scale * config.average_peak, 2 * (scale * config.average_width) ** 2
    distances = [(epoch - peak) ** 2 / width for epoch in range(1, epochs + 1)]
    density = [math.exp(min(distances) - d) for d in distances]  # scaled, so that a narrow one does not vanish
    return [value / math.fsum(density) for value in density]


class WeightAverage:
    """A running sum of the learned parameters, in fp32 or better."""

    def __init__(self, model: nn.Module, config: TrainConfig, epochs: int) -> None:
        self.weights = epoch_weights(config, epochs)
        self.sums: dict[str, Tensor] = {
            name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for name, p in model.named_parameters()
        }

    @torch.no_grad()
    def add(self, model: nn.Module, epoch: int) -> None:
        """Adds the parameters at the end of `epoch`, counted from 0."""
        for name, parameter in model.named_parameters():
            self.sums[name] += self.weights[epoch] * parameter

    @torch.no_grad()
    def put_into(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(self.sums[name])

"""The training loop of all methods."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.core.errors import DearError
from dear.core.progress import Progress, duration, log_line
from dear.core.runtime import gradient_scaler, precision_name, rounding, to_device
from dear.core.tensors import require_finite
from dear.data.augment import FreshViews
from dear.data.loading import from_workers
from dear.methods.base import Method
from dear.methods.optional import Staged, set_gradients, targets_of
from dear.parallel import processes
from dear.training.averaging import WeightAverage
from dear.training.checkpoint import job_of, load_checkpoint, save_checkpoint
from dear.training.config import TrainConfig, learning_rate
from dear.training.estimate import RunEstimate
from dear.training.images import CachedViews
from dear.training.run_folder import CHANGEABLE, CHECKPOINT, TENSORBOARD, RunFolder
from dear.training.sums import EpochSums

_LOG_EVERY = 5.0  # seconds: short epochs do not all get a line in a log
_READ_EVERY = 20  # steps: on a GPU, losses are read and checked after so many


def fit(
    model: Method,
    data: FreshViews | CachedViews,
    config: TrainConfig,
    epochs: int,
    steps: int,
    out: Path,
    validate: Callable[[], float] | None = None,
    estimate: RunEstimate | None = None,
) -> None:
    """Trains in place, from the last checkpoint in `out` if there is one; the last of `epochs` ends with step `steps`.

    `estimate` tells the time left, and may have a deadline: then there are fewer epochs, and the learning rate falls
    sooner.

    An epoch depends only on its number and the state before it, so on the CPU a resumed run ends in the same bits as an
    uninterrupted one.
    """
    device, dtype = model.backbone.device, model.backbone.precision
    read_every = 1 if device.type == "cpu" else _READ_EVERY
    optimizer = make_optimizer(model, config)
    full_rates = [group["lr"] for group in optimizer.param_groups]
    scaler = gradient_scaler(device, dtype)
    average = WeightAverage(model, config, epochs) if config.average != "none" else None
    averages = average.sums if average else {}
    settings = {name: value for name, value in config.to_json().items() if name not in CHANGEABLE}
    settings["precision"] = precision_name(dtype)  # "auto" depends on the device, on which nothing else does
    job = job_of(settings, model.config.to_json(), model.backbone.identity.weights, model.classes.names)
    processes.broadcast_from_first(model.state_dict().values())
    resumes = (out / CHECKPOINT).exists()
    done = load_checkpoint(out / CHECKPOINT, model, optimizer, scaler, averages, epochs, job) if resumes else 0
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
            save_checkpoint(out / CHECKPOINT, model, optimizer, scaler, averages, epoch + 1, job)
        if board is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    board.add_scalar(name, value, epoch + 1)
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


def _tensorboard(out: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise DearError("--tensorboard needs the tensorboard package: pip install tensorboard.") from None
    return SummaryWriter(str(out / TENSORBOARD))

"""One run in several processes (torchrun): which process computes which rows, and how they are gathered.

Every process has all weights. In a step it runs its local images and classes through the towers; the towers' outputs
are gathered, with gradients, and from there on all processes compute the same on the whole batch. So a loss, a
BatchNorm or a projection of gradients is the same as in one process, and methods need not know of processes. Every
process has the whole loss divided by the number of processes, and the gradient of gathered rows is the sum over
processes: after one more sum over processes, gradients before and after the gathering both equal those of one process.

In a single process, all of this does nothing.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from dear.core.config import whole_number
from dear.core.errors import DearError, library_errors
from dear.parallel.watchdog import watchdog

T = TypeVar("T")
Places = Callable[[int], tuple[Tensor, int]]
"""The number of local rows -> their positions among the rows of all processes, and the number of all rows."""

_PEER_LOST = (
    "A process of this run ended, so all stop; finished epochs are saved: continue with --resume, in any number of "
    "processes."
)
_batch_images: int | None = None  # images in the whole batch of this step; None: not in a step
_dropout_places: Places | None = None


def world_size() -> int:
    """The number of processes of this run."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    return distributed.get_rank() if world_size() > 1 else 0


def is_rank_zero() -> bool:
    """Whether this is the process that writes files."""
    return rank() == 0


# --- start and end ---------------------------------------------------------------------------------------


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Joins the processes that torchrun started into one run.

    Only rank 0 prints. If a rank fails, all exit and the first to fail reports why.
    """
    if whole_number("WORLD_SIZE", 1) == 1 or "RANK" not in os.environ or world_size() > 1:
        yield
        return
    device = local_device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with library_errors("The processes of this run could not connect to each other", RuntimeError, ValueError):
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with watchdog(_PEER_LOST, _is_first_to_fail) as handled, _silence() if rank() else nullcontext():

            def on_sigterm(*_: Any) -> None:
                handled.set()
                raise DearError(_PEER_LOST)

            signal.signal(signal.SIGTERM, on_sigterm)
            yield
            barrier()
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends all ranks when one exits: not amid the report
        if not _is_first_to_fail():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 2) from None
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # the command line silences other ranks
        raise
    signal.signal(signal.SIGTERM, before)
    distributed.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """The device of this process: on a machine with several, each has a GPU of its own."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    local_rank, count = whole_number("LOCAL_RANK", 0), torch.cuda.device_count()
    if device.index is not None and whole_number("LOCAL_WORLD_SIZE", 1) > 1:
        raise DearError(
            f"--device {device} is one GPU for all processes: use --device cuda, so that each gets its own."
        )
    if local_rank >= count:
        raise DearError(f"There are fewer GPUs here than processes: use --nproc-per-node {count}, or --device cpu.")
    return torch.device("cuda", local_rank if device.index is None else device.index)


@contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@contextmanager
def _peer_errors() -> Iterator[None]:
    """Turns the error of a lost connection to another process into a sentence."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("connection|peer|timed out|timeout|broken pipe", str(error), re.IGNORECASE):
            raise
        raise DearError(_PEER_LOST) from error


def _is_first_to_fail() -> bool:
    """Whether this process is the first to fail, and so reports why."""
    try:
        return distributed.distributed_c10d._get_default_store().add("said", 1) == 1
    except (RuntimeError, ValueError):  # the process with the store is gone
        return True


def barrier() -> None:
    """Waits until all processes have come here."""
    all_gather_objects(None)


def all_gather_objects(value: T) -> list[T]:
    """The value of each process, by rank."""
    values: list[Any] = [value] * world_size()
    if world_size() > 1:
        with _peer_errors():
            distributed.all_gather_object(values, value)
    return values


def require_same(value: str, sentence: str) -> None:
    """Raises the sentence as an error if processes have different values."""
    if len(set(all_gather_objects(value))) > 1:
        raise DearError(sentence)


# --- local rows ------------------------------------------------------------------------------------------


def _local_slice(total: int) -> slice:
    """The rows of this process among `total`: none, if there are more processes than rows."""
    return slice(total * rank() // world_size(), total * (rank() + 1) // world_size())


def local_rows(items: Sequence[T]) -> Sequence[T]:
    """The items of this process: at least one, so that all ranks run the same code; `gather` drops the surplus."""
    return (items[_local_slice(len(items))] or items[:1]) if world_size() > 1 else items


@contextmanager
def step(images: int) -> Iterator[None]:
    """Inside, towers compute the local part of a batch of `images` and return the features of the whole batch."""
    global _batch_images
    _batch_images = images if world_size() > 1 else None
    try:
        with row_places(_image_places):
            yield
    finally:
        _batch_images = None


def in_step() -> bool:
    """Whether towers compute only local rows."""
    return _batch_images is not None


def gather_rows(x: Tensor) -> Tensor:
    """Rows of the local images [views * images, ...] -> rows of the whole batch; outside of a step, as they are."""
    return x if _batch_images is None else gather(x, _batch_images)


def gather(x: Tensor, total: int) -> Tensor:
    """Local rows, view by view, [views * local, ...] -> rows of all processes [views * total, ...], with gradients."""
    if world_size() == 1:
        return x
    by_row = x.unflatten(0, (-1, len(local_rows(range(total))))).transpose(0, 1)
    return _Gather.apply(by_row, total).transpose(0, 1).flatten(0, 1)


class _Gather(torch.autograd.Function):
    """Local rows [local, ...] -> [total, ...]; backward sums the gradients of the local rows over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: int) -> Tensor:
        ctx.total, ctx.local = total, len(x)
        counts = [total * (r + 1) // world_size() - total * r // world_size() for r in range(world_size())]
        padded = x.new_zeros(max(counts), *x.shape[1:])
        padded[: counts[rank()]] = x[: counts[rank()]]
        parts = [torch.empty_like(padded) for _ in counts]
        with _peer_errors():
            distributed.all_gather(parts, padded)
        return torch.cat([rows[:count] for rows, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        exact = torch.promote_types(gradients[0].dtype, torch.float32)  # a sum in bf16 would have 8 bits
        summed = gradients[0].contiguous().to(exact, copy=True)
        all_reduce_sum([summed])
        local = summed[_local_slice(ctx.total)].to(gradients[0].dtype)
        return local if len(local) == ctx.local else local.new_zeros(ctx.local, *local.shape[1:]), None


# --- collectives -----------------------------------------------------------------------------------------


def all_reduce_sum(tensors: Iterable[Tensor]) -> None:
    """Sums over all processes, in place."""
    tensors = list(tensors)
    if world_size() > 1 and tensors:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _peer_errors():
            distributed.all_reduce(flat)
        for tensor, summed in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(summed.view_as(tensor))


@torch.no_grad()
def broadcast_from_first(tensors: Iterable[Tensor]) -> None:
    """Copies the values of rank 0, in place, so that not even the last bit differs."""
    if world_size() > 1:
        for tensor in tensors:
            with _peer_errors():
                distributed.broadcast(tensor, 0)


# --- dropout ---------------------------------------------------------------------------------------------


@contextmanager
def row_places(places: Places | None) -> Iterator[None]:
    """Inside, `dropout` takes the global positions of its rows from `places`; None: as outside."""
    global _dropout_places
    before = _dropout_places
    _dropout_places = places or before
    try:
        yield
    finally:
        _dropout_places = before


def _image_places(rows: int) -> tuple[Tensor, int]:
    assert _batch_images is not None
    local = torch.tensor(local_rows(range(_batch_images)))
    views = rows // len(local)
    return (torch.arange(views)[:, None] * _batch_images + local).flatten(), views * _batch_images


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """`F.dropout` with a mask that depends on the global row, not on the rank that holds it."""
    if not training or _batch_images is None or _dropout_places is None:
        return F.dropout(x, share, training)
    places, total = _dropout_places(len(x))
    return x * F.dropout(x.new_ones(total, *x.shape[1:]), share)[places.to(x.device)]

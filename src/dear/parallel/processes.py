"""One run in several processes (torchrun): who computes which rows, and how they become whole again.

Every process holds all weights. Of a step it computes its own images and its own classes through the towers; what the
towers make of them is gathered, with gradients, and from there on every process computes the same, on the whole batch.
So a loss, a BatchNorm or a projection of gradients is what it is in one process, and no method knows of the others.
The gradient of gathered rows is the sum over the processes, each of which has the whole loss divided by their number:
summed once more over the processes, gradients before and behind the gathering are both those of one process.

In one process nothing here does anything.
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

from dear.core.errors import DearError

T = TypeVar("T")
Places = Callable[[int], tuple[Tensor, int]]
"""The number of rows at hand -> where they are among those of all processes, and how many these are."""

_ENDED = (
    "A process of this run was ended, so all of them stop; what was finished is kept: go on with --resume, in as many "
    "processes as you like."
)
_images: int | None = None  # in the whole batch of this step
_places: Places | None = None


def world() -> int:
    """How many processes share this run."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    return distributed.get_rank() if world() > 1 else 0


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


# --- beginning and end -----------------------------------------------------------------------------------


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """The processes that torchrun started are one run inside. Only the first is heard.

    Where one fails, all end, and one of them says why: who is first to.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ or world() > 1:
        yield
        return
    device = own_device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    except (RuntimeError, ValueError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise DearError(f"The processes of this run could not find each other: {first_line}") from error
    before = signal.signal(signal.SIGTERM, _told_to_end)
    try:
        with _unheard() if rank() else nullcontext():
            yield
            wait()
    except BaseException as error:
        if not _speaks():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 2) from None
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # which the command line takes from all but the first
        raise
    signal.signal(signal.SIGTERM, before)
    distributed.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """Each process on a machine has a GPU of its own."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    own, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if device.index is not None and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise DearError(f"--device {device} is one GPU for all processes: use --device cuda, and each has its own.")
    if own >= there:
        raise DearError(f"There are fewer GPUs here than processes: use --nproc-per-node {there}, or --device cpu.")
    return torch.device("cuda", own if device.index is None else device.index)


@contextmanager
def _unheard() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _told_to_end(*_: Any) -> None:
    raise DearError(_ENDED)


@contextmanager
def _talking() -> Iterator[None]:
    """A process that is no longer there is noticed by those who wait for it."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("connection|peer|timed out|timeout|broken pipe", str(error), re.IGNORECASE):
            raise
        raise DearError(_ENDED) from error


def _speaks() -> bool:
    """Whether this process is the first with something to say about the end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the others' end ends this one, too, but not in the middle of a word
    try:
        return distributed.distributed_c10d._get_default_store().add("said", 1) == 1
    except (RuntimeError, ValueError):  # whoever kept count is gone
        return True


def wait() -> None:
    """For all processes to be here."""
    tell_all(None)


def tell_all(value: T) -> list[T]:
    """What each process has to tell the others, in order."""
    found: list[Any] = [value] * world()
    if world() > 1:
        with _talking():
            distributed.all_gather_object(found, value)
    return found


def require_same(value: str, sentence: str) -> None:
    """Refuses with the sentence where processes have come to different values."""
    if len(set(tell_all(value))) > 1:
        raise DearError(sentence)


# --- who computes what -----------------------------------------------------------------------------------


def _own(total: int) -> slice:
    """Of so many rows, those of this process: none, where there are more processes than rows."""
    return slice(total * rank() // world(), total * (rank() + 1) // world())


def local_rows(items: Sequence[T]) -> Sequence[T]:
    """The part of this process: at least one, so that all do the same; `gather` leaves out what nobody asked for."""
    return (items[_own(len(items))] or items[:1]) if world() > 1 else items


@contextmanager
def step(images: int) -> Iterator[None]:
    """Inside, towers compute the part of this process of a batch of `images`, and give what all have computed."""
    global _images
    _images = images if world() > 1 else None
    try:
        with row_places(_image_places):
            yield
    finally:
        _images = None


def in_step() -> bool:
    """Whether towers have to share."""
    return _images is not None


def own_images(total: int) -> int:
    """How many images of a batch of `total` are at hand in this process."""
    return len(local_rows(range(total)))


def gather_rows(x: Tensor) -> Tensor:
    """In a step: rows of the images of this process [views * images, ...] -> of all of the batch."""
    return x if _images is None else gather(x, _images)


def gather(x: Tensor, total: int) -> Tensor:
    """Local rows, view by view, [views * own, ...] -> those of all processes [views * total, ...], with gradients."""
    if world() == 1:
        return x
    by_row = x.unflatten(0, (-1, own_images(total))).transpose(0, 1)
    return _Gather.apply(by_row, total).transpose(0, 1).flatten(0, 1)


class _Gather(torch.autograd.Function):
    """Local rows [own, ...] -> [total, ...]; backward sums over processes what they found for the local rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: int) -> Tensor:
        ctx.total, ctx.at_hand = total, len(x)
        counts = [total * (r + 1) // world() - total * r // world() for r in range(world())]
        own = x.new_zeros(max(counts), *x.shape[1:])
        own[: counts[rank()]] = x[: counts[rank()]]
        found = [torch.empty_like(own) for _ in counts]
        with _talking():
            distributed.all_gather(found, own)
        return torch.cat([rows[:count] for rows, count in zip(found, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        summed = gradients[0].contiguous().clone()
        add_up([summed])
        own = summed[_own(ctx.total)]
        return own if len(own) == ctx.at_hand else summed.new_zeros(ctx.at_hand, *summed.shape[1:]), None


# --- the same on all -------------------------------------------------------------------------------------


def add_up(tensors: Iterable[Tensor]) -> None:
    """In place: the sums over all processes."""
    tensors = list(tensors)
    if world() > 1 and tensors:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _talking():
            distributed.all_reduce(flat)
        for tensor, summed in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(summed.view_as(tensor))


def add_up_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    add_up(parameter.grad for parameter in parameters if parameter.grad is not None)


@torch.no_grad()
def take_from_first(tensors: Iterable[Tensor]) -> None:
    """In place: what the first process has, so that not even the last bit differs."""
    if world() > 1:
        for tensor in tensors:
            with _talking():
                distributed.broadcast(tensor, 0)


# --- dropout ---------------------------------------------------------------------------------------------


@contextmanager
def row_places(places: Places | None) -> Iterator[None]:
    """Says where the rows that are dropped from inside stand among those of all processes; None: as before."""
    global _places
    before = _places
    _places = places or before
    try:
        yield
    finally:
        _places = before


def _image_places(rows: int) -> tuple[Tensor, int]:
    assert _images is not None
    own = torch.tensor(local_rows(range(_images)))
    views = rows // len(own)
    return (torch.arange(views)[:, None] * _images + own).flatten(), views * _images


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """As `F.dropout` on the rows of all processes, of which `x` are the own: who has a row does not matter."""
    if not training or _images is None or _places is None:
        return F.dropout(x, share, training)
    places, total = _places(len(x))
    return x * F.dropout(x.new_ones(total, *x.shape[1:]), share)[places.to(x.device)]

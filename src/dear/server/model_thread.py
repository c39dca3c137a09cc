"""One thread for the model. Images of several requests that wait at the same time form one batch."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from dear.model.answer import Answer

T = TypeVar("T")
MOST_IMAGES = 32  # most images of a batch, and so of a request
_FILL_SECONDS = 0.003  # how long a batch with room in it waits for more images


class Engine(Protocol):
    """An adapted model, in PyTorch or exported. `Any` stands for its own arrays: tensors, or NumPy's."""

    runtime: str
    backbone: str
    classes: tuple[str, ...]
    components: tuple[str, ...]
    inferences: tuple[str, ...]  # ways of inference, the usual one first

    def pixels(self, image: Any) -> Any:
        """The image as the model sees it, [3, height, width]. May be called from any thread, the rest from one."""

    def forward(self, pixels: Sequence[Any]) -> Any:
        """The output of the model for these images, for the two methods below."""

    def features(self, output: Any) -> Any:
        """Normalised features [images, components, dim]."""

    def answers(self, output: Any, topk: int, inference: str) -> list[Answer]:
        """One answer per image."""

    def encode_text(self, sentences: Sequence[str]) -> Any:
        """Normalised features [sentences, dim]."""


class OnModel(Protocol):
    """Runs a job in the thread of the model, and waits for its result."""

    def __call__(self, job: Callable[[], T]) -> T: ...


@dataclass(frozen=True)
class _ImageJob:
    """The images of one request, for answers, or without `inference` for features."""

    pixels: Sequence[Any]
    inference: str | None
    topk: int
    done: Future = field(default_factory=Future)


@dataclass(frozen=True)
class _Call:
    job: Callable[[], Any]
    done: Future = field(default_factory=Future)


class ModelThread:
    """The model's thread and its queue; `observe` gets the size of every batch and the seconds it took."""

    def __init__(self, engine: Engine, observe: Callable[[int, float], None] = lambda images, seconds: None) -> None:
        self._engine, self._observe = engine, observe
        self._changed = threading.Condition()
        self._waiting: deque[_ImageJob | _Call] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def answers(self, pixels: Sequence[Any], topk: int, inference: str) -> "Future[list[Answer]]":
        return self._add(_ImageJob(pixels, inference, topk))

    def features(self, pixels: Sequence[Any]) -> "Future[Any]":
        """Normalised features [images, components, dim]."""
        return self._add(_ImageJob(pixels, None, 0))

    def call(self, job: Callable[[], T]) -> "Future[T]":
        """Queues any other job that uses the model."""
        return self._add(_Call(job))

    def wait_for(self, job: Callable[[], T]) -> T:
        """`call`, and wait: never in the event loop, never in the thread of the model."""
        return self.call(job).result()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the thread after its current batch; waiting and later jobs are cancelled."""
        with self._changed:
            self._closed = True
            for item in self._waiting:
                item.done.cancel()
            self._changed.notify()
        self._thread.join()

    def _add(self, item: _ImageJob | _Call) -> Future:
        with self._changed:
            if self._closed:
                item.done.cancel()
            self._waiting.append(item)
            self._changed.notify()
        return item.done

    def _run(self) -> None:
        while jobs := self._next():
            batch = [item for item in jobs if item.done.set_running_or_notify_cancel()]
            try:
                results = self._results(batch)
            except Exception as error:
                for item in batch:
                    item.done.set_exception(error)
            else:
                for item, result in zip(batch, results, strict=True):
                    item.done.set_result(result)

    def _next(self) -> list[_ImageJob] | list[_Call]:
        """The next call, or a batch of the images before it; nothing when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            if isinstance(first := self._waiting[0], _Call):
                self._waiting.popleft()
                return [first]
            until = time.monotonic() + _FILL_SECONDS
            while self._images_in_front() < MOST_IMAGES and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            batch, room = [], MOST_IMAGES
            while self._waiting and isinstance(item := self._waiting[0], _ImageJob) and len(item.pixels) <= room:
                batch.append(item)
                room -= len(item.pixels)
                self._waiting.popleft()
            return batch

    def _images_in_front(self) -> int:
        return sum(len(item.pixels) for item in self._waiting if isinstance(item, _ImageJob))

    def _results(self, batch: list[Any]) -> list[Any]:
        if not batch:
            return []
        if isinstance(batch[0], _Call):
            return [batch[0].job()]
        began, pixels = time.monotonic(), [one for item in batch for one in item.pixels]
        output, topk = self._engine.forward(pixels), max(item.topk for item in batch)
        inferences = {item.inference for item in batch if item.inference is not None}
        answers = {inference: self._engine.answers(output, topk, inference) for inference in inferences}
        self._observe(len(pixels), time.monotonic() - began)
        results, end = [], 0
        for item in batch:
            part, end = slice(end, end + len(item.pixels)), end + len(item.pixels)
            if item.inference is None:
                results.append(self._engine.features(output)[part])
            else:
                own = answers[item.inference][part]
                results.append([replace(answer, top=answer.top[: item.topk]) for answer in own])
        return results

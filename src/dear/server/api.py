"""The API: what is it (`/v1/predict`), what is like it (`/v1/search`), how does the model see it (`/v1/embed`)."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dear.core.errors import DearError
from dear.core.version import __version__
from dear.server.admission import MAX_BODY, Admission
from dear.server.engines import TorchEngine, open_engine
from dear.server.metrics import Metrics
from dear.server.model_thread import BATCH, Engine, ModelThread
from dear.server.responses import Json, RefusedError, busy
from dear.server.safety import MAX_BYTES, open_upload
from dear.server.uploads import Upload, parse_upload

if TYPE_CHECKING:
    from dear.gallery import Encoder, Gallery, Hit

T = TypeVar("T")
_ANSWER_SECONDS = 60.0
_SMALL = 500_000  # bytes
_MOST = 1000  # classes or hits in one answer


class Service:
    """An adapted model at work, maybe with a gallery, and what keeps it from taking on too much."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        gallery: "Gallery | None" = None,
        encoder: "Encoder | None" = None,
        admission: Admission | None = None,
    ) -> None:
        self.engine, self.name, self.gallery, self._encoder = engine, name, gallery, encoder
        self.metrics, self.admission = Metrics(), admission or Admission()
        self.metrics.watch_waiting(lambda: self.admission.images)
        self.model = ModelThread(engine, self.metrics.batch)

    @classmethod
    def open(cls, folder: Path, gallery: "Path | str | None") -> "Service":
        """`folder` was made by `dear train` or `dear export`, `gallery` by `dear index`."""
        engine, name = open_engine(folder), folder.resolve().name
        if gallery is None:
            return cls(engine, name)
        if not isinstance(engine, TorchEngine):
            raise DearError("An exported model is served without a gallery: give the run itself to search.")
        from dear.gallery import AdapterEncoder, Gallery

        opened = Gallery.open(gallery)
        made_with = opened.info.encoder
        # What was made with an adapter is searched with this run's, or not at all; all else brings its own encoder.
        ours = made_with.get("kind") == "adapter"
        encoder = AdapterEncoder(folder, engine.predictor) if ours else opened.encoder()
        opened.require(encoder)
        return cls(engine, name, opened, encoder)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()

    def find(self, query: "Image.Image | str", by: str, k: int, label: str = "") -> "list[Hit]":
        """Images like a picture or a sentence; `label`: only labels that hold this. It waits for the model."""
        from dear.gallery import parse_by

        gallery, encoder = self.need_gallery(), self._encoder
        assert encoder is not None
        weights = parse_by(by, gallery.components)
        asked = self.model.wait_for(lambda: gallery.query(encoder, query, list(weights)))
        return gallery.search(asked, weights, k, label_filter(label))

    def need_gallery(self) -> "Gallery":
        if self.gallery is None:
            raise DearError("The server was started without a gallery: start it with --gallery GALLERY.")
        return self.gallery


class Api:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._workers = anyio.CapacityLimiter(os.cpu_count() or 1)

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/predict", self.predict, methods=["POST"]),
            Route("/v1/search", self.search, methods=["POST"]),
            Route("/v1/embed", self.embed, methods=["POST"]),
            Route("/v1/about", self.about),
            Route("/healthz", self.health),
            Route("/metrics", self.metrics),
        ]

    async def predict(self, request: Request) -> Response:
        engine = self._service.engine
        async with self._opened(request, ("topk", "votes", "inference"), engine.pixels) as (upload, pixels):
            if not pixels:
                raise DearError("The request has no image: send one as image.")
            topk, votes = upload.number("topk", 3, _MOST), upload.flag("votes", True)
            inference = upload.choice("inference", engine.inferences)
            answers = await answered(self._service.model.answers(pixels, topk, inference))
        found = [answer.to_json() for answer in answers]
        for one in found if not votes else ():
            del one["votes"]
        return Json({"answers": found})

    async def search(self, request: Request) -> Response:
        self._service.need_gallery()
        async with self._opened(request, ("text", "by", "label", "k"), lambda image: image) as (upload, images):
            queries = [*images, *([upload.text("text")] if upload.text("text") else [])]
            if len(queries) != 1:
                raise DearError("Search for one image or for one text.")
            by, k, label = upload.text("by", "cls"), upload.number("k", 10, _MOST), upload.text("label")
            hits = await run_in_threadpool(self._service.find, queries[0], by, k, label)
        return Json({"hits": [hit.to_json() for hit in hits]})

    async def embed(self, request: Request) -> Response:
        model, engine = self._service.model, self._service.engine
        async with self._opened(request, ("texts",), engine.pixels) as (upload, pixels):
            texts = upload.texts("texts")
            if not pixels and not texts:
                raise DearError("The request has nothing to embed: send images or texts.")
            images = (await answered(model.features(pixels))).tolist() if pixels else []
            sentences = (await answered(model.call(lambda: engine.encode_text(texts)))).tolist() if texts else []
        named = [dict(zip(engine.components, features, strict=True)) for features in images]
        return Json({"images": named, "texts": sentences})

    async def about(self, _: Request) -> Response:
        engine, gallery = self._service.engine, self._service.gallery
        found = gallery and {"name": gallery.folder.name, "images": await run_in_threadpool(len, gallery)}
        return Json(
            {
                "dear": __version__,
                "run": self._service.name,
                "backbone": short_name(engine.backbone),
                "runtime": engine.runtime,
                "classes": list(engine.classes),
                "components": list(engine.components),
                "inferences": list(engine.inferences),
                "gallery": found,
                "limits": {"images": BATCH, "image_bytes": MAX_BYTES, "request_bytes": MAX_BODY},
            }
        )

    async def health(self, _: Request) -> Response:
        if not self._service.model.alive:
            raise RefusedError(503, "The model has stopped: start the server again.")
        return Json({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4")

    @asynccontextmanager
    async def _opened(
        self, request: Request, settings: Sequence[str], prepare: Callable[[Image.Image], Any]
    ) -> AsyncIterator[tuple[Upload, list[Any]]]:
        """The request and its images, prepared. They keep their places until the block ends."""
        with ExitStack() as places:
            async with self._service.admission.body(request) as body:
                kind = request.headers.get("content-type", "")
                # What is small is read sooner than a thread could be woken up for it.
                small = len(body) <= _SMALL
                upload = parse_upload(kind, body) if small else await run_in_threadpool(parse_upload, kind, body)
                upload.require(settings)
                places.enter_context(self._service.admission.room_for(len(upload.images)))
                images = await self._in_worker(lambda: _opened_images(upload.images, prepare))
            upload.images.clear()
            yield upload, images

    async def _in_worker(self, job: Callable[[], T]) -> T:
        """Decoding takes a processor each, and memory: no more at once than there are processors."""
        return await anyio.to_thread.run_sync(job, limiter=self._workers)


def _opened_images(files: Sequence[bytes], prepare: Callable[[Image.Image], Any]) -> list[Any]:
    images = []
    for number, file in enumerate(files, 1):
        try:
            images.append(prepare(open_upload(file)))
        except DearError as error:
            raise DearError(f"Image {number} of {len(files)}: {error}" if len(files) > 1 else str(error)) from None
    return images


async def answered(future: "Future[T]") -> T:
    """What the model says, if it comes in time; else its place in the row is given up."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), _ANSWER_SECONDS)
    except asyncio.TimeoutError:
        raise busy() from None


def label_filter(text: str) -> str | None:
    """SQL for labels that hold `text` in any case; wildcards of LIKE would mean more than what was written."""
    quoted = text.strip().lower().replace("'", "''")
    return f"strpos(lower(label), '{quoted}') > 0" if quoted else None


def short_name(name: str) -> str:
    """The last part of a path; other names as they are."""
    kind, _, rest = name.partition(":")
    if kind in ("local-dir", "transformers") or (not rest and "/" in name):
        return Path(rest or name).name
    return name

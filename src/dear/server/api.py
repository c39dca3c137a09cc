"""The API: classes of an image (`/v1/predict`), similar images (`/v1/search`), features (`/v1/embed`)."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPBearer
from PIL import Image

from dear.core.errors import DearError
from dear.core.version import __version__
from dear.server import schemas
from dear.server.engines import TorchEngine, open_engine
from dear.server.limits import MAX_BODY, Admission, Json, RefusedError, busy
from dear.server.metrics import Metrics
from dear.server.model_thread import MOST_IMAGES, Engine, ModelThread
from dear.server.uploads import MAX_BYTES, MAX_REQUEST_PIXELS, open_uploads, parse_upload

if TYPE_CHECKING:
    from dear.gallery import Encoder, Gallery, Hit

T = TypeVar("T")
_ANSWER_SECONDS = 60.0
_SMALL_BODY = 500_000  # bytes

# Declared for OpenAPI alone: the guard checks the token before a request comes here.
_TOKEN = Depends(
    HTTPBearer(scheme_name="token", auto_error=False, description="Only if the server was started with --token-file.")
)
_REFUSED: dict[int | str, Any] = {
    "4XX": {
        "model": schemas.Refusal,
        "description": "400 bad request, 401 no token, 403 wrong host or page, 408 too slow, 411 no length, "
        "413 too large, 415 neither form nor JSON",
    }
}
_BUSY: dict[int | str, Any] = {
    503: {
        "model": schemas.Refusal,
        "description": "Too much at once: try again later",
        "headers": {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}},
    }
}
_STOPPED: dict[int | str, Any] = {503: {"model": schemas.Refusal, "description": "The model has stopped"}}


class Service:
    """An adapted model in its thread, maybe with a gallery, and limits on the work it takes on."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        gallery: "Gallery | None" = None,
        encoder: "Encoder | None" = None,
        admission: Admission | None = None,
    ) -> None:
        self.engine, self.name, self.gallery, self._encoder = engine, name, gallery, encoder
        self.admission = admission or Admission()
        self.metrics = Metrics(lambda: self.admission.images)
        self.model = ModelThread(engine, self.metrics.batch)

    @classmethod
    def open(
        cls, folder: Path, gallery: "Path | str | None", device: str = "auto", precision: str = "auto"
    ) -> "Service":
        """`folder` was made by `dear fit`, `dear train` or `dear export`, `gallery` by `dear index`."""
        engine, name = open_engine(folder, device, precision), folder.resolve().name
        if gallery is None:
            return cls(engine, name)
        if not isinstance(engine, TorchEngine):
            raise DearError("An exported model is served without a gallery: give the run itself to search.")
        from dear.gallery import AdapterEncoder, Gallery

        opened = Gallery.open(gallery)
        spec = opened.info.encoder
        # What was made with an adapter is searched with this run's, or not at all; all else brings its own encoder.
        same_kind = spec.get("kind") == "adapter"
        encoder = AdapterEncoder(folder, engine.predictor) if same_kind else opened.encoder(device, precision)
        opened.require(encoder)
        return cls(engine, name, opened, encoder)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()

    def search(self, query: "Image.Image | str", by: str, k: int, label: str = "") -> "list[Hit]":
        """Images similar to a picture or a sentence; `label`: only labels that contain it. Waits for the model."""
        from dear.gallery import parse_by

        gallery, encoder = self.require_gallery(), self._encoder
        assert encoder is not None
        weights = parse_by(by, gallery.components)
        features = self.model.wait_for(lambda: gallery.query(encoder, query, list(weights)))
        return gallery.search(features, weights, k, label_filter(label))

    def require_gallery(self) -> "Gallery":
        if self.gallery is None:
            raise DearError("The server was started without a gallery: start it with --gallery GALLERY.")
        return self.gallery


class Api:
    """Handlers take the request itself: a body is read within our limits, and never by FastAPI."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._predict_settings = schemas.PredictSettings.of(service.engine.inferences)
        self._workers = anyio.CapacityLimiter(os.cpu_count() or 1)

    @property
    def router(self) -> APIRouter:
        api = APIRouter(tags=["API"], default_response_class=Json)
        posts = (
            ("/v1/predict", self.predict, "Classify images", (self._predict_settings, MOST_IMAGES, True)),
            ("/v1/search", self.search, "Find similar images in the gallery", (schemas.SearchSettings, 1, False)),
            ("/v1/embed", self.embed, "Features of images and texts", (schemas.EmbedSettings, MOST_IMAGES, False)),
        )
        for path, handler, summary, body in posts:
            documentation: dict[str, Any] = {
                "summary": summary,
                "responses": {**_REFUSED, **_BUSY},
                "openapi_extra": {"requestBody": schemas.request_body(*body)},
            }
            api.post(path, dependencies=[_TOKEN], response_model_exclude_unset=True, **documentation)(handler)
        secured: dict[str, Any] = {"dependencies": [_TOKEN], "responses": _REFUSED}
        gets: tuple[tuple[str, Callable, str, dict[str, Any]], ...] = (
            ("/v1/about", self.about, "The model and its limits", secured),
            ("/metrics", self.metrics, "Figures for Prometheus", {**secured, "response_class": _Metrics}),
            ("/healthz", self.healthz, "Whether the model works", {"responses": _STOPPED}),
        )
        for path, handler, summary, options in gets:
            api.get(path, summary=summary, **options)(handler)
            api.head(path, include_in_schema=False)(handler)  # FastAPI does not add it by itself
        return api

    async def predict(self, request: Request) -> schemas.Predictions:
        """One answer per image, in their order. If an image cannot be read, none is answered; the error says which."""
        async with self._read(request, self._predict_settings, self._service.engine.pixels) as (settings, pixels):
            if not pixels:
                raise DearError("The request has no image: send one as image.")
            answers = await wait_for_model(self._service.model.answers(pixels, settings.topk, settings.inference))
        records = [answer.to_json() for answer in answers]
        for record in records if not settings.votes else ():
            del record["votes"]
        return schemas.Predictions(answers=[schemas.Answer(**record) for record in records])

    async def search(self, request: Request) -> schemas.Hits:
        """The images most similar to one image or one text, best first. Needs a server started with --gallery."""
        self._service.require_gallery()
        async with self._read(request, schemas.SearchSettings, lambda image: image) as (settings, images):
            queries: list[Image.Image | str] = [*images, *([settings.text] if settings.text else [])]
            if len(queries) != 1:
                raise DearError("Search for one image or for one text.")
            hits = await run_in_threadpool(self._service.search, queries[0], settings.by, settings.k, settings.label)
        return schemas.Hits(hits=[schemas.Hit(**hit.to_json()) for hit in hits])

    async def embed(self, request: Request) -> schemas.Embeddings:
        """Features of length one: per image one per component, per text one that compares with any of them."""
        model, engine = self._service.model, self._service.engine
        async with self._read(request, schemas.EmbedSettings, engine.pixels) as (settings, pixels):
            texts = settings.texts
            if not pixels and not texts:
                raise DearError("The request has nothing to embed: send images or texts.")
            images = (await wait_for_model(model.features(pixels))).tolist() if pixels else []
            sentences = (await wait_for_model(model.call(lambda: engine.encode_text(texts)))).tolist() if texts else []
        by_component = [dict(zip(engine.components, features, strict=True)) for features in images]
        return schemas.Embeddings(images=by_component, texts=sentences)

    async def about(self) -> schemas.About:
        engine, gallery = self._service.engine, None
        if (opened := self._service.gallery) is not None:
            gallery = schemas.GallerySize(name=opened.folder.name, images=await run_in_threadpool(len, opened))
        return schemas.About(
            dear=__version__,
            run=self._service.name,
            backbone=short_name(engine.backbone),
            runtime=engine.runtime,  # type: ignore[arg-type]
            classes=list(engine.classes),
            components=list(engine.components),
            inferences=list(engine.inferences),
            gallery=gallery,
            limits=schemas.Limits(
                images=MOST_IMAGES, image_bytes=MAX_BYTES, request_bytes=MAX_BODY, request_pixels=MAX_REQUEST_PIXELS
            ),
        )

    async def healthz(self) -> schemas.Health:
        if not self._service.model.alive:
            raise RefusedError(503, "The model has stopped: start the server again.")
        return schemas.Health(status="ok")

    async def metrics(self) -> Response:
        return _Metrics(self._service.metrics.text())

    @asynccontextmanager
    async def _read(
        self, request: Request, model: type[schemas.SettingsKind], prepare: Callable[[Image.Image], T]
    ) -> AsyncIterator[tuple[schemas.SettingsKind, list[T]]]:
        """The settings of a request, and its images, prepared. They count as waiting until the block ends."""
        with ExitStack() as places:
            async with self._service.admission.body(request) as body:
                content_type = request.headers.get("content-type", "")
                # Parsing a small body takes less time than waking a thread for it.
                if len(body) <= _SMALL_BODY:
                    upload = parse_upload(content_type, body, model.model_fields)
                else:
                    upload = await run_in_threadpool(parse_upload, content_type, body, model.model_fields)
                settings = schemas.check_settings(upload.values, model)
                places.enter_context(self._service.admission.room_for(len(upload.images)))
                images = await self._in_worker(lambda: open_uploads(upload.images, prepare))
            upload.images.clear()
            yield settings, images

    async def _in_worker(self, job: Callable[[], T]) -> T:
        """Decoding needs a processor and memory: no more jobs at once than there are processors."""
        try:
            with anyio.fail_after(_ANSWER_SECONDS):  # in the queue; a job that has begun has a deadline of its own
                return await anyio.to_thread.run_sync(job, limiter=self._workers)
        except TimeoutError:
            raise busy() from None


class _Metrics(Response):
    media_type = "text/plain; version=0.0.4"


async def wait_for_model(future: "Future[T]") -> T:
    """The model's result, if it comes in time; else its place in the queue is given up."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), _ANSWER_SECONDS)
    except asyncio.TimeoutError:
        raise busy() from None


def label_filter(text: str) -> str | None:
    """SQL for labels that contain `text` in any case; LIKE would take some of its letters as wildcards."""
    quoted = text.strip().lower().replace("'", "''")
    return f"strpos(lower(label), '{quoted}') > 0" if quoted else None


def short_name(name: str) -> str:
    """The last part of a path; other names as they are."""
    kind, _, rest = name.partition(":")
    if kind in ("local-dir", "transformers") or (not rest and "/" in name):
        return Path(rest or name).name
    return name

"""The routes of the page. Every response is plain JSON, and no request can name a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dear.core.errors import DearError
from dear.core.figure import color_of
from dear.core.names import CLS
from dear.core.sheet import thumbnail_url
from dear.data.dataset import Picture
from dear.data.resolve import resolve_dataset
from dear.heads.map_table import map_record
from dear.heads.page import RENDERER
from dear.heads.pictures import PictureList, spread_evenly, world_pictures
from dear.methods.shared.role_settings import roles_of
from dear.server.api import Service, short_name
from dear.server.engines import TorchEngine
from dear.server.limits import Json
from dear.server.page.classify import classify
from dear.server.page.heads import HeadPictures, thumbnail
from dear.server.server import static_file
from dear.server.uploads import MAX_BYTES, TOO_MANY_BYTES, open_upload
from dear.training.run_folder import RunFolder

if TYPE_CHECKING:
    from dear.gallery import Gallery

_PAGE = Path(__file__).parent / "assets"
_EXAMPLES, _EXAMPLE_SIZE = 8, 160  # pictures, and pixels of a thumbnail
_HITS, _THUMBNAIL_SIZE = 12, 240
_MOST_PICTURES = 120  # from which the extremes of a head are chosen


@dataclass(frozen=True)
class StoredPicture:
    """A picture of the gallery, opened when it is needed."""

    gallery: "Gallery"
    path: str

    def open(self) -> Image.Image:
        return self.gallery.image(self.path)

    def content(self) -> bytes:
        return self.open().tobytes()


def pictures_of_heads(gallery: "Gallery | None", model: str) -> PictureList | None:
    """Pictures to inspect heads with: from the gallery, or from Attribute World for the model trained on it."""
    if gallery is not None and len(gallery):
        paths = sorted(gallery.paths())
        stored = [StoredPicture(gallery, path) for path in paths]
        return PictureList(f"the gallery {gallery.folder.name}", stored, paths).spread(_MOST_PICTURES)
    return world_pictures(_MOST_PICTURES) if model == "dear-mini" else None


@dataclass(frozen=True)
class PageRequest:
    """The query values and the body of a request."""

    values: dict[str, str]
    body: bytes = b""

    def number(self, name: str) -> int:
        try:
            return int(self.values[name])
        except (KeyError, ValueError):
            raise DearError(f"The request needs a whole number as {name}.") from None


class Page:
    """The views of the model in the folder `run`, and of its gallery."""

    def __init__(self, run: Path, service: Service) -> None:
        if not isinstance(service.engine, TorchEngine):
            raise DearError("The page inspects heads, which an exported model does not allow: give the run itself.")
        self.run, self.service, self.gallery = run, service, service.gallery
        self.predictor = predictor = service.engine.predictor
        self.on_model = service.model.wait_for
        self.examples = self._examples()
        pictures = pictures_of_heads(self.gallery, predictor.model.backbone.identity.model)
        self.head_pictures = HeadPictures(predictor, pictures, self.on_model)

    @property
    def routes(self) -> list[Route]:
        return [
            static_file("/", _PAGE / "index.html"),
            *(static_file(f"/{file.name}", file) for file in (*_PAGE.iterdir(), *RENDERER)),
            self._route("GET", "/api/about", self.about),
            self._route("POST", "/api/classify", self.classify),
            self._route("GET", "/api/heads", lambda _: map_record(roles_of(self.predictor.model))),
            self._route("GET", "/api/head-pictures", self.pictures_of_head),
            self._route("GET", "/api/starters", self.starters),
            self._route("POST", "/api/search", self.search),
        ]

    def _route(self, method: str, path: str, view: Callable[[PageRequest], Any]) -> Route:
        async def answer(request: Request) -> Response:
            admission = self.service.admission
            async with admission.body(request) as body:
                with admission.room_for(1):
                    content = await run_in_threadpool(view, PageRequest(dict(request.query_params), body))
            return Json(content)

        return Route(path, answer, methods=[method])

    def about(self, _: PageRequest) -> dict[str, Any]:
        """Facts that the page needs before anything else."""
        model = self.predictor.model
        gallery: dict[str, Any] | None = None
        if self.gallery is not None:
            gallery = {"name": self.gallery.folder.name, "images": len(self.gallery)}
            gallery["components"] = _colored(self.gallery.components)
        return {
            "backbone": short_name(model.backbone.identity.model),
            "classes": list(self.predictor.classes),
            "run": self.run.resolve().name,
            "components": _colored(model.components),
            "examples": [{"image": image, "name": name} for _, name, image in self.examples],
            "gallery": gallery,
            "max_bytes": MAX_BYTES,
            "too_many_bytes": TOO_MANY_BYTES,
        }

    def classify(self, request: PageRequest) -> dict[str, Any]:
        if "example" in request.values:
            number = request.number("example")
            if not 0 <= number < len(self.examples):
                raise DearError(f"There is no example {number}.")
            picture = self.examples[number][0].open()
        else:
            picture = open_upload(request.body)
        return classify(self.predictor, picture, self.on_model)

    def pictures_of_head(self, request: PageRequest) -> dict[str, Any]:
        return self.head_pictures.extremes((request.number("layer"), request.number("head")))

    def starters(self, _: PageRequest) -> list[dict[str, Any]]:
        """Images to start a search from, spread over the gallery."""
        gallery = self.service.require_gallery()
        chosen = spread_evenly(sorted(gallery.paths()), _HITS)
        return [{"path": path, "image": thumbnail(StoredPicture(gallery, path), _THUMBNAIL_SIZE)} for path in chosen]

    def search(self, request: PageRequest) -> dict[str, Any]:
        """Hits for the picture in the body, for one of the gallery (`like`), or for a sentence (`text`)."""
        gallery, values = self.service.require_gallery(), request.values
        query: Image.Image | str
        if request.body:
            query = open_upload(request.body)
        elif "like" in values:
            query = gallery.image(values["like"])  # refuses what is not in the gallery
        elif values.get("text", "").strip():
            query = values["text"].strip()
        else:
            raise DearError("Choose an image or write a sentence to search for.")
        hits = self.service.search(query, values.get("by", CLS), _HITS, values.get("label", ""))
        return {
            "query": None if isinstance(query, str) else thumbnail_url(query, _THUMBNAIL_SIZE),
            "hits": [
                {**hit.to_json(), "image": thumbnail(StoredPicture(gallery, hit.path), _THUMBNAIL_SIZE)} for hit in hits
            ],
        }

    def _examples(self) -> list[tuple[Picture, str, str]]:
        """Pictures to try, their names, and their thumbnails."""
        chosen = spread_evenly(self._example_pictures(), _EXAMPLES)
        return [(picture, name, image) for picture, name in chosen if (image := thumbnail(picture, _EXAMPLE_SIZE))]

    def _example_pictures(self) -> list[tuple[Picture, str]]:
        """Pictures of the run's task if it is one of Attribute World, else of the gallery."""
        data = RunFolder(self.run).settings().get("data", "")
        if data.startswith("world:"):
            dataset = resolve_dataset(data)
            named = [(example.picture, dataset.classes[example.label]) for example in dataset.test]
            return [(picture, name) for picture, name in named if name in self.predictor.classes]
        if self.gallery is None:
            return []
        return [(StoredPicture(self.gallery, path), Path(path).stem) for path in sorted(self.gallery.paths())]


def _colored(components: Sequence[str]) -> list[dict[str, str]]:
    return [{"name": name, "color": color_of(name)} for name in components]

"""What the page asks for, and who answers it. Every answer is plain JSON; no request can name a file."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from dear import load
from dear.app.classify import classify, world_examples
from dear.app.colors import page_colors
from dear.app.heads import HeadPictures, head_map
from dear.app.pictures import StoredPicture, data_url, sample_pictures
from dear.app.runs import read_runs, short_name
from dear.app.safety import MAX_BYTES, TOO_MANY_BYTES, open_upload
from dear.data.dataset import Picture
from dear.errors import DearError
from dear.files import read_json
from dear.methods.roles import roles_of

if TYPE_CHECKING:
    from dear.gallery import Gallery

_EXAMPLE = 160  # pixels of a thumbnail


@dataclass(frozen=True)
class Request:
    """What came with a request: the values behind the question mark, and the body."""

    values: dict[str, str]
    body: bytes = b""

    def number(self, name: str) -> int:
        try:
            return int(self.values[name])
        except (KeyError, ValueError):
            raise DearError(f"The request needs a whole number as {name}.") from None


class Page:
    """An adapted model, maybe a gallery, and the folder its runs are in."""

    def __init__(self, run: Path, gallery: Path | None) -> None:
        self.run = run
        self.predictor = load(run)
        self.gallery = None if gallery is None else self._open_gallery(gallery)
        self._lock = threading.Lock()  # one picture at a time goes through the model
        self.examples = self._examples()
        model = self.predictor.model.backbone.identity.model
        self.head_pictures = HeadPictures(self.predictor, sample_pictures(self.gallery, model), self._lock)
        self.routes: dict[tuple[str, str], Callable[[Request], Any]] = {
            ("GET", "/api/about"): self.about,
            ("POST", "/api/classify"): self.classify,
            ("GET", "/api/heads"): lambda _: head_map(roles_of(self.predictor.model)),
            ("GET", "/api/head-pictures"): self.pictures_of_head,
            ("GET", "/api/starters"): self.starters,
            ("POST", "/api/search"): self.search,
            ("GET", "/api/runs"): lambda _: read_runs(self.run),
        }

    def about(self, _: Request) -> dict[str, Any]:
        """What the page must know before anything is asked."""
        model = self.predictor.model
        gallery = None
        if self.gallery is not None:
            gallery = {"name": self.gallery.folder.name, "images": len(self.gallery)}
        colors = page_colors(model.components)
        return {
            "backbone": short_name(model.backbone.identity.model),
            "classes": list(self.predictor.classes),
            "run": self.run.resolve().name,
            "components": [{"name": name, "color": colors[name]} for name in model.components],
            "examples": [{"image": image, "name": name} for _, name, image in self.examples],
            "gallery": gallery,
            "max_bytes": MAX_BYTES,
            "too_many_bytes": TOO_MANY_BYTES,
        }

    def classify(self, request: Request) -> dict[str, Any]:
        if "example" in request.values:
            number = request.number("example")
            if not 0 <= number < len(self.examples):
                raise DearError(f"There is no example {number}.")
            picture = self.examples[number][0].open()
        else:
            picture = open_upload(request.body)
        with self._lock:
            return classify(self.predictor, picture)

    def pictures_of_head(self, request: Request) -> dict[str, Any]:
        return self.head_pictures.extremes((request.number("layer"), request.number("head")))

    def starters(self, _: Request) -> list[dict[str, Any]]:
        from dear.app.search import starters

        return starters(self._need_gallery())

    def search(self, request: Request) -> dict[str, Any]:
        """By the picture in the body, by one of the gallery (`like`), or by a sentence (`text`)."""
        from dear.app.search import search

        gallery, values = self._need_gallery(), request.values
        query: Image.Image | str
        if request.body:
            query = open_upload(request.body)
        elif "like" in values:
            query = gallery.image(values["like"])  # refuses what is not in the gallery
        elif values.get("text", "").strip():
            query = values["text"].strip()
        else:
            raise DearError("Choose an image or write a sentence to search for.")
        with self._lock:
            return search(self.encoder, gallery, query, values.get("by", "cls"), values.get("label", ""))

    def _open_gallery(self, folder: Path) -> "Gallery":
        from dear.gallery import AdapterEncoder, Gallery

        gallery, self.encoder = Gallery.open(folder), AdapterEncoder(self.run, self.predictor)
        gallery.require(self.encoder)
        return gallery

    def _need_gallery(self) -> "Gallery":
        if self.gallery is None:
            raise DearError("The page was started without a gallery: start it with --gallery GALLERY.")
        return self.gallery

    def _examples(self) -> list[tuple[Picture, str, str]]:
        """Pictures to try, what they are called, and what shows them."""
        found = []
        for picture, name in self._example_pictures():
            with suppress(DearError):  # it was moved or removed since it was indexed
                found.append((picture, name, data_url(picture.open(), _EXAMPLE)))
        return found

    def _example_pictures(self) -> list[tuple[Picture, str]]:
        """Of the run's own task if that is drawn, else of the gallery."""
        config = self.run / "config.json"
        data = str(read_json(config).get("data", "")) if config.is_file() else ""
        if data.startswith("world:"):
            return [(example.picture, name) for example, name in world_examples(data, self.predictor.classes)]
        if self.gallery is None:
            return []
        paths = sorted(self.gallery.paths())
        return [(StoredPicture(self.gallery, path), Path(path).stem) for path in paths[:: max(1, len(paths) // 8)][:8]]

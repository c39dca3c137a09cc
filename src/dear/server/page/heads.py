"""The second view shows the role map; here are the pictures that a head responds to."""

import threading
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from dear.core.errors import DearError
from dear.core.sheet import thumbnail_url
from dear.data.dataset import Picture
from dear.heads.by_phrases import both_ends, encode_phrases
from dear.heads.contributions import HeadContributions
from dear.heads.pictures import PictureList
from dear.heads.role_map import Head
from dear.methods.shared.role_settings import roles_of
from dear.model.predictor import Predictor
from dear.server.model_thread import OnModel

_PICTURES_AT_ONCE = 4  # small: the other views wait while a batch is in the model
_SHOWN_SIZE = 160


class HeadPictures:
    """Finds the pictures that a head responds to most and least.

    All pictures go through the model once, in the background, after the first request: on a slow machine that takes
    minutes. They take the model for one batch at a time, so that the other views continue to answer.
    """

    def __init__(self, predictor: Predictor, pictures: PictureList | None, on_model: OnModel) -> None:
        self._predictor, self._pictures, self._on_model = predictor, pictures, on_model
        self._starting = threading.Lock()
        self._reader: threading.Thread | None = None
        self._done = 0
        self._codes: Tensor | None = None  # [readable pictures, layers, heads, head_dim + 3]
        self._readable: list[int] = []

    def extremes(self, head: Head) -> dict[str, Any]:
        """The pictures with most and least output of `head` along its first phrase; until all are read, the progress.

        Without phrases, along the direction in which its output varies most: its two ends are two kinds of pictures.
        """
        roles, pictures = roles_of(self._predictor.model), self._pictures
        if head not in roles.roles:
            raise DearError(f"The role map has no head {head[1]} in layer {head[0]}: choose one of the map.")
        if pictures is None:
            raise DearError("For the pictures that activate a head, start the page with --gallery GALLERY.")
        with self._starting:
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, args=(pictures,), daemon=True)
                self._reader.start()
        if self._reader.is_alive():
            return {"done": self._done, "of": len(pictures)}
        if self._codes is None:
            raise DearError(f"Too few pictures of {pictures.source} can be read to tell what a head responds to.")
        row = roles.layers.index(head[0])
        contributions = (self._codes[:, row, head[1]] @ self._maps[row, head[1]]).double()  # [pictures, dim]
        phrases = roles[head].phrases
        if phrases:
            backbone = self._predictor.model.backbone
            direction = self._on_model(lambda: encode_phrases(backbone, [phrases[0].text])[0])
        else:
            direction = main_direction(contributions)
        most, least = both_ends(contributions @ direction)
        return {
            "along": phrases[0].text if phrases else None,
            "source": pictures.source,
            "count": len(self._readable),
            "most": [thumbnail(pictures.pictures[self._readable[i]], _SHOWN_SIZE) for i in most],
            "least": [thumbnail(pictures.pictures[self._readable[i]], _SHOWN_SIZE) for i in least],
        }

    def _read(self, pictures: PictureList) -> None:
        model = self._predictor.model
        reader = self._on_model(lambda: HeadContributions(model.backbone, roles_of(model).layers[0]))
        self._maps = reader.maps.cpu()
        codes = []
        for start in range(0, len(pictures), _PICTURES_AT_ONCE):
            batch = range(start, min(start + _PICTURES_AT_ONCE, len(pictures)))
            good = {i: picture for i in batch if (picture := open_or_none(pictures.pictures[i])) is not None}
            if good:
                pixels = torch.stack(list(map(self._predictor.preprocess, good.values()))).to(model.backbone.device)
                codes.append(self._on_model(partial(reader.codes, pixels)).cpu())
                self._readable += good
            self._done = batch.stop
        if len(self._readable) >= 2:
            self._codes = torch.cat(codes)


def open_or_none(picture: Picture) -> Image.Image | None:
    """The opened picture; None if its file was moved or deleted since it was indexed."""
    try:
        return picture.open()
    except DearError:
        return None


def thumbnail(picture: Picture, size: int) -> str | None:
    """A small copy as an address, or None: what is said of the picture is shown all the same."""
    return None if (opened := open_or_none(picture)) is None else thumbnail_url(opened, size)


def main_direction(contributions: Tensor) -> Tensor:
    """The unit direction [dim] in which rows [pictures, dim] vary most; its sign points to the longer tail."""
    centred = contributions - contributions.mean(0)
    direction = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    return direction if (centred @ direction).pow(3).sum() >= 0 else -direction

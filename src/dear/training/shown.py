"""Pictures as they are shown to the frozen tower, and the stages at which the image store keeps them."""

from typing import NamedTuple

from dear.core.errors import DearError
from dear.data.check import picture_hash
from dear.data.dataset import ImageFile, Picture
from dear.methods.base import Method
from dear.methods.optional import ReadsHeads

CLEAN_VIEW = "eval"


class Stage(NamedTuple):
    """A point of the frozen tower: the states before a layer (after the last one: CLS alone), or what all heads from
    that layer on put out. The CLS state after the tower belongs to every stage."""

    layer: int
    heads: bool = False

    @classmethod
    def of(cls, model: Method) -> "Stage":
        """The stage at which a method begins."""
        if isinstance(model, ReadsHeads) and model.first_layer > model.backbone.image.layers:
            return cls(model.heads_from, True)
        return cls(model.first_layer)

    def __str__(self) -> str:
        return f"{'heads' if self.heads else 'layer'}-{self.layer}"


class Shown(NamedTuple):
    """A picture as it is shown: in a fixed training view, whose crops have at least the share `crop`, or as it is."""

    picture: Picture
    content: str
    view: int | None = None
    crop: float = 0.5

    def in_view(self, view: int | None, crop: float) -> "Shown":
        """The same picture in a fixed training view; None: as it is."""
        return self if view is None else Shown(self.picture, self.content, view, crop)

    @property
    def key(self) -> str:
        """Equal keys mean equal pixels, whatever file or object they come from."""
        crop = "" if self.crop == 0.5 else f"-crop-{self.crop:g}"  # 0.5 is the default
        return f"{self.content}-{CLEAN_VIEW if self.view is None else self.view}{crop}"

    def require_same(self, content: str = "") -> None:
        """Refuses a file whose content, now or as given, is not what it was."""
        if isinstance(self.picture, ImageFile) and (content or content_of(self.picture)) != self.content:
            raise DearError(
                f"The image {self.picture} changed while this command was at work: run it again when its files stay "
                "as they are."
            )


def content_of(picture: Picture) -> str:
    """A key of the content; a file is read again only if its size or time has changed."""
    return picture_hash(picture)[:32]

"""gallery.json: what the vectors of a gallery are, and what they were made with."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from dear.core.errors import DearError
from dear.core.files import parse_json, read_json, to_json, write_json
from dear.core.schema import Name, Positive, check_shape
from dear.core.version import __version__
from dear.gallery.place import is_folder

ABOUT = "gallery.json"
FORMAT = 2


@dataclass(frozen=True)
class GalleryInfo:
    encoder: Mapping[str, Any]  # `Encoder.source`
    components: tuple[str, ...]
    centred: tuple[str, ...]
    dim: int

    def write(self, folder: Any) -> None:
        """folder: as `dear.gallery.place` gives it."""
        value = {"format": FORMAT, "dear": __version__, **asdict(self)}
        if is_folder(folder):
            write_json(folder / ABOUT, value)
        else:
            (folder / ABOUT).write_text(to_json(value, indent=1) + "\n", encoding="utf-8")


class _AboutFile(TypedDict):
    encoder: dict[str, Any]
    components: list[Name]
    centred: list[Name]
    dim: Positive


def read_info(folder: Any) -> GalleryInfo:
    """Refuses what is missing, older, or not as it was written."""
    file = folder / ABOUT
    if not file.is_file():
        raise DearError(f"{folder} is not a gallery: it has no {ABOUT}. `dear index` makes one.")
    given = _read(file)
    found = given.get("format") if isinstance(given, dict) else None
    if type(found) is int and 0 < found < FORMAT:
        raise DearError(f"The gallery {folder} was made by an older dear: index its images again, into a new folder.")
    if type(found) is not int or found != FORMAT:
        raise DearError(f"{file} is not one that dear {__version__} can read: index the images again.")
    check_shape(given, _AboutFile, str(file), "index the images again")
    return GalleryInfo(given["encoder"], tuple(given["components"]), tuple(given["centred"]), given["dim"])


def _read(file: Any) -> Any:
    if is_folder(file):
        return read_json(file)
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DearError(f"{file} cannot be read as JSON: {error}.") from None

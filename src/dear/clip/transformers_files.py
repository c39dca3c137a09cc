"""The files of a model in the format of transformers: config, weights, preprocessor and tokenizer; no code.

The transformers package is not needed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from dear.clip.shapes import read_tensors_of
from dear.core.errors import DearError, first_line, library_errors, needing
from dear.core.files import read_json
from dear.core.schema import Finite, check_shape

TRANSFORMERS = "transformers:"
CONFIG = "config.json"
_PREPROCESSOR, _TOKENIZER, _WORDS = "preprocessor_config.json", "tokenizer.json", "vocab.txt"  # the last: BERT's
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in this order; each also in parts, with an index
_RESAMPLING = {2: "bilinear", 3: "bicubic"}  # as PIL numbers them


class _Index(TypedDict):
    weight_map: dict[str, str]


class _Preprocessor(TypedDict, total=False):
    image_mean: tuple[Finite, Finite, Finite] | None
    image_std: tuple[Finite, Finite, Finite] | None
    resample: int | None


def find_folder(source: str) -> Path:
    """A folder on disk, or a download from the hub of config, weights and preprocessor alone: no code."""
    name = source.removeprefix(TRANSFORMERS)
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, allow_patterns=_patterns(name)))
        except Exception as error:  # the hub client raises many kinds
            raise DearError(
                f"{name} is not a folder and could not be fetched: check the name and the network "
                f"({first_line(error)})."
            ) from error
    return folder


def _patterns(name: str) -> list[str]:
    """The files to download: config and preprocessor, and weights in the first form that there is; no code."""
    from huggingface_hub import HfApi

    others = [CONFIG, _PREPROCESSOR, _TOKENIZER, _WORDS]
    names = [file.rfilename for file in HfApi().model_info(name, timeout=10).siblings or ()]
    for weights in _WEIGHTS:
        stem, _, ending = weights.rpartition(".")
        if weights in names:
            return [*others, weights]
        if f"{weights}.index.json" in names:
            return [*others, f"{weights}.index.json", f"{stem}-*.{ending}"]
    return [*others, *_WEIGHTS]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, from safetensors if there are any, else from a pickle that may hold tensors only."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return read_tensors_of(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            parts = check_shape(read_json(index), _Index, str(index), "download it again")["weight_map"].values()
            if strange := [part for part in parts if Path(part).name != part]:
                raise DearError(f"{index} names {strange[0]}, which is not beside it: download it again.")
            tables = [read_tensors_of(folder / part) for part in dict.fromkeys(parts)]
            return {key: tensor for table in tables for key, tensor in table.items()}
    raise DearError(f"{folder} has no weights: it needs {' or '.join(_WEIGHTS)}, as transformers saves them.")


def read_pictures(folder: Path, source: str, size: int, default: dict[str, Any]) -> dict[str, Any]:
    """OpenCLIP's picture settings from a folder's preprocessor, with defaults for what it does not say."""
    file = folder / _PREPROCESSOR
    found = read_json(file) if file.is_file() else {}
    check_shape(found, _Preprocessor, f"{_PREPROCESSOR} of {source}", "save it again with transformers")
    given = {
        "mean": found.get("image_mean"),
        "std": found.get("image_std"),
        "interpolation": _RESAMPLING.get(found.get("resample") or 0),
    }
    return {**default, "size": size, **{key: value for key, value in given.items() if value}}


class FolderTokenizer:
    """The tokenizer.json of a folder, else BERT's of its vocab.txt, padded and cut to the context.

    `clean`: one of OpenCLIP's ways to clean texts.
    """

    def __init__(self, folder: Path, context_length: int, pad_id: int, clean: str = "whitespace") -> None:
        from open_clip.tokenizer import get_clean_fn

        with needing(f"{folder} has a tokenizer of its own", "'dear-vlm[hf]'"):
            from tokenizers import BertWordPieceTokenizer, Tokenizer
        read, file = Tokenizer.from_file, folder / _TOKENIZER
        if not file.is_file() and (folder / _WORDS).is_file():
            read, file = BertWordPieceTokenizer, folder / _WORDS  # in lower case, one token for each Chinese character
        if not file.is_file():
            raise DearError(
                f"{folder} has no {_TOKENIZER}: load its tokenizer once with transformers' AutoTokenizer and save it "
                "there with save_pretrained."
            )
        with library_errors(f"{file} cannot be read"):  # it raises no kind of its own
            self._tokenizer: Any = read(str(file))
        self.context_length, self._pad, self._clean = context_length, pad_id, get_clean_fn(clean)

    def __call__(self, texts: Sequence[str], context_length: int | None = None) -> Tensor:
        size = context_length or self.context_length
        self._tokenizer.enable_truncation(size)
        self._tokenizer.enable_padding(length=size, pad_id=self._pad)
        encoded = self._tokenizer.encode_batch([self._clean(text) for text in texts])
        return torch.tensor([one.ids for one in encoded])

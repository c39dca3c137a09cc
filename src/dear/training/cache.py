"""Caches: states of the constant layers, computed once per picture, on disk for all runs; keys and values in memory.

Evaluation pictures never change, so caching them is exact (fp32). Training views do change: N fixed ones (fp16, 300 kB
each for ViT-B/16) are not equivalent to fresh crops, but make comparisons of many settings cheap.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.clip import Backbone
from dear.clip.layer_input import CachedKV, CachedStates
from dear.core.errors import DearError
from dear.core.progress import Progress
from dear.core.runtime import free_memory, precision_name, to_device
from dear.core.tensors import read_tensors, save_tensors
from dear.data.augment import CLEAN, RANDOM, Batches, training_view
from dear.data.dataset import Example, Picture
from dear.data.loading import Mapped, decoding_loader, from_workers
from dear.parallel import processes

_BATCH = 16
_REMOVE = "remove it"
_SENT = 64  # pictures per exchange of states between processes
_LIMIT = 4 * 2**30  # bytes in host memory, for states, and again for keys and values
_GPU_SHARE = 0.4  # of the free memory of a GPU, for keys and values


class StateCache:
    """States before `first_layer`, one file per picture and view, under `folder`. Safe to share and to kill.

    Without a folder they stay in memory. After the last layer there is only CLS.
    """

    def __init__(
        self,
        folder: Path | None,
        backbone: Backbone,
        first_layer: int,
        workers: int | None = None,
        crop: float = 0.5,
        keys: dict[Picture, str] | None = None,
    ) -> None:
        """`keys`: of pictures, shared by caches, so that no file is read twice for its key."""
        self.backbone, self.first_layer, self.workers, self.crop = backbone, first_layer, workers, crop
        # "upright": photos are rotated by their EXIF orientation
        preprocessing = f"{backbone.identity.weights}{backbone.image.image_size}{backbone.mean}{backbone.std}upright"
        preprocessing += backbone.states_key
        if backbone.precision is not torch.float32:  # its states are not those of fp32
            preprocessing += precision_name(backbone.precision)
        self.folder = Path(f"{hashlib.sha256(preprocessing.encode()).hexdigest()[:12]}-layer-{first_layer}")
        self._memory: dict[Path, dict[str, Tensor]] | None = {} if folder is None else None
        if folder is not None:
            self.folder = folder / self.folder
        self._keys = {} if keys is None else keys
        self._read_before: dict[Path, dict[str, Tensor]] = {}  # after the last layer: small, and wanted in every epoch

    def has_room(self, pictures: int) -> bool:
        """Whether the states of this number of pictures can be cached: always on disk, up to a limit in memory."""
        tower = self.backbone.image
        tokens = tower.originals if self.first_layer <= tower.layers else 1
        return self._memory is None or pictures * tokens * tower.width * 4 <= _LIMIT

    def prepare(self, examples: Sequence[Example], view: int | None, title: str) -> None:
        """Computes the missing states. `view` is the number of a fixed training view; None: as in evaluation."""
        missing = {self._path(e.picture, view): e.picture for e in examples}
        missing = {path: picture for path, picture in missing.items() if not self._is_cached(path)}
        if self.first_layer > self.backbone.image.layers:
            missing = {path: picture for path, picture in missing.items() if not self._copy_from_other_layer(path)}
        if not missing:
            return
        paths = list(missing)
        transform = self.backbone.preprocess if view is None else training_view(self.backbone, self.crop)

        def decode(path: Path) -> Tensor:
            with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
                torch.manual_seed(int(hashlib.sha256(path.stem.encode()).hexdigest()[:15], 16))
                return transform(missing[path].open())

        pinned = self.backbone.device.type == "cuda"
        loader = decoding_loader(Mapped(paths, decode), _BATCH, self.workers, pinned)
        pending = iter(paths)
        with Progress(f"{title}: states", len(paths)) as bar:
            for pixels in from_workers(loader):
                for states, cls in zip(*self._compute(to_device(pixels, self.backbone.device)), strict=True):
                    states = states if view is None else states.half()
                    # If no layer is adapted both are one tensor, which a file may not contain twice.
                    self._write(next(pending), {"states": states.cpu().contiguous(), "cls": cls.cpu().clone()})
                bar.update(len(pixels))

    def prepare_together(self, examples: Sequence[Example], view: int | None, title: str) -> None:
        """`prepare` by all processes of a run: each computes its local pictures, and gets the others from disk or by
        exchange."""
        if processes.world_size() > 1:
            local = processes.local_rows(examples)
            self.prepare(local, view, title)
            if self._memory is None:
                processes.barrier()
            else:
                for start in range(0, -(-len(examples) // processes.world_size()), _SENT):
                    paths = [self._path(e.picture, view) for e in local[start : start + _SENT]]
                    for part in processes.all_gather_objects({path: self._memory[path] for path in paths}):
                        self._memory |= part
        self.prepare(examples, view, title)

    def read(self, examples: Sequence[Example], view: int | None = None) -> CachedStates:
        """The states of examples that `prepare` has had."""
        entries = [self._read(e, view) for e in examples]
        return CachedStates(torch.stack([e["states"] for e in entries]), torch.stack([e["cls"] for e in entries]))

    def batches(
        self, examples: Sequence[Example], title: str, batch: int = 64, reader: "KVReader | None" = None
    ) -> Iterator[tuple[Any, Tensor]]:
        """`evaluation_batches` with cached states, or keys and values, instead of pixels."""
        self.prepare(examples, None, title)
        with Progress(title, len(examples)) as bar:
            for start in range(0, len(examples), batch):
                part = examples[start : start + batch]
                yield (reader or self).read(part), torch.tensor([e.label for e in part])
                bar.update(len(part))

    def _read(self, example: Example, view: int | None) -> dict[str, Tensor]:
        path = self._path(example.picture, view)
        known = self._read_before if self._memory is None else self._memory
        if path in known:
            return known[path]
        try:
            entry, _ = read_tensors(path, _REMOVE)
        except DearError:  # damaged: computed again
            path.unlink(missing_ok=True)
            self.prepare([example], view, "again")
            entry, _ = read_tensors(path, _REMOVE)
        tower = self.backbone.image
        tokens = tower.originals if self.first_layer <= tower.layers else 1
        if {name: tuple(value.shape) for name, value in entry.items()} != {
            "states": (tokens, tower.width if tokens > 1 else tower.read_width),
            "cls": (tower.read_width,),
        }:
            raise DearError(f"{path} does not contain cached states of this backbone: {_REMOVE}.")
        if tokens == 1 and len(self._read_before) * tower.read_width * 8 < _LIMIT:
            self._read_before[path] = entry
        return entry

    def _is_cached(self, path: Path) -> bool:
        return path.exists() if self._memory is None else path in self._memory

    def _write(self, path: Path, entry: dict[str, Tensor]) -> None:
        if self._memory is not None:
            self._memory[path] = {name: value.clone() for name, value in entry.items()}  # not a view of the batch
            return
        save_tensors(path, entry)

    def _copy_from_other_layer(self, path: Path) -> bool:
        """Copies CLS after the last layer, which is cached with the states of every first layer; False: none there."""
        if self._memory is not None:
            return False
        layers = self.folder.parent.glob(self.folder.name.rpartition("-")[0] + "-*")
        for other in (layer / path.relative_to(self.folder) for layer in layers):
            if other.exists():
                with suppress(DearError):
                    cls = read_tensors(other, _REMOVE)[0]["cls"]
                    self._write(path, {"states": cls[None].clone(), "cls": cls})
                    return True
        return False

    @torch.no_grad()
    def _compute(self, pixels: Tensor) -> CachedStates:
        tower = self.backbone.image
        x = tower.layer_input(pixels, self.first_layer)
        return CachedStates(x.states.clone(), tower.cls_state(x))  # a file may not contain a tensor twice

    def _path(self, picture: Picture, view: int | None) -> Path:
        if picture not in self._keys:
            self._keys[picture] = hashlib.sha256(picture.content()).hexdigest()[:32]
        key = self._keys[picture]
        # The crops of a view depend on their smallest share; 0.5 is the default.
        name = "eval" if view is None else str(view) if self.crop == 0.5 else f"{view}-crop-{self.crop:g}"
        return self.folder / key[:2] / f"{key}-{name}.safetensors"


class KVCache:
    """Constant keys and values that learned tokens attend to, in the precision of the backbone.

    On a GPU they take a share of its free memory, and what has no room there waits in pinned host memory.
    """

    def __init__(self) -> None:
        self._key: Hashable = None
        self._entries: dict[tuple[Picture, int | None], CachedKV] = {}
        self._room = self._host_room = 0

    def clear(self) -> None:
        self._key = None
        self._entries.clear()

    def reader(self, states: StateCache, compute: Callable[[CachedStates], CachedKV], key: Hashable) -> "KVReader":
        """Equal keys mean equal tensors; only the entries of the last key stay in memory."""
        if (key, states.crop) != self._key:
            self.clear()
            device = states.backbone.device
            self._key, self._host_room = (key, states.crop), _LIMIT
            self._room = int(_GPU_SHARE * free_memory(device)) if device.type == "cuda" else 0
        return KVReader(self, states, compute)

    def get(self, picture: Picture, view: int | None) -> CachedKV | None:
        return self._entries.get((picture, view))

    def put(self, picture: Picture, view: int | None, entry: CachedKV) -> None:
        size = sum(part.nbytes for part in entry)
        if size <= self._room:
            self._room -= size
        elif size <= self._host_room:
            self._host_room -= size
            if not entry.frozen_cls.is_cpu:
                entry = CachedKV(*(part.cpu().pin_memory() for part in entry))
        else:
            return
        self._entries[picture, view] = entry


@dataclass(frozen=True)
class KVReader:
    """Reads keys and values computed from the states of a `StateCache`, in its place."""

    cache: KVCache
    states: StateCache
    compute: Callable[[CachedStates], CachedKV]

    def read(self, examples: Sequence[Example], view: int | None = None) -> CachedKV:
        device = self.states.backbone.device
        entries = [self.cache.get(example.picture, view) for example in examples]
        missing = [i for i, entry in enumerate(entries) if entry is None]
        # On the CPU one image at a time, so that their last bits do not depend on the batch; on a GPU all at once.
        parts = [[i] for i in missing] if device.type == "cpu" else [missing] if missing else []
        for part in parts:
            computed = self.compute(to_device(self.states.read([examples[i] for i in part], view), device))
            for row, i in enumerate(part):
                # A copy: a view would keep the tensors of the whole batch.
                entries[i] = entry = CachedKV(*(tensor[row : row + 1].clone() for tensor in computed))
                self.cache.put(examples[i].picture, view, entry)
        return _concatenate([to_device(entry, device) for entry in entries])


class CachedViews:
    """Batches of cached views, in place of `FreshViews`: each epoch uses the next of `fixed` random views.

    `reader`, if any, replaces `states`.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        states: StateCache,
        batches: Batches,
        fixed: int,
        views: Sequence[str] = (RANDOM,),
        reader: KVReader | None = None,
    ) -> None:
        self.examples, self.states, self.batches, self.reader = examples, states, batches, reader
        self.fixed, self.views = fixed, views
        for view in range(fixed if RANDOM in views else 0):
            states.prepare_together(examples, view, f"view {view + 1} of {fixed}")
        if CLEAN in views:
            states.prepare_together(examples, None, "clean view")

    def epoch(self, number: int) -> "_CachedEpoch":
        return _CachedEpoch(self, number)

    def read(self, examples: Sequence[Example], views: Sequence[int | None]) -> Any:
        """One view after the other, along the batch."""
        return _concatenate([(self.reader or self.states).read(examples, view) for view in views])


class _CachedEpoch:
    def __init__(self, data: CachedViews, number: int) -> None:
        self.data, self.batches, self.labels = data, data.batches.of_epoch(number), data.batches.labels_of_epoch(number)
        random = list(data.views).count(RANDOM)
        fixed = iter([(number * random + view) % data.fixed for view in range(random)])
        self.views: list[int | None] = [next(fixed) if kind == RANDOM else None for kind in data.views]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for batch, labels in zip(self.batches, self.labels, strict=True):
            part = [self.data.examples[i] for i in processes.local_rows(batch)]
            yield self.data.read(part, self.views), labels


def _concatenate(parts: Sequence[Any]) -> Any:
    """Named tuples of tensors, concatenated along the batch."""
    if len(parts) == 1:
        return parts[0]
    return type(parts[0])(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

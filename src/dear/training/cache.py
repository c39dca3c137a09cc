"""Kept states: what the frozen part of the image tower makes of a picture, computed once, on disk for all runs.

Evaluation pictures never change, so keeping them is exact (fp32). Training views do change, so keeping N fixed ones
(fp16, 300 kB each for ViT-B/16) is not the same as fresh crops: it is for comparing many settings cheaply.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from dear.clip import Backbone
from dear.clip.image import CachedKV, CachedStates
from dear.core.errors import DearError
from dear.core.files import read_bytes
from dear.core.progress import Progress
from dear.core.tensors import read_tensors, save_tensors
from dear.data.augment import Batches, training_view
from dear.data.dataset import Example, ImageFile, Picture
from dear.data.loading import from_workers
from dear.parallel import processes

_BATCH = 16
_SENT = 64  # pictures whose states are sent to other processes at once
_HELD = 4 * 2**30  # bytes of memory, for states and for what is made of them


class StateStore:
    """States before `first_layer`, one file for each picture and view, under `folder`. Safe to share and to kill.

    Without a folder they are kept in memory. Behind the last layer there is only CLS to keep.
    """

    def __init__(
        self, folder: Path | None, backbone: Backbone, first_layer: int, workers: int = 2, crop: float = 0.5
    ) -> None:
        self.backbone, self.first_layer, self.workers, self.crop = backbone, first_layer, workers, crop
        # "upright": photos are turned as their EXIF note says
        seen_as = f"{backbone.identity.weights}{backbone.image.image_size}{backbone.mean}{backbone.std}upright"
        self.folder = Path(f"{hashlib.sha256(seen_as.encode()).hexdigest()[:12]}-layer-{first_layer}")
        self._memory: dict[Path, dict[str, Tensor]] | None = {} if folder is None else None
        if folder is not None:
            self.folder = folder / self.folder
        self._keys: dict[Picture, str] = {}

    def has_room(self, pictures: int) -> bool:
        """Whether the states of so many can be kept: on disk always, in memory if they take no more than is held."""
        tower = self.backbone.image
        places = 1 + tower.grid[0] * tower.grid[1] if self.first_layer <= tower.layers else 1
        return self._memory is None or pictures * places * tower.width * 4 <= _HELD

    def prepare(self, examples: Sequence[Example], view: int | None, title: str) -> None:
        """Computes what is not there yet. `view` is the number of a fixed training view; None: as in evaluation."""
        missing = {self._path(e.picture, view): e.picture for e in examples}
        missing = {path: picture for path, picture in missing.items() if not self._there(path)}
        if self.first_layer > self.backbone.image.layers:
            missing = {path: picture for path, picture in missing.items() if not self._found_elsewhere(path)}
        if not missing:
            return
        paths = list(missing)
        transform = self.backbone.preprocess if view is None else training_view(self.backbone, self.crop)
        loader = DataLoader(
            _Seeded(list(missing.values()), [p.stem for p in paths], transform), _BATCH, num_workers=self.workers
        )
        done = iter(paths)
        with Progress(f"{title}: states", len(paths)) as bar:
            for pixels in from_workers(loader):
                for states, cls in zip(*self._compute(pixels.to(self.backbone.device)), strict=True):
                    kept = states if view is None else states.half()
                    # Where nothing is adapted the two are one tensor, which a file may not hold twice.
                    self._write(next(done), {"states": kept.cpu().contiguous(), "cls": cls.cpu().clone()})
                bar.update(len(pixels))

    def prepare_together(self, examples: Sequence[Example], view: int | None, title: str) -> None:
        """As `prepare`, by all processes of a run: each computes its part, and finds those of others on disk, or gets
        them from them."""
        if processes.world() > 1:
            own = processes.local_rows(examples)
            self.prepare(own, view, title)
            if self._memory is None:
                processes.wait()
            else:
                for start in range(0, -(-len(examples) // processes.world()), _SENT):  # a part at a time
                    paths = [self._path(e.picture, view) for e in own[start : start + _SENT]]
                    for found in processes.tell_all({path: self._memory[path] for path in paths}):
                        self._memory |= found
        self.prepare(examples, view, title)

    def read(self, examples: Sequence[Example], view: int | None = None) -> CachedStates:
        """Of examples that `prepare` has seen."""
        found = [self._read(e, view) for e in examples]
        return CachedStates(torch.stack([f["states"] for f in found]), torch.stack([f["cls"] for f in found]))

    def batches(
        self, examples: Sequence[Example], title: str, batch: int = 64, held: "CachedKVReader | None" = None
    ) -> Iterator[tuple[Any, Tensor]]:
        """As `evaluation_batches`, with states, or what is held of them, instead of pixels."""
        self.prepare(examples, None, title)
        with Progress(title, len(examples)) as bar:
            for start in range(0, len(examples), batch):
                part = examples[start : start + batch]
                yield (held or self).read(part), _labels(part)
                bar.update(len(part))

    def _read(self, example: Example, view: int | None) -> dict[str, Tensor]:
        path = self._path(example.picture, view)
        if self._memory is not None:
            return self._memory[path]
        try:
            found, _ = read_tensors(path)
        except DearError:  # damaged: what was computed once can be computed again
            path.unlink(missing_ok=True)
            self.prepare([example], view, "again")
            found, _ = read_tensors(path)
        if found.keys() != {"states", "cls"}:
            raise DearError(f"{path} does not hold kept states: remove it.")
        return found

    def _there(self, path: Path) -> bool:
        return path.exists() if self._memory is None else path in self._memory

    def _write(self, path: Path, kept: dict[str, Tensor]) -> None:
        if self._memory is not None:
            self._memory[path] = {name: value.clone() for name, value in kept.items()}  # not a view of the batch
            return
        save_tensors(path, kept)

    def _found_elsewhere(self, path: Path) -> bool:
        """CLS behind the last layer is kept with the states before any layer: taken over from there."""
        if self._memory is not None:
            return False
        layers = self.folder.parent.glob(self.folder.name.rpartition("-")[0] + "-*")
        for other in (layer / path.relative_to(self.folder) for layer in layers):
            if other.exists():
                with suppress(DearError):
                    cls = read_tensors(other)[0]["cls"]
                    self._write(path, {"states": cls[None].clone(), "cls": cls})
                    return True
        return False

    @torch.no_grad()
    def _compute(self, pixels: Tensor) -> CachedStates:
        tower = self.backbone.image
        if self.first_layer > tower.layers:
            cls = tower.read_cls(tower.enter(tower.embed(pixels), 1))
            return CachedStates(cls[:, None].clone(), cls)  # a file holds no tensor twice
        states = tower.trunk(pixels, self.first_layer - 1)
        entry = tower.enter(states, self.first_layer, only_cls=self.first_layer == tower.layers)
        return CachedStates(states, tower.read_cls(entry))

    def _path(self, picture: Picture, view: int | None) -> Path:
        if picture not in self._keys:
            content = read_bytes(picture.path) if isinstance(picture, ImageFile) else repr(picture).encode()
            self._keys[picture] = hashlib.sha256(content).hexdigest()[:32]
        key = self._keys[picture]
        # The crops of a view depend on their smallest share; 0.5 is the usual one.
        name = "eval" if view is None else str(view) if self.crop == 0.5 else f"{view}-crop-{self.crop:g}"
        return self.folder / key[:2] / f"{key}-{name}.safetensors"


class KVCache:
    """What learned tokens read, where that is constant, made of kept states: in memory, as far as it fits."""

    def __init__(self) -> None:
        self._name: Hashable = None
        self._made: dict[tuple[Picture, int | None], CachedKV] = {}
        self._bytes = 0

    def reader(self, store: StateStore, reads: Callable[[CachedStates], CachedKV], name: Hashable) -> "CachedKVReader":
        """`name` is equal where what `reads` makes is; of two names only the later is held."""
        if (name, store.crop) != self._name:
            self._name, self._bytes = (name, store.crop), 0
            self._made.clear()
        return CachedKVReader(self, store, reads)

    def find(self, picture: Picture, view: int | None, make: Callable[[], CachedKV]) -> CachedKV:
        if (picture, view) in self._made:
            return self._made[picture, view]
        made = make()
        self._bytes += (size := sum(part.nbytes for part in made))
        if self._bytes <= _HELD:
            self._made[picture, view] = made
        else:
            self._bytes -= size
        return made


@dataclass(frozen=True)
class CachedKVReader:
    """In the place of a `StateStore`: what `reads` makes of the states, instead of these."""

    held: KVCache
    store: StateStore
    reads: Callable[[CachedStates], CachedKV]

    def read(self, examples: Sequence[Example], view: int | None = None) -> CachedKV:
        return _joined([self.held.find(e.picture, view, partial(self._make, e, view)) for e in examples])

    def _make(self, example: Example, view: int | None) -> CachedKV:
        """Of one image alone, so that it does not depend in its last bits on when it was first asked for."""
        return self.reads(self.store.read([example], view).to(self.store.backbone.device))


class KeptViews:
    """Batches of kept views, in the place of `TrainingData`: each epoch takes the next of the `fixed` ones.

    `held`, if given, is read instead of `store`.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        store: StateStore,
        batches: Batches,
        fixed: int,
        views: int = 1,
        clean_view: bool = False,
        held: CachedKVReader | None = None,
    ) -> None:
        self.examples, self.store, self.batches, self.held = examples, store, batches, held
        self.fixed, self.views, self.clean_view = fixed, views, clean_view
        for view in range(fixed if views else 0):
            store.prepare_together(examples, view, f"view {view + 1} of {fixed}")
        if clean_view:
            store.prepare_together(examples, None, "clean view")

    def epoch(self, number: int) -> "_KeptEpoch":
        return _KeptEpoch(self, number)

    def read(self, examples: Sequence[Example], views: Sequence[int | None]) -> Any:
        """One view after the other."""
        return _joined([(self.held or self.store).read(examples, view) for view in views])


class _KeptEpoch:
    def __init__(self, data: KeptViews, number: int) -> None:
        self.data, self.batches, self.labels = data, data.batches.of_epoch(number), data.batches.labels_of_epoch(number)
        self.shown: list[int | None] = [(number * data.views + view) % data.fixed for view in range(data.views)]
        if data.clean_view:
            self.shown.append(None)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for batch, labels in zip(self.batches, self.labels, strict=True):
            part = [self.data.examples[i] for i in processes.local_rows(batch)]
            yield self.data.read(part, self.shown), labels


def _joined(parts: Sequence[Any]) -> Any:
    """Named tuples of tensors, one after the other along the batch."""
    if len(parts) == 1:
        return parts[0]
    return type(parts[0])(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _labels(examples: Sequence[Example]) -> Tensor:
    return torch.tensor([e.label for e in examples])


class _Seeded(TorchDataset):
    """Each picture under a transform whose randomness its own name decides."""

    def __init__(self, pictures: Sequence[Picture], names: Sequence[str], transform: Callable) -> None:
        self.pictures, self.names, self.transform = pictures, names, transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
            torch.manual_seed(int(hashlib.sha256(self.names[index].encode()).hexdigest()[:15], 16))
            return self.transform(self.pictures[index].open())

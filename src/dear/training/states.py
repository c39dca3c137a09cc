"""Kept states: what the frozen part of the image tower makes of a picture, computed once, on disk for all runs.

Evaluation pictures never change, so keeping them is exact (fp32). Training views do change, so keeping N fixed ones
(fp16, 300 kB each for ViT-B/16) is not the same as fresh crops: it is for comparing many settings cheaply.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from tqdm import tqdm

from dear.backbone import Backbone
from dear.backbone.image import TrunkStates
from dear.data.augment import TrainingData, epoch_order, training_view
from dear.data.dataset import Example, ImageFile, Picture
from dear.data.loading import from_workers
from dear.errors import DearError
from dear.files import atomic_path
from dear.training.config import TrainConfig

_BATCH = 16


class StateStore:
    """States before `first_layer`, one file for each picture and view, under `folder`. Safe to share and to kill."""

    def __init__(self, folder: Path, backbone: Backbone, first_layer: int, workers: int = 2) -> None:
        self.backbone, self.first_layer, self.workers = backbone, first_layer, workers
        seen_as = f"{backbone.identity.weights}{backbone.image.image_size}{backbone.mean}{backbone.std}"
        self.folder = folder / f"{hashlib.sha256(seen_as.encode()).hexdigest()[:12]}-layer-{first_layer}"
        self._keys: dict[Picture, str] = {}

    def prepare(self, examples: Sequence[Example], view: int | None, title: str) -> None:
        """Computes what is not there yet. `view` is the number of a fixed training view; None: as in evaluation."""
        missing = {self._path(e.picture, view): e.picture for e in examples}
        missing = {path: picture for path, picture in missing.items() if not path.exists()}
        if not missing:
            return
        paths = list(missing)
        transform = self.backbone.preprocess if view is None else training_view(self.backbone)
        loader = DataLoader(
            _Seeded(list(missing.values()), [p.stem for p in paths], transform), _BATCH, num_workers=self.workers
        )
        done = iter(paths)
        with tqdm(total=len(paths), desc=f"{title}: states", unit="image", leave=False, disable=None) as bar:
            for pixels in from_workers(loader):
                for states, cls in zip(*self._compute(pixels.to(self.backbone.device)), strict=True):
                    kept = states if view is None else states.half()
                    with atomic_path(next(done)) as temporary:
                        save_file({"states": kept.cpu().contiguous(), "cls": cls.cpu().contiguous()}, temporary)
                bar.update(len(pixels))

    def read(self, examples: Sequence[Example], view: int | None = None) -> TrunkStates:
        """Of examples that `prepare` has seen."""
        found = [load_file(self._path(e.picture, view)) for e in examples]
        return TrunkStates(torch.stack([f["states"] for f in found]), torch.stack([f["cls"] for f in found]))

    def batches(self, examples: Sequence[Example], title: str, batch: int = 64) -> Iterator[tuple[TrunkStates, Tensor]]:
        """As `evaluation_batches`, with states instead of pixels."""
        self.prepare(examples, None, title)
        with tqdm(total=len(examples), desc=title, unit="image", leave=False, disable=None) as bar:
            for start in range(0, len(examples), batch):
                part = examples[start : start + batch]
                yield self.read(part), torch.tensor([e.label for e in part])
                bar.update(len(part))

    @torch.no_grad()
    def _compute(self, pixels: Tensor) -> TrunkStates:
        tower = self.backbone.image
        states = tower.trunk(pixels, self.first_layer - 1)
        entry = tower.enter(states, self.first_layer, only_cls=self.first_layer == tower.layers)
        return TrunkStates(states, tower.read_cls(entry))

    def _path(self, picture: Picture, view: int | None) -> Path:
        if picture not in self._keys:
            content = picture.path.read_bytes() if isinstance(picture, ImageFile) else repr(picture).encode()
            self._keys[picture] = hashlib.sha256(content).hexdigest()[:32]
        key = self._keys[picture]
        return self.folder / key[:2] / f"{key}-{'eval' if view is None else view}.safetensors"


class KeptViews:
    """Shuffled batches of kept views, in the place of `TrainingData`: epoch e sees view e mod `views` of each image."""

    def __init__(self, examples: Sequence[Example], store: StateStore, views: int, seed: int, batch: int) -> None:
        self.examples, self.store, self.views, self.seed, self.batch = examples, store, views, seed, batch
        for view in range(views):
            store.prepare(examples, view, f"view {view + 1} of {views}")

    def epoch(self, number: int) -> "_KeptEpoch":
        return _KeptEpoch(self, number)


def training_data(
    examples: Sequence[Example], backbone: Backbone, first_layer: int, train: TrainConfig, states: Path | None
) -> TrainingData | KeptViews:
    """Fresh views in every epoch; or, with `train.fixed_views`, so many fixed ones, their states kept in `states`."""
    if not train.fixed_views:
        return TrainingData(examples, backbone, train.seed, train.batch, train.workers)
    if states is None:
        raise DearError("--fixed-views needs a folder for the states of its views: add --states FOLDER.")
    store = StateStore(states, backbone, first_layer, train.workers)
    return KeptViews(examples, store, train.fixed_views, train.seed, train.batch)


class _KeptEpoch:
    def __init__(self, data: KeptViews, number: int) -> None:
        self.data, self.number = data, number

    def __len__(self) -> int:
        return -(-len(self.data.examples) // self.data.batch)

    def __iter__(self) -> Iterator[tuple[TrunkStates, Tensor]]:
        data = self.data
        order = epoch_order(len(data.examples), data.seed, self.number)
        for start in range(0, len(order), data.batch):
            part = [data.examples[i] for i in order[start : start + data.batch]]
            yield data.store.read(part, self.number % data.views), torch.tensor([e.label for e in part])


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

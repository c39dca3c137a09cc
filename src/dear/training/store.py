"""The image store: what the frozen tower makes of each picture, computed once, in memory or on disk for all runs.

Evaluation pictures never change, so keeping their states is exact (fp32). Training views do change: N fixed ones (fp16,
300 kB each for ViT-B/16) are not equivalent to fresh crops, but make comparisons of many settings cheap.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from dear.clip import Backbone
from dear.clip.layer_input import CachedHeads, CachedKV, CachedStates, Images
from dear.clip.masks import Masks
from dear.core.errors import DearError
from dear.core.progress import Progress
from dear.core.runtime import HostRows, free_memory, precision_name, to_device
from dear.core.tensors import read_tensors, save_tensors
from dear.data.augment import training_view
from dear.data.columns import Mapped
from dear.data.dataset import Example, ImageFile
from dear.data.loading import decoding_loader, from_workers
from dear.parallel import processes
from dear.training.shown import CLEAN_VIEW, Shown, Stage, content_of

_BATCH = 64
_REMOVE = "remove it"
_SENT = 64  # pictures per exchange of states between processes
_LIMIT = 4 * 2**30  # bytes in host memory, for states, and again for keys and values; half of what is free, if less
_GPU_SHARE = 0.4  # of the free memory of a GPU, for keys and values


Entry = dict[str, Tensor]
"""The tensors of one picture at a stage: cls, and states or outputs."""


class ImageStore:
    """Tensors of pictures by content, view and stage. With `folder`, one file for each, safe to share and to kill.

    CLS and head outputs are small and stay in memory as well; states do so without a folder only, up to a limit. The
    pictures themselves are not kept.
    """

    def __init__(self, backbone: Backbone, folder: Path | None = None, workers: int | None = None) -> None:
        self.backbone, self.folder, self.workers = backbone, folder, workers
        # "upright": photos are rotated by their EXIF orientation
        parts = (backbone.identity.weights, backbone.image.image_size, backbone.mean, backbone.std, "upright",
                 backbone.states_key, precision_name(backbone.precision))  # fmt: skip
        self._backbone_hash = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
        self._cls = Stage(backbone.image.layers + 1)
        self.files: dict[str, str] = {}
        """The content of each file so far: one command reads a file in several passes, which must see the same."""
        self._kept: dict[tuple[str, Stage], Entry] = {}
        self._kv: dict[str, CachedKV] = {}
        self._kv_of: Hashable = None
        self._gpu_room = self._host_room = 0

    def shown(self, examples: Sequence[Example]) -> list[Shown]:
        """Pictures as they are in evaluation; refuses a file that was another picture at an earlier call."""
        shown = [Shown(example.picture, content_of(example.picture)) for example in examples]
        for one in shown:
            if isinstance(one.picture, ImageFile):
                one.require_same(self.files.setdefault(os.path.abspath(one.picture.path), one.content))
        return shown

    def is_large(self, stage: Stage) -> bool:
        """Whether it has the states of all tokens."""
        return not stage.heads and stage.layer < self._cls.layer

    def keeps(self, shown: Sequence[Shown], stage: Stage) -> bool:
        """Whether the stage of these pictures is kept, or costs little to keep."""
        cheap = self.folder is not None or not self.is_large(stage)
        return cheap or all((one.key, stage) in self._kept for one in shown)

    def has_room(self, shown: Sequence[Shown], stages: Iterable[Stage], first: bool = False) -> bool:
        """Whether the states can be kept: always on disk, up to a limit in memory. `first`: others give way to them."""
        tower, large = self.backbone.image, {at for at in self._kept if self.is_large(at[1])}
        own = {(one.key, stage) for stage in stages if self.is_large(stage) for one in shown}
        size = tower.originals * tower.width * 4
        most = min(_LIMIT, free_memory() // 2 + len(large) * size) // size
        if first and len(own) <= most < len(own | large):
            for other in large - own:
                del self._kept[other]
            return True
        return self.folder is not None or not own or len(own | large) <= most

    def forget_views(self, shown: Sequence[Shown]) -> None:
        """Drops from memory the training views of other pictures, which an earlier training has used."""
        contents = {one.content for one in shown}
        for key, stage in [at for at in self._kept if not at[0].endswith(CLEAN_VIEW)]:
            if key.partition("-")[0] not in contents:
                del self._kept[key, stage]

    def encode(self, shown: Sequence[Shown], stages: Iterable[Stage], title: str) -> None:
        """Computes and keeps what is missing of these stages, in one pass of each picture through the tower."""
        stages = sorted(set(stages))
        unique = {one.key: one for one in shown}.values()
        missing = [one for one in unique if not all(self._has(one, stage) for stage in stages)]
        if not missing:
            return
        clean, waiting = self.backbone.preprocess, iter(missing)

        def decode(one: Shown) -> Tensor:
            transform = clean if one.view is None else training_view(self.backbone, one.crop)
            with torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
                torch.manual_seed(int(hashlib.sha256(one.key.encode()).hexdigest()[:15], 16))
                pixels = transform(one.picture.open())
            one.require_same()  # else the new picture would be kept as the old one, for all runs
            return pixels

        at_once = self.folder is not None or any(map(self.is_large, stages))
        device = self.backbone.device
        # On the CPU one by one, which takes 1.1 times as long for ViT-B/16 and 1.5 times for dear-mini: the last bits
        # of an image then depend on no other, so that work that was killed continues to the same.
        at_a_time = 1 if device.type == "cpu" else _BATCH
        loader = decoding_loader(Mapped(missing, decode), _BATCH, self.workers, device.type == "cuda")
        rows: dict[tuple[Stage, str], HostRows] = defaultdict(HostRows)
        with Progress(f"{title}: states", len(missing)) as bar:
            for pixels in from_workers(loader):
                for part in pixels.split(at_a_time):
                    for stage, entry in self._compute(to_device(part, device), stages).items():
                        for name, tensor in entry.items():
                            rows[stage, name].add(tensor)
                if at_once:
                    self._keep(rows, stages, waiting)
                bar.update(len(pixels))
        self._keep(rows, stages, waiting)

    def encode_together(self, shown: Sequence[Shown], stage: Stage, title: str) -> None:
        """`encode` by all processes of a run: each computes its local pictures, and gets the others from disk or by
        exchange."""
        if processes.world_size() > 1:
            local = processes.local_rows(shown)
            self.encode(local, [stage], title)
            if self.folder is not None:
                processes.barrier()
            else:
                for start in range(0, -(-len(shown) // processes.world_size()), _SENT):
                    sent = [(one.key, at) for one in local[start : start + _SENT] for at in (stage, self._cls)]
                    for part in processes.all_gather_objects({at: self._kept[at] for at in sent}):
                        self._kept |= part
        self.encode(shown, [stage], title)

    @torch.no_grad()
    def _compute(self, pixels: Tensor, stages: Sequence[Stage]) -> dict[Stage, Entry]:
        """The tensors of a batch at each stage, and at that of CLS."""
        tower, first, x = self.backbone.image, stages[0].layer, None
        large, images, found = [stage for stage in stages if self.is_large(stage)], pixels, {}
        if large:
            x = tower.layer_input(pixels, first)
            images = CachedStates(x.states, None)  # type: ignore[assignment,arg-type]  # CLS is still to come
            for x in tower.walk(x):  # noqa: B020 - only the last one is used after the loop
                if (stage := Stage(x.layer)) in large:
                    found[stage] = {"states": x.states}
                if stage == large[-1]:
                    break
        if heads := [stage for stage in stages if stage.heads]:
            cls, outputs = tower.head_outputs(images, first)
            found |= {stage: {"outputs": outputs[:, stage.layer - first :]} for stage in heads}
        else:
            cls = tower.cls_state(x or tower.layer_input(pixels, first))
        return {stage: {"cls": cls, **entry} for stage, entry in {**found, self._cls: {}}.items()}

    def _keep(self, rows: dict[tuple[Stage, str], HostRows], stages: Sequence[Stage], waiting: Iterator[Shown]) -> None:
        """Keeps the rows that were computed for the next pictures."""
        columns = {at: part.all() for at, part in rows.items()}
        rows.clear()
        for row, one in enumerate(islice(waiting, max(map(len, columns.values()), default=0))):
            entries: dict[Stage, Entry] = defaultdict(dict)
            for (stage, name), column in columns.items():
                value = column[row].half() if name == "states" and one.view is not None else column[row]
                entries[stage][name] = value.clone()  # a view would keep the tensors of the whole batch
            for stage, entry in entries.items():
                if self.folder is not None and stage in stages:
                    save_tensors(self._path(one, stage), entry)
                if self.folder is None or not self.is_large(stage):
                    self._kept[one.key, stage] = entry

    def read(self, shown: Sequence[Shown], stage: Stage) -> Images:
        """The stage of pictures that `encode` has had."""
        entries = [self._entry(one, stage) for one in shown]
        cls, *more = (torch.stack([entry[name] for entry in entries]) for name in self._shapes(stage))
        return CachedHeads(cls, *more) if stage.heads else CachedStates(more[0] if more else cls[:, None], cls)

    def read_kv(self, shown: Sequence[Shown], stage: Stage, masks: Masks) -> CachedKV:
        """Constant keys and values that learned tokens attend to, in the precision of the backbone.

        On a GPU they take a share of its free memory, and what has no room there waits in pinned host memory. Only
        those of the last visible heads stay.
        """
        tower, device = self.backbone.image, self.backbone.device
        if masks.visible_heads != self._kv_of:
            self.clear_kv()
            self._kv_of, self._host_room = masks.visible_heads, min(_LIMIT, free_memory() // 2)
            self._gpu_room = int(_GPU_SHARE * free_memory(device)) if device.type == "cuda" else 0
        entries = [self._kv.get(one.key) for one in shown]
        missing = [i for i, entry in enumerate(entries) if entry is None]
        # On the CPU one image at a time, so that their last bits do not depend on the batch; on a GPU all at once.
        parts = [[i] for i in missing] if device.type == "cpu" else [missing] if missing else []
        for part in parts:
            states = to_device(self.read([shown[i] for i in part], stage), device)
            computed = tower.cached_kv(tower.layer_input(states, stage.layer), masks)
            for row, i in enumerate(part):
                # A copy: a view would keep the tensors of the whole batch.
                entries[i] = entry = CachedKV(*(tensor[row : row + 1].clone() for tensor in computed))
                size = sum(tensor.nbytes for tensor in entry)
                if size <= self._gpu_room:
                    self._gpu_room -= size
                elif size <= self._host_room:
                    self._host_room -= size
                    if not entry.frozen_cls.is_cpu:
                        entry = CachedKV(*(tensor.cpu().pin_memory() for tensor in entry))
                else:
                    continue
                self._kv[shown[i].key] = entry
        return CachedKV(*map(torch.cat, zip(*(to_device(entry, device) for entry in entries), strict=True)))

    def clear_kv(self) -> None:
        self._kv_of = None
        self._kv.clear()

    def _entry(self, one: Shown, stage: Stage) -> Entry:
        if (one.key, stage) in self._kept:
            return self._kept[one.key, stage]
        path = self._path(one, stage)
        try:
            entry, _ = read_tensors(path, _REMOVE)
        except DearError:  # damaged: computed again
            path.unlink(missing_ok=True)
            self.encode([one], [stage], "again")
            entry, _ = read_tensors(path, _REMOVE)
        if {name: tuple(value.shape) for name, value in entry.items()} != self._shapes(stage):
            raise DearError(f"{path} does not contain cached states of this backbone: {_REMOVE}.")
        if not self.is_large(stage):  # wanted in every epoch
            self._kept[one.key, stage] = entry
        return entry

    def _has(self, one: Shown, stage: Stage) -> bool:
        """Whether the stage is kept; CLS is copied from the file of another stage, if there is one."""
        if (one.key, stage) in self._kept:
            return True
        if self.folder is None:
            return False
        path = self._path(one, stage)
        if stage == self._cls and not path.exists():
            for other in self.folder.glob(f"{self._backbone_hash}-*/{path.parent.name}/{path.name}"):
                with suppress(DearError):
                    save_tensors(path, {"cls": read_tensors(other, _REMOVE)[0]["cls"]})
                    break
        return path.exists()

    def _shapes(self, stage: Stage) -> dict[str, tuple[int, ...]]:
        """The tensors of one picture, by name."""
        tower = self.backbone.image
        shapes: dict[str, tuple[int, ...]] = {"cls": (tower.read_width,)}
        if stage.heads:
            shapes["outputs"] = (tower.layers - stage.layer + 1, tower.heads, tower.head_dim)
        elif self.is_large(stage):
            shapes["states"] = (tower.originals, tower.width)
        return shapes

    def _path(self, one: Shown, stage: Stage) -> Path:
        assert self.folder is not None
        return self.folder / f"{self._backbone_hash}-{stage}" / one.key[:2] / f"{one.key}.safetensors"

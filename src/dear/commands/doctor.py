"""dear doctor: checks the installation and the files of runs, galleries, results and exports."""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dear.core.errors import DearError, os_errors_as_dear_errors
from dear.core.extras import EXTRAS, absent_packages
from dear.core.files import read_text, write_text
from dear.core.version import __version__
from dear.core.words import counted

_UNFINISHED = "training is not finished"
_MIN_FREE = 2.0  # GB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="FOLDER", help="run, gallery, result or export folder to check"
    )
    parser.add_argument(
        "--gpu", action="store_true",
        help="also run real training steps on the GPU in each precision, and compare them with the CPU: minutes",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    checks: list[tuple[str, Callable[[], str]]] = [
        ("versions", _package_versions), ("device", _device), ("extras", _extras), ("bundled model", _bundled_model),
        ("this folder", lambda: _disk(Path())), ("temporary files", lambda: _disk(Path(tempfile.gettempdir()))),
    ]  # fmt: skip
    checks += [(str(folder), lambda folder=folder: _folder(folder)) for folder in args.folders]  # type: ignore[misc]
    if args.gpu:
        from dear.model.gpu_check import check_gpu

        checks.append(("GPU", check_gpu))
    failures = 0
    for name, check in checks:
        try:
            report = check()
            print(f"{'note' if _UNFINISHED in report else 'ok':6} {name}: {report}", flush=True)
        except DearError as error:
            failures += 1
            print(f"WRONG  {name}: {error}", flush=True)
    if failures:
        raise DearError(f"{failures} of {len(checks)} checks failed: see above.")


def _package_versions() -> str:
    import platform
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "open_clip_torch", "safetensors", "pillow"))
    return f"dear {__version__}, Python {platform.python_version()}, {packages}"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"
    if torch.backends.mps.is_available():
        return "MPS, the GPU of a Mac"
    return f"CPU, {counted(torch.get_num_threads(), 'thread')}; no CUDA"


def _extras() -> str:
    install = "no (pip install 'dear-vlm[{}]')"
    return ", ".join(f"{extra} {install.format(extra) if absent_packages(extra) else 'yes'}" for extra in EXTRAS)


def _bundled_model() -> str:
    """Checks that its weights match its model card, and that it recognises colors."""
    import re

    import torch
    from torch.nn import functional as F

    from dear.clip import MINI, load_backbone
    from dear.clip.load import MINI_FOLDER
    from dear.core.metrics import accuracy
    from dear.data.world.tasks import world_task

    mini, task = load_backbone(MINI), world_task("colors")
    if re.findall(r"^weights: ([0-9a-f]{64})$", read_text(MINI_FOLDER / "README.md"), re.M) != [mini.identity.weights]:
        raise DearError(f"The weights of {MINI} are not those of its card: install dear again.")
    examples = task.test[:: len(task.test) // 48]
    with torch.no_grad():
        pixels = torch.stack([mini.preprocess(example.picture.open()) for example in examples])
        image, text = mini.image.encode(pixels), mini.text.encode(task.prompts)
    scores = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T
    percent = accuracy(scores, torch.tensor([example.label for example in examples]))
    result = f"{MINI} recognises {percent:.0f}% of {len(examples)} colors"
    if not percent > 80:
        raise DearError(f"{result}, and should recognise over 80%: reinstall PyTorch.")
    return f"{result}, and its weights are complete"


def _disk(folder: Path) -> str:
    probe = folder / f".dear-doctor-{os.getpid()}"
    try:
        write_text(probe, "x" * 10_000)
    finally:
        with suppress(OSError):
            probe.unlink()
    free = shutil.disk_usage(folder).free / 1e9
    if free < _MIN_FREE:
        raise DearError(f"Only {free:.1f} GB are free in {folder.resolve()}: free some space.")
    return f"{folder.resolve()} is writable, {free:.0f} GB free"


def _folder(folder: Path) -> str:
    from dear.bench.results import CELLS, STUDY
    from dear.model.export.folder import ExportFolder
    from dear.training.run_folder import ADAPTER_CONFIG, CHECKPOINT

    kinds = {
        ADAPTER_CONFIG: _adapter, CHECKPOINT: _run, "gallery.json": _gallery, CELLS: _results, STUDY: _results,
        ExportFolder(folder).info.name: _export,
    }  # fmt: skip
    with os_errors_as_dear_errors():
        if not folder.is_dir():
            raise DearError(f"There is no folder {folder}.")
        checks = dict.fromkeys(check for name, check in kinds.items() if os.path.lexists(folder / name))
        reports = [check(folder) for check in checks]
    if not reports:
        raise DearError(f"Not a run, gallery, result or export folder: it has none of {', '.join(kinds)}.")
    return "; ".join(reports)


def _adapter(folder: Path) -> str:
    from dear.training.adapter import read_config

    config = read_config(folder)
    return f"an adapter ({config['method']}, {len(config['classes'])} classes), complete and unchanged"


def _run(folder: Path) -> str:
    from dear.core.tensors import read_tensors, require_finite
    from dear.training.run_folder import RunFolder

    run = RunFolder(folder)
    tensors, notes = read_tensors(run.checkpoint, again := "train again into another folder")
    require_finite(tensors, str(run.checkpoint), again)
    run.settings(), run.few_shot(), run.test()  # refuse damaged files
    state = f"a checkpoint after epoch {notes.get('epoch')}, metrics of {len(run.history())}"
    return state if run.is_finished else f"{state}; {_UNFINISHED}: `dear train --resume` continues it"


def _gallery(folder: Path) -> str:
    from dear.gallery import Gallery

    gallery = Gallery.open(folder)
    missing = sum(not path.startswith("world:") and not Path(path).is_file() for path in gallery.paths())
    return f"a gallery of {counted(len(gallery), 'image')}" + (
        f", {missing} of them missing on disk" if missing else ""
    )


def _results(folder: Path) -> str:
    from dear.bench.results import parse_result, stored_cells

    count, damaged = 0, []
    for where, text in stored_cells(folder):
        count += 1
        try:
            parse_result(text, where)
        except DearError as error:
            damaged.append(error)
    if damaged:
        raise DearError(f"{len(damaged)} of {count} results are damaged; the first: {damaged[0]}")
    return f"{counted(count, 'result')}, all complete"


def _export(folder: Path) -> str:
    from dear.model.export.folder import ExportFolder

    return f"an exported model of {len(ExportFolder(folder).open().about.classes)} classes, complete and unchanged"

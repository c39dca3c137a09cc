"""Adapters on the Hugging Face hub: the files and the model card that are pushed, and the files that are accepted."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace as with_fields

from dear.core.errors import DearError, first_line
from dear.core.figure import color_of, save_figure
from dear.core.files import write_json
from dear.core.pages import render_template
from dear.core.schema import damaged
from dear.decisions.decision import FILE as DECISION
from dear.decisions.decision import WORDS, read_decision
from dear.methods.registry import find_method
from dear.methods.shared.fair_lists import list_note
from dear.training.adapter import CONFIG, TEXT_TABLE, WEIGHTS, read_config, write_config
from dear.training.run_folder import RunFolder

HUB_PREFIX = "hf-hub:"
ROLES, CARD, PICTURE = "roles.json", "README.md", "fusion.png"
_PUSHED = (WEIGHTS, CONFIG, ROLES, CARD, PICTURE, DECISION, WORDS)
_ALLOWED = {*_PUSHED, TEXT_TABLE, ".gitattributes", "LICENSE"}
_NAMES = ("classes", "components", "template")  # words, even if they look like paths
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_RECIPE = ("shots", "seed", "classes", "epochs", "batch", "lr", "precision")
_LISTED_CLASSES = 200  # of a model card
_CARD_TEMPLATE = Path(__file__).parent / "assets" / "card.md.j2"


def push(run: Path, name: str, private: bool = False) -> tuple[str, list[str]]:
    """Uploads the adapter to the repository ORG/NAME, which is made if it does not exist; its address and files."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    _check_name(name)
    with TemporaryDirectory() as folder:
        files = write_folder(run, name, Path(folder))
        api = HfApi()
        try:
            address = str(api.create_repo(name, private=private, exist_ok=True))
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Adapter made by dear")
        except Exception as error:  # the hub client raises many kinds
            answered = isinstance(error, HfHubHTTPError | LocalTokenNotFoundError)  # or there is no token to send
            advice = "log in with `hf auth login`, with a token that may write there" if answered else (
                "the hub cannot be reached; check the network"
            )  # fmt: skip
            raise DearError(f"{name} could not be pushed: {advice} ({first_line(error)}).") from error
    return address, files


def fetch(source: str) -> Path:
    """hf-hub:ORG/NAME or hf-hub:ORG/NAME@REVISION -> a local copy of the adapter, from the cache when offline."""
    from huggingface_hub import HfApi, snapshot_download

    name, _, revision = source.removeprefix(HUB_PREFIX).partition("@")
    _check_name(name)
    try:
        # Not list_repo_files, which tries for 23 seconds where there is no network.
        about = HfApi().model_info(name, revision=revision or None, timeout=10)
        files = {file.rfilename for file in about.siblings or ()}
    except Exception:  # no network: the files in the cache were checked before
        files = set()
    if strange := sorted(files - _ALLOWED):
        raise DearError(
            f"{name} was not loaded, because it holds {strange[0]}, which does not belong to an adapter of dear: "
            f"expected are {', '.join(_PUSHED)}."
        )
    wanted = [WEIGHTS, CONFIG, TEXT_TABLE, DECISION, WORDS]
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted))
    except Exception as error:  # the hub client raises many kinds
        raise DearError(
            f"{name} could not be fetched: check the name and the network ({first_line(error)})."
        ) from error


def write_folder(run: Path, name: str, folder: Path) -> list[str]:
    """Writes what is pushed: adapter, config, role map, card and picture, without paths of this machine."""
    config = read_config(run)
    config_sha256, config = config["config_sha256"], without_paths(config)
    for file in (WEIGHTS, TEXT_TABLE):
        if (run / file).is_file():
            shutil.copyfile(run / file, folder / file)
    write_config(folder, config)
    if found := read_decision(run, lambda: config_sha256):
        adapter = read_config(folder)["config_sha256"]  # without paths it is another
        with_fields(found[0], adapter=adapter).write(folder, found[1])
    if roles := config["extra_state"].get("roles"):
        write_json(folder / ROLES, roles)
    opened = RunFolder(run)
    history = opened.history()
    with damaged(f"The run {run}", "train it again"):
        components, fusion = config["components"], history[-1].get("fusion", []) if history else []
        has_picture = len(fusion) == len(components) > 1
        if has_picture:
            draw_fusion(components, fusion, folder / PICTURE)
        settings = without_paths(opened.settings())
        card = model_card(name, config, settings, opened.test(), PICTURE if has_picture else None)
        if found:
            card += f"\n## Decision\n\n```\n{found[0]}\n```\n"
    (folder / CARD).write_text(card, encoding="utf-8")
    files = sorted(file.name for file in folder.iterdir())
    _refuse_traces(folder, run)
    return files


def without_paths(value: Any) -> Any:
    """The same JSON value, with every path of this machine cut to its last part."""
    if isinstance(value, dict):
        return {key: item if key in _NAMES else without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    kind, _, rest = value.rpartition(":") if value.startswith(("local-dir:", "transformers:")) else ("", "", value)
    if re.match(r"(/|~|\.\.?/|[A-Za-z]:[\\/])", rest) or ("/" in rest and Path(rest).exists()):
        return (f"{kind}:" if kind else "") + re.split(r"[\\/]", rest.rstrip("\\/"))[-1]
    return value


def _refuse_traces(folder: Path, run: Path) -> None:
    """The last check before an upload: no text may name a folder of this machine."""
    private = {str(path) for path in (Path.home(), Path.cwd(), run.resolve().parent)} - {os.sep}
    for file in folder.iterdir():
        if file.suffix in (".json", ".md"):
            text = file.read_text(encoding="utf-8")
            if traces := [path for path in private if path + os.sep in text]:
                raise DearError(f"{file.name} would publish the path {traces[0]}, so nothing was pushed.")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise DearError(f"{name!r} is not a name on the hub: write ORG/NAME.")


def model_card(
    name: str, config: dict[str, Any], settings: dict[str, Any], result: dict[str, float], picture: str | None
) -> str:
    """Markdown with the hub's front matter, for an adapter's config, and its run's settings and test accuracies."""
    backbone = config["backbone"]
    local = backbone["model"].startswith(("local-dir:", "transformers:")) and "/" not in backbone["model"]
    trained = config["extra_state"].get("classes", config["classes"])
    note = list_note(config["classes"], trained, getattr(find_method(config["method"]), "fair", False))
    return render_template(
        _CARD_TEMPLATE, escape=False, name=name, config=config, note=note, backbone=backbone, has_public_name=not local,
        accuracies=result, picture=picture, settings=settings, recipe=_RECIPE, most=_LISTED_CLASSES, json=json.dumps,
    )  # fmt: skip


def draw_fusion(components: Sequence[str], weights: Sequence[float], out: Path) -> None:
    """A bar for the fusion weight of each component."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 0.4 * len(components) + 0.6), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(components, weights, color=[color_of(name) for name in components])
    axes.bar_label(bars, [f"{weight:.3f}" for weight in weights], padding=3)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.12 * max(weights)), xlabel="fusion weight")
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, out, dpi=100)

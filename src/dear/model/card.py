"""The model card of an adapter: its backbone, method, settings, results and classes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.core.palette import color_of
from dear.core.table import Table

_RECIPE = ("shots", "seed", "classes", "epochs", "batch", "lr", "precision")
_MOST_CLASSES = 200


def model_card(
    name: str, config: dict[str, Any], settings: dict[str, Any], result: dict[str, float], picture: str | None
) -> str:
    """Markdown with the hub's front matter: config of the adapter, settings of the run, its test accuracies."""
    backbone = config["backbone"]
    tag = f" ({backbone['pretrained']})" if backbone["pretrained"] else ""
    method, version = config["method"], config["versions"]["dear"]
    lines = [
        "---",
        "library_name: dear-vlm",
        "pipeline_tag: zero-shot-image-classification",
        f"tags: [clip, adapter, few-shot, {method}]",
        "---",
        f"\n# {name}\n",
        f"An adapter for {backbone['model']}{tag}, made with `{method}` of dear {version}.\n",
        f'```python\nimport dear\n\nmodel = dear.load("hf-hub:{name}")\nprint(model.predict("image.jpg"))\n```\n',
        "It loads on the backbone it was made for, recognised by the hash of its weights "
        f"(`{backbone['weights'][:12]}…`, {backbone['activation']}), and a changed file is refused.",
    ]
    if backbone["model"].startswith(("local-dir:", "transformers:")) and "/" not in backbone["model"]:
        lines += [
            "",
            "That backbone has no public name: say where yours is with `dear.load(..., model=...)`.",
        ]
    if result:
        table = Table(["test images", "accuracy (%)"])
        for part, value in result.items():
            table.add({"hm": "harmonic mean of base and novel"}.get(part, part), value)
        lines += ["", "## Accuracy", "", table.markdown()]
    if picture:
        lines += ["", f"![Fusion weights]({picture})", "", "The weight of each component in an answer."]
    if settings:
        recipe = Table(["setting", "value"])
        for key in _RECIPE:
            if key in settings:
                recipe.add(key, json.dumps(settings[key]))
        lines += ["", "## Training", "", f"Data: {settings['data']}. Prompt: `{config['template']}`", ""]
        lines += [recipe.markdown(), "", "Settings of the method:", "", "```json"]
        lines += [json.dumps(config["settings"], indent=1), "```"]
    classes = config["classes"]
    rest = f", and {len(classes) - _MOST_CLASSES} more" if len(classes) > _MOST_CLASSES else ""
    lines += ["", f"## {len(classes)} classes", "", ", ".join(classes[:_MOST_CLASSES]) + rest, ""]
    return "\n".join(lines)


def draw_fusion(components: Sequence[str], weights: Sequence[float], out: Path) -> None:
    """A bar for the fusion weight of each component."""
    from matplotlib.figure import Figure

    from dear.core.figure import save_figure

    figure = Figure(figsize=(5, 0.4 * len(components) + 0.6), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(components, weights, color=[color_of(name) for name in components])
    axes.bar_label(bars, [f"{weight:.3f}" for weight in weights], padding=3)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.12 * max(weights)), xlabel="fusion weight")
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, out, dpi=100)

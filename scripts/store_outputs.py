"""Runs the notebooks in examples/ and stores what they print and show in them, small, so that a code host shows it."""

import argparse
import ast
import base64
import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from PIL import Image

_WIDTH = 900  # pixels of a stored picture
_ROOT = Path(__file__).parents[1]
_EXAMPLES = _ROOT / "examples"


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell: its text, and the picture or value of its last line."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None  # type: ignore[attr-defined]
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(compile(last, "cell", "eval"), names) if last else None
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if isinstance(value, Image.Image):
        outputs.append({"output_type": "display_data", "metadata": {}, "data": {"image/jpeg": _jpeg(value)}})
    return outputs


def _jpeg(picture: Image.Image) -> str:
    small = picture.convert("RGB")
    small.thumbnail((_WIDTH, _WIDTH))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    return base64.b64encode(out.getvalue()).decode("ascii")


def badge(name: str) -> str:
    """The line that opens a notebook in Colab, at the address of the repository that pyproject.toml states."""
    address = re.search(
        r'Repository = "https://github.com/(.*?)"', (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert address is not None
    place = f"https://colab.research.google.com/github/{address[1]}/blob/main/examples/{name}"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({place})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(_EXAMPLES.glob("*.ipynb")))
    for path in parser.parse_args().notebooks:
        notebook, names = json.loads(path.read_text(encoding="utf-8")), {"__name__": "__main__"}
        title, _, *text = notebook["cells"][0]["source"]
        text = text[2:] if text[0].startswith("[![") else text
        notebook["cells"][0]["source"] = [title, "\n", badge(path.name) + "\n", "\n", *text]
        for number, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), 1):
            cell["outputs"], cell["execution_count"] = run_cell("".join(cell["source"]), names), number
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size // 1000} KB")


if __name__ == "__main__":
    main()

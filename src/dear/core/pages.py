"""Files made from Jinja templates: pages, which share a base, and model cards."""

from pathlib import Path
from typing import Any

_PAGE_BASE = Path(__file__).parent / "assets"


def render_template(template: Path, *, escape: bool = True, **values: Any) -> str:
    """The text of a template, which may extend `base.html.j2`; `escape`: as in HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, _PAGE_BASE]), undefined=StrictUndefined, autoescape=escape,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}  # and unsorted, unlike Jinja's default
    return environment.get_template(template.name).render(values)

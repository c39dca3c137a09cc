"""As much Markdown as notes need, as HTML: headings, paragraphs, lists, code, links, emphasis and tables."""

import re
from collections.abc import Callable
from html import escape

_BULLET = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_RULE = re.compile(r"\|?[\s:|-]*-[\s:|-]*\|?")


def notes_html(text: str, first_heading: int = 2) -> str:
    """`first_heading`: the level that "#" becomes. HTML in the notes is shown, not run."""
    out: list[str] = []
    lines = text.replace("\r\n", "\n").split("\n")
    while lines:
        line = lines.pop(0)
        if line.startswith("```"):
            code = _take(lines, lambda next_line: not next_line.startswith("```"))
            del lines[:1]
            out.append(f"<pre><code>{escape(chr(10).join(code))}</code></pre>")
        elif heading := re.match(r"(#{1,6})\s+(.*)", line):
            level = min(len(heading[1]) + first_heading - 1, 6)
            out.append(f"<h{level}>{_inline(heading[2])}</h{level}>")
        elif line.lstrip().startswith("|") and lines and _RULE.fullmatch(lines[0].strip()):
            del lines[:1]
            rows = [line, *_take(lines, lambda next_line: next_line.lstrip().startswith("|"))]
            out.append(_table([_cells(row) for row in rows]))
        elif bullet := _BULLET.match(line):
            items = [line[bullet.end() :]]
            for more in _take(lines, lambda next_line: bool(_BULLET.match(next_line) or next_line.startswith("  "))):
                start = _BULLET.match(more)
                if start:
                    items.append(more[start.end() :])
                else:  # an indented line goes on with its item
                    items[-1] += " " + more.strip()
            kind = "ol" if line.lstrip()[0].isdigit() else "ul"
            out.append(f"<{kind}>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + f"</{kind}>")
        elif line.strip():
            rest = _take(lines, lambda next_line: bool(next_line.strip()) and not _begins_block(next_line))
            out.append(f"<p>{_inline(' '.join([line, *rest]))}</p>")
    return "\n".join(out)


def _take(lines: list[str], wanted: Callable[[str], bool]) -> list[str]:
    taken = []
    while lines and wanted(lines[0]):
        taken.append(lines.pop(0))
    return taken


def _begins_block(line: str) -> bool:
    return line.startswith(("#", "```", "|")) or bool(_BULLET.match(line))


def _cells(row: str) -> list[str]:
    bare = row.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", bare)]


def _table(rows: list[list[str]]) -> str:
    head, *body = ["".join(f"<{tag}>{_inline(cell)}</{tag}>" for cell in row) for row, tag in _tagged(rows)]
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _tagged(rows: list[list[str]]) -> list[tuple[list[str], str]]:
    return [(row, "td" if number else "th") for number, row in enumerate(rows)]


def _inline(text: str) -> str:
    """Code first, so that nothing inside it is read as Markdown."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(f"<code>{escape(part)}</code>" if i % 2 else _words(part) for i, part in enumerate(parts))


def _words(text: str) -> str:
    text = escape(text)
    text = re.sub(r"\[([^\]]+)\]\(((?:https?://|mailto:|#)[^)\s]+)\)", r'<a href="\2">\1</a>', text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", text)

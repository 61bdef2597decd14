"""Rows set in columns that fit a width: what may shrink does, the rest keeps its size. Pure apart from rich's types."""

import textwrap
from collections.abc import Mapping, Sequence

from rich.text import Text

GAP = "  "
LABEL_WIDTH = 13


def in_columns(
    rows: Sequence[Sequence[Text]],
    *,
    width: int,
    shrink: Mapping[int, int] | None = None,
    right: frozenset[int] = frozenset(),
) -> list[Text]:
    """Align rows in columns. `shrink` maps the columns that may be cut, in this order, to their minimum widths.
    Empty columns are left out.
    """
    if not rows:
        return []
    widths = [max(row[column].cell_len for row in rows) for column in range(len(rows[0]))]
    for column, minimum in (shrink or {}).items():
        excess = total_width(widths) - width
        if excess > 0:
            widths[column] = min(widths[column], max(minimum, widths[column] - excess))
    return [_row(row, widths, right) for row in rows]


def total_width(widths: Sequence[int]) -> int:
    used = [width for width in widths if width]
    return sum(used) + len(GAP) * max(0, len(used) - 1)


def _row(row: Sequence[Text], widths: Sequence[int], right: frozenset[int]) -> Text:
    line = Text(no_wrap=True)
    used = [column for column, width in enumerate(widths) if width]
    for column in used:
        cell = row[column].copy()
        cell.truncate(widths[column], overflow="ellipsis")
        space = " " * (widths[column] - cell.cell_len)
        line.append_text(Text.assemble(space, cell) if column in right else Text.assemble(cell, space))
        if column != used[-1]:
            line.append(GAP)
    line.rstrip()
    return line


def labelled_lines(label: str, value: str, width: int, style: str = "") -> list[Text]:
    """Return a label and its value as lines. A long value is wrapped and indented."""
    wrapped = textwrap.wrap(value, max(20, width - LABEL_WIDTH - 2), break_on_hyphens=False) or [""]
    lines = []
    for number, part in enumerate(wrapped):
        head = label if number == 0 else ""
        lines.append(Text.assemble((f"  {head:<{LABEL_WIDTH}}", "dim"), (part, style)))
    return lines

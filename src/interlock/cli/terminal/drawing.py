"""Layout of what commands display: rows in columns that fit a width, labelled values, and live views that run until
Ctrl-C.

rich is imported only when something is drawn.
"""

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from interlock.cli.terminal.errors import Unreachable
from interlock.cli.terminal.text import one_line, safe_drawing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Reply = TypeVar("Reply")

GAP = "  "
LABEL_WIDTH = 13


def in_columns(
    rows: "Sequence[Sequence[Text]]",
    *,
    width: int,
    shrink: Mapping[int, int] | None = None,
    right: frozenset[int] = frozenset(),
) -> "list[Text]":
    """Lay out rows as lines with aligned columns. Columns that are empty in every row are left out. All cells may be
    untrusted.

    `shrink` maps the columns that may be shortened to fit `width` to their minimum widths, in the order in which to
    shorten them. `right` names the columns that are aligned to the right.
    """
    from rich.text import Text

    if not rows:
        return []
    rows = [[safe_drawing(cell, keep="") for cell in row] for row in rows]
    widths = [max(row[column].cell_len for row in rows) for column in range(len(rows[0]))]
    for column, minimum in (shrink or {}).items():
        excess = total_width(widths) - width
        if excess > 0:
            widths[column] = min(widths[column], max(minimum, widths[column] - excess))
    used = [column for column, width in enumerate(widths) if width]
    lines = []
    for row in rows:
        line = Text(no_wrap=True)
        for column in used:
            cell = row[column].copy()
            cell.truncate(widths[column], overflow="ellipsis")
            space = " " * (widths[column] - cell.cell_len)
            line.append_text(Text.assemble(space, cell) if column in right else Text.assemble(cell, space))
            if column != used[-1]:
                line.append(GAP)
        line.rstrip()
        lines.append(line)
    return lines


def table_lines(
    heads: str,
    rows: "Iterable[Sequence[str | tuple[str, str] | Text]]",
    *,
    width: int,
    shrink: Mapping[int, int],
    right: frozenset[int] = frozenset(),
) -> "list[Text]":
    """Lay out rows of cells below column heads, which `heads` separates by "|". A cell is an untrusted text, a text
    with its style, or a styled text whose spaces stay as they are. `in_columns` explains the other arguments.
    """
    from rich.text import Text

    def as_text(cell: "str | tuple[str, str] | Text") -> Text:
        if isinstance(cell, Text):
            return cell
        text, style = (cell, "") if isinstance(cell, str) else cell
        return Text(one_line(text), style=style)

    lines = [[as_text((head, "dim")) for head in heads.split("|")]] if heads else []
    lines += [[as_text(cell) for cell in row] for row in rows]
    return in_columns(lines, width=width, shrink=shrink, right=right)


def total_width(widths: Sequence[int]) -> int:
    used = [width for width in widths if width]
    return sum(used) + len(GAP) * max(0, len(used) - 1)


def labelled_lines(label: str, value: str, width: int, style: str = "") -> "list[Text]":
    """Return a label and its value as lines. A long value is wrapped and indented."""
    from rich.text import Text

    wrapped = textwrap.wrap(value, max(20, width - LABEL_WIDTH - 2), break_on_hyphens=False) or [""]
    lines = []
    for number, part in enumerate(wrapped):
        head = label if number == 0 else ""
        lines.append(Text.assemble((f"  {head:<{LABEL_WIDTH}}", "dim"), (part, style)))
    return lines


class Details(list["Text"]):
    """Lines that show labelled values, wrapped to a width. All values are untrusted."""

    def __init__(self, head: "Text", width: int) -> None:
        super().__init__([head])
        self._width = width

    def add(self, label: str, *values: str | None, style: str = "") -> None:
        """Add lines for the values that are not empty. The label is shown before the first."""
        for number, value in enumerate(filter(None, values)):
            self.extend(labelled_lines("" if number else label, one_line(value), self._width, style=style))


def poll(ask: Callable[[], Reply], *, every_s: float) -> Iterator[Reply | Unreachable]:
    """Call `ask` repeatedly and yield each answer. Raise Unreachable if the first call fails with it; later, yield the
    exception instead, because the node may become reachable again.
    """
    yield ask()
    while True:
        time.sleep(every_s)
        try:
            yield ask()
        except Unreachable as away:
            yield away


def redraw(
    console: "Console", answers: "Iterator[Reply | Unreachable]", lines: "Callable[[Reply], list[Text]]"
) -> None:
    """Draw each answer in place of the previous one. While the node is unreachable, keep the last answer on the screen
    and add a line that says so.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    shown: list[Text] = []
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for answer in answers:
            if isinstance(answer, Unreachable):
                live.update(Group(*shown, Text(f"{answer.message}; waiting for it", style="red")), refresh=True)
            else:
                shown = lines(answer)
                live.update(Group(*shown), refresh=True)

"""A view on the terminal that is drawn again whenever the node answers anew, until Ctrl-C."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from interlock.cli.terminal.errors import Unreachable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_Answer = TypeVar("_Answer")


def redraw(
    console: "Console", answers: "Iterator[_Answer | Unreachable]", lines: "Callable[[_Answer], list[Text]]"
) -> None:
    """While the node is away, what it said last stays, with a line that says so."""
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

"""Views that follow a node until Ctrl-C: ask it again and again, and draw what changed."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from interlock.cli.terminal.errors import Unreachable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

T = TypeVar("T")


def poll(ask: Callable[[], T], *, every_s: float) -> Iterator[T | Unreachable]:
    """Each answer in turn. A node that is away at the start is a failure; one that goes away later may come back."""
    yield ask()
    while True:
        time.sleep(every_s)
        try:
            yield ask()
        except Unreachable as away:
            yield away


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

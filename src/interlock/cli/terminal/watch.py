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
    """Yield each answer in turn. Raise Unreachable only for the first one; later it is yielded, because the node may
    come back.
    """
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
    """Draw each answer in place of the previous one. While the node is unreachable, keep the last answer and add a
    line about it.
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

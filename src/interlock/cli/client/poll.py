"""Asking a node again and again until the person has seen enough (Ctrl-C, which is then the normal end)."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from interlock.cli.terminal.errors import Unreachable

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

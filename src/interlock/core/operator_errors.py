"""The two errors of an operation for an operator: not found, refused."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import msgspec

from interlock.operator.operation import ErrorCase

JsonObject = dict[str, Any]


def quoted_text(name: str) -> str:
    """Return a name that somebody else chose, in quotes, escaped and shortened."""
    return msgspec.json.encode(name if len(name) <= 128 else name[:127] + "…").decode()


class NotFound(KeyError):
    """There is no `what` of that name; `known` names what there is, so that the answer can name the nearest.

    `few`: they are few enough to be named all.
    """

    def __init__(self, what: str, name: str, known: Iterable[str] = (), *, few: bool = False) -> None:
        super().__init__(name)
        self.what = what
        self.name = name
        self.known = list(known) if few else []
        self.nearest = get_close_matches(name, self.known or list(known), n=3)

    @property
    def message(self) -> str:
        return f"there is no {self.what} {quoted_text(self.name)}"

    @property
    def details(self) -> JsonObject:
        """Return what the message is about, for programs."""
        details: JsonObject = {self.what: self.name, "nearest": self.nearest}
        return {**details, "known": self.known} if self.known else details


class Refused(Exception):
    """A request that the node understood and does not carry out.

    `error` is the name that a program can act on, `status` the status of HTTP that fits.
    """

    def __init__(self, error: str, message: str, details: JsonObject | None = None, *, status: int = 409) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.details = details or {}
        self.status = status

    @classmethod
    def because(cls, case: ErrorCase, message: str, details: JsonObject | None = None) -> "Refused":
        """Return the exception for a declared error of an operation."""
        return cls(case.name, message, details, status=case.status)

"""The two errors of an operation for an operator: not found, refused."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from interlock.operator.operation import ErrorCase

JsonObject = dict[str, Any]


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

"""Exceptions for the errors that operations of the operator API declare."""

from typing import Any

from interlock.operator.operation import ErrorCase
from interlock.wire.refusal import Refused


def refused_as(case: ErrorCase, message: str, details: dict[str, Any] | None = None) -> Refused:
    """Return the exception that reports this error case, which the operation declares in its API."""
    return Refused(case.name, message, details, status=case.status)

"""Exceptions for the errors that operations of the operator API declare."""

from typing import Any

from interlock.operator.operation import ErrorCase
from interlock.wire.refusal import Refused


def refused_as(case: ErrorCase, message: str, details: dict[str, Any] | None = None) -> Refused:
    """Return the exception for an error that an operation declares."""
    return Refused(case.name, message, details, status=case.status)

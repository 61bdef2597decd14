"""Refusals that an operation of the operator API declares."""

from typing import Any

from interlock.operator.operation import ErrorCase
from interlock.wire.refusal import Refused


def refused_as(case: ErrorCase, message: str, details: dict[str, Any] | None = None) -> Refused:
    """Return the exception for a declared error of an operation."""
    return Refused(case.name, message, details, status=case.status)

"""How a handler fails: with one of the registered codes. Anything else it raises is told as INTERNAL_ERROR."""

from collections.abc import Mapping
from typing import Any, NoReturn

from interlock.aql.protocol.errors import Code, OperationFailed, failure, resource_not_found


def fail(code: Code, message: str, details: Mapping[str, Any] | None = None) -> NoReturn:
    raise OperationFailed(failure(code, message, details))


def not_found(resource_type: str, resource_id: str) -> NoReturn:
    raise OperationFailed(resource_not_found(resource_type, resource_id))


def already_exists(resource_type: str, resource_id: str) -> NoReturn:
    details = {"resource_type": resource_type, "resource_id": resource_id}
    said = f"Resource '{resource_type}' exists already: '{resource_id}'"
    raise OperationFailed(failure(Code.CONFLICT_ALREADY_EXISTS, said, details))

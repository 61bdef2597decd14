"""The context of a call through a driver: from the caller's principal, never from anything a client sends.

Outside rooms every principal is a tenant of its own.
"""

from collections.abc import Mapping

from interlock.core.calls.caller import Caller


def user_of(caller: Caller) -> str:
    return caller.principal.name


def tenant_of(caller: Caller) -> str:
    return caller.principal.name


def context_of(caller: Caller, workspace: str) -> Mapping[str, str]:
    """The values that context_arguments and a contract's context_schema are read from."""
    name = caller.principal.name
    return {"tenant_id": name, "user_id": name, "workspace_id": workspace}

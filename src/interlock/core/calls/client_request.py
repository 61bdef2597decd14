"""A client's request: who sends it, what it asks, and where it is answered."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from interlock.core.calls.caller import Caller, Sink


class ClientRequest(msgspec.Struct, frozen=True):
    """One request of a client, as a front hands it to a surface or to the dispatcher.

    The members of `params` are raw JSON. Dispatch changes `params` in place: the request belongs to its handler.
    """

    caller: Caller
    client_id: bytes  # the JSON-RPC id, as the client wrote it
    method: str
    params: dict[str, Any]
    meta: dict[str, Raw]  # the members of `_meta`
    sink: Sink
    headers: Mapping[bytes, bytes] | None = None  # of an HTTP request

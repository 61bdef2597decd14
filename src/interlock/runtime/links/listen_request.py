"""One open `subscriptions/listen` at a 2026-07-28 server, as the link holds it. Its owner decides what follows."""

from typing import Protocol

from msgspec import Raw

from interlock.protocol.jsonrpc.codec import decode_array, decode_object, maybe_string
from interlock.protocol.jsonrpc.errors import Fault
from interlock.protocol.jsonrpc.messages import Request, Response
from interlock.protocol.mcp.eras import Era
from interlock.protocol.mcp.methods import META_SUBSCRIPTION
from interlock.runtime.calls.call import Outcome
from interlock.runtime.calls.caller import Asked


class ListenerOwner(Protocol):
    def acknowledged(self, listener: "Listener", honoured: frozenset[str]) -> None:
        """The server listens; these are the resources whose updates it will tell."""

    def ended(self, listener: "Listener", why: Response | Fault) -> None:
        """It is over: the server's own words, or how the connection failed."""


class Listener:
    """A Pending."""

    def __init__(self, owner: ListenerOwner, uris: frozenset[str]) -> None:
        self.upstream_id = 0
        self.handle: object = None
        self.uris = uris
        self.heard = False  # the server acknowledged it
        self._owner = owner

    def on_acknowledged(self, params: Raw) -> None:
        if not self.heard:
            self.heard = True
            self._owner.acknowledged(self, _honoured(params))

    def on_response(self, response: Response, era: Era) -> None:
        self._owner.ended(self, response)

    def on_failed(self, fault: Fault, outcome: Outcome) -> None:
        self._owner.ended(self, fault)

    def on_progress(self, params: dict[str, Raw]) -> None:
        pass

    def on_log(self, params: Raw) -> None:
        pass

    def on_request(self, link: Asked, request: Request) -> None:
        pass


def subscription_id(params: Raw) -> int | None:
    """Which of our `subscriptions/listen` a notification belongs to; None when it does not say."""
    if META_SUBSCRIPTION.encode() not in bytes(params):
        return None
    meta = decode_object((decode_object(params) or {}).get("_meta", Raw(b"{}"))) or {}
    try:
        return int(bytes(meta[META_SUBSCRIPTION]))
    except (KeyError, ValueError):
        return None


def _honoured(params: Raw) -> frozenset[str]:
    granted = decode_object((decode_object(params) or {}).get("notifications", Raw(b"{}"))) or {}
    listed = decode_array(granted.get("resourceSubscriptions", Raw(b"[]"))) or []
    return frozenset(uri for raw in listed if (uri := maybe_string(raw)) is not None)

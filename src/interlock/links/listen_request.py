"""One open `subscriptions/listen` at a 2026-07-28 server, as the link holds it. Its owner decides what follows."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Raw

from interlock.core.calls.call import Outcome, Pending
from interlock.core.calls.caller import Asked
from interlock.mcp.eras import Era
from interlock.mcp.methods import META_SUBSCRIPTION
from interlock.wire.jsonrpc.codec import decode_array, decode_object, maybe_string
from interlock.wire.jsonrpc.errors import Fault
from interlock.wire.jsonrpc.messages import Request, Response


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
            self._owner.acknowledged(self, _honoured_uris(params))

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


def maybe_acknowledged(in_flight: Mapping[int, Pending], params: Raw, origin: Pending | None) -> Listener | None:
    """Which of ours is acknowledged: by its stream, else by its id, else the one that waits for it."""
    if isinstance(origin, Listener):
        return origin
    if origin is not None:
        return None
    named = subscription_id(params)
    if named is not None:
        found = in_flight.get(named)
        return found if isinstance(found, Listener) else None
    unheard = [one for one in in_flight.values() if isinstance(one, Listener) and not one.heard]
    return unheard[0] if len(unheard) == 1 else None


def is_told_first(params: Raw, origin: Pending | None, doubled: dict[bytes, dict[int, int]]) -> bool:
    """While a subscription and its successor are both open, each tells the same news: the first is heard.

    `doubled`: resource -> how many updates each of the two has told.
    """
    listener = subscription_id(params) or (origin.upstream_id if origin is not None else 0)
    told = doubled.setdefault(bytes((decode_object(params) or {}).get("uri", b"")), {})
    told[listener] = told.get(listener, 0) + 1
    return told[listener] > max((count for one, count in told.items() if one != listener), default=0)


def _honoured_uris(params: Raw) -> frozenset[str]:
    granted = decode_object((decode_object(params) or {}).get("notifications", Raw(b"{}"))) or {}
    listed = decode_array(granted.get("resourceSubscriptions", Raw(b"[]"))) or []
    return frozenset(uri for raw in listed if (uri := maybe_string(raw)) is not None)

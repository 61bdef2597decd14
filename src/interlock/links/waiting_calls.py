"""Calls that wait at a link: those whose clients are being asked, and which of all a message belongs to."""

from collections.abc import KeysView

from interlock.core.calls.call import Call


class SuspendedCalls:
    """Calls whose servers do nothing for them until their clients have answered; by their ids at the server."""

    __slots__ = ("_calls", "_of")

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._of: dict[str, int] = {}  # principal -> how many of them

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, upstream_id: int) -> bool:
        return upstream_id in self._calls

    @property
    def principals(self) -> KeysView[str]:
        return self._of.keys()

    def get(self, upstream_id: int) -> Call | None:
        return self._calls.get(upstream_id)

    def first(self) -> Call | None:
        return next(iter(self._calls.values()), None)

    def add(self, call: Call) -> None:
        self._calls[call.upstream_id] = call
        principal = call.caller.principal.name
        self._of[principal] = self._of.get(principal, 0) + 1

    def pop(self, upstream_id: int) -> Call | None:
        call = self._calls.pop(upstream_id, None)
        if call is not None:
            principal = call.caller.principal.name
            self._of[principal] -= 1
            if not self._of[principal]:
                del self._of[principal]
        return call

    def pop_all(self) -> list[Call]:
        calls = list(self._calls.values())
        self._calls.clear()
        self._of.clear()
        return calls


def maybe_speaking(calls: list[Call], suspended: SuspendedCalls, principals: set[str]) -> Call | None:
    """The call that a message without an id must be about, on a pipe that all share; None where it may be another's.

    `calls`: those under way; `principals`: whose these and the suspended ones are. A legacy session is one client with
    all its calls, a modern request a client of its own. One client with calls under way: its. Several of one principal:
    the only one that waits for no answer yet, or whose server is just asking (it may ask several things at once).
    """
    clients = {id(call.caller) if call.caller.asker is not None else id(call): call for call in calls}
    if len(clients) + len(suspended) <= 1:
        return calls[-1] if calls else suspended.first()
    if len(principals) > 1:
        return None
    may_ask = [call for call in clients.values() if not call.asking or _is_gathering(call)]
    return may_ask[0] if len(may_ask) == 1 else None


def _is_gathering(call: Call) -> bool:
    return call.dialogue is not None and call.dialogue.is_gathering

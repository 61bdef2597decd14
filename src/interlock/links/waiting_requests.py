"""The requests of one link that wait: for the server's answer, or for an answer of their client."""

from collections.abc import KeysView

from interlock.core.calls.call import Call, Pending


class SuspendedCalls:
    """Calls whose server waits for an answer of their client, by their ids at the server."""

    __slots__ = ("_calls", "_counts")

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._counts: dict[str, int] = {}  # principal -> number of its calls

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, upstream_id: int) -> bool:
        return upstream_id in self._calls

    @property
    def principals(self) -> KeysView[str]:
        return self._counts.keys()

    def get(self, upstream_id: int) -> Call | None:
        return self._calls.get(upstream_id)

    def first(self) -> Call | None:
        return next(iter(self._calls.values()), None)

    def add(self, call: Call) -> None:
        self._calls[call.upstream_id] = call
        principal = call.caller.principal.name
        self._counts[principal] = self._counts.get(principal, 0) + 1

    def pop(self, upstream_id: int) -> Call | None:
        call = self._calls.pop(upstream_id, None)
        if call is not None:
            principal = call.caller.principal.name
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]
        return call

    def pop_all(self) -> list[Call]:
        calls = list(self._calls.values())
        self._calls.clear()
        self._counts.clear()
        return calls


class WaitingRequests:
    """Requests that were sent and not answered, by their ids at the server. Each is in one of two places.

    `in_flight`: the server works on it. `suspended`: the server asked the client something; the call does not count
    towards the limit of the link and has no deadline until the client has answered.
    """

    __slots__ = ("in_flight", "suspended")

    def __init__(self) -> None:
        self.in_flight: dict[int, Pending] = {}
        self.suspended = SuspendedCalls()

    def __contains__(self, upstream_id: int) -> bool:
        return upstream_id in self.in_flight or upstream_id in self.suspended

    def get(self, upstream_id: int) -> Pending | None:
        return self.in_flight.get(upstream_id) or self.suspended.get(upstream_id)

    def pop(self, upstream_id: int) -> Pending | None:
        return self.in_flight.pop(upstream_id, None) or self.suspended.pop(upstream_id)

    def pop_all(self) -> list[Pending]:
        requests: list[Pending] = [*self.in_flight.values(), *self.suspended.pop_all()]
        self.in_flight.clear()
        return requests

    def suspend(self, call: Call) -> None:
        if self.in_flight.pop(call.upstream_id, None) is not None:
            self.suspended.add(call)

    def resume(self, call: Call) -> None:
        if self.suspended.pop(call.upstream_id) is not None:
            self.in_flight[call.upstream_id] = call

    @property
    def calls_in_flight(self) -> list[Call]:
        return [pending for pending in self.in_flight.values() if isinstance(pending, Call)]

    @property
    def principals(self) -> set[str]:
        """Return the names of all principals with a call that waits here."""
        return {call.caller.principal.name for call in self.calls_in_flight} | self.suspended.principals

    def find_speaking_call(self) -> Call | None:
        """Return the call that a message without an id must be about, or None if it may be another client's.

        All calls share the pipe. A legacy session is one client with all its calls; each modern request is a client of
        its own. If one client has calls, it is the last of them. If several clients of one principal have calls, it is
        the only one that waits for no answer of its client, or that the server is just asking (a server may ask
        several questions at once).
        """
        calls, suspended = self.calls_in_flight, self.suspended
        clients = {id(call.caller) if call.caller.asker is not None else id(call): call for call in calls}
        if len(clients) + len(suspended) <= 1:
            return calls[-1] if calls else suspended.first()
        if len(self.principals) > 1:
            return None
        candidates = [call for call in clients.values() if not call.asking or _is_gathering(call)]
        return candidates[0] if len(candidates) == 1 else None


def _is_gathering(call: Call) -> bool:
    return call.dialogue is not None and call.dialogue.is_gathering

"""A list request that waits for servers while the rights of its client change."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from interlock.core.calls.caller import Caller, Principal, ViewKey, view_key
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.sessions import ClientSession, StreamLogs
from interlock.mcp.methods import LATEST_LEGACY, TOOLS_LIST, Era


class WaitingLists:
    """Lists that are answered when the test says so."""

    def __init__(self) -> None:
        self.keys: list[ViewKey] = []
        self.answers: list[Callable[[], None]] = []

    def when_fresh(self, method: str, then: Callable[[], None]) -> None:
        self.answers.append(then)

    def list(self, method: str, key: ViewKey, params: dict[str, Any], era: Era) -> bytes:
        self.keys.append(key)
        return b'{"tools":[]}'


def test_a_list_that_had_to_wait_shows_what_the_client_may_see_by_then() -> None:
    dispatch = SimpleNamespace(read_resource=None, get_prompt=None, complete=None, confirm=None)
    lists, other = WaitingLists(), SimpleNamespace()
    front = LegacyFront(dispatch, lists, other, other, other, other)  # type: ignore[arg-type]
    before = Principal("client:a", scope="admin")
    key = view_key(before, only=None, names="auto", declares_extension=False)
    caller = Caller(before, Era.LEGACY, "http", key)
    session = ClientSession("s", caller, LATEST_LEGACY, 0.0, StreamLogs())
    answers: list[bytes] = []
    sink: Any = SimpleNamespace(answer=lambda message, status=200: answers.append(message))
    front.request(session, b"1", TOOLS_LIST, {}, sink)
    caller.act_as(Principal("client:a", scope="read"))
    (answer,) = lists.answers
    answer()
    assert [key.scope for key in lists.keys] == ["read"]
    assert answers == [b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}']

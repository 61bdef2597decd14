"""Does a node that remembers routes still follow only those that lead here, and to the tool that was named?"""

from typing import Any

import pytest
from msgspec import Raw

from interlock.protocol.jsonrpc.codec import encode_value
from interlock.protocol.jsonrpc.errors import Fault
from interlock.runtime.calls.incoming_route import KNOWN_MAX, Hop

PATH = ["root", "edge", "gate", "read"]


def said(path: Any = PATH, cursor: Any = 1) -> dict[str, Raw]:
    return {"x-mcpax-route": Raw(encode_value(path)), "x-mcpax-cursor": Raw(encode_value(cursor))}


def test_a_route_is_read_once_and_leads_on_as_before() -> None:
    hop = Hop("edge")
    first = hop.onward({}, said(), ("gate", "read"))
    assert isinstance(first, dict)
    assert {key: bytes(raw) for key, raw in first.items()} == {
        "x-mcpax-route": b'["root","edge","gate","read"]',
        "x-mcpax-cursor": b"2",
    }
    assert hop.onward({}, said(), ("gate", "read")) is first


@pytest.mark.parametrize(
    ("meta", "rest"),
    [
        (said(), ("gate", "write")),
        (said(), ("gate",)),
        (said(cursor=0), ("gate", "read")),
        (said(cursor=2), ("gate", "read")),
        (said(cursor=-1), ("gate", "read")),
        (said(path=["root", "edge", "gate", "READ"]), ("gate", "read")),
        ({**said(), "x-mcpax-cursor": Raw(b"null")}, ("gate", "read")),
        ({"x-mcpax-route": said()["x-mcpax-route"]}, ("gate", "read")),
    ],
)
def test_what_was_remembered_of_one_request_is_not_believed_of_another(
    meta: dict[str, Raw], rest: tuple[str, ...]
) -> None:
    hop = Hop("edge")
    assert isinstance(hop.onward({}, said(), ("gate", "read")), dict)
    assert isinstance(hop.onward({}, meta, rest), Fault)
    assert isinstance(hop.onward({}, meta, rest), Fault)  # a refusal is not remembered as anything else
    assert isinstance(hop.onward({}, said(), ("gate", "read")), dict)


def test_a_route_beside_meta_is_compared_with_the_one_in_it_every_time() -> None:
    hop = Hop("edge")
    assert isinstance(hop.onward({}, said(), ("gate", "read")), dict)
    assert isinstance(hop.onward(said(path=["evil", "edge", "gate", "read"]), said(), ("gate", "read")), Fault)
    params: dict[str, Any] = dict(said())
    assert isinstance(hop.onward(params, said(), ("gate", "read")), dict)
    assert params == {}  # written only to `_meta`


def test_the_memory_for_routes_is_bounded() -> None:
    hop = Hop("edge")
    for number in range(KNOWN_MAX + 10):
        assert isinstance(hop.onward({}, said(["edge", f"t{number}"], 0), (f"t{number}",)), dict)
    assert len(hop._known) <= KNOWN_MAX

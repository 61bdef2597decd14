"""Does a node that remembers routes still follow only those that lead here, and to the tool that was named?"""

from typing import Any

import pytest
from msgspec import Raw

from interlock.core.calls.caller import KNOWN_MAX, Followed, Hop
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import Refusal

PATH = ["root", "edge", "gate", "read"]


def said(path: Any = PATH, cursor: Any = 1) -> dict[str, Raw]:
    return {"x-mcpax-route": Raw(encode_value(path)), "x-mcpax-cursor": Raw(encode_value(cursor))}


READ = Raw(b'"gate.read"')


def test_a_route_is_read_once_and_leads_on_as_before() -> None:
    hop = Hop("edge")
    first = hop.follow({}, said(), READ)
    assert isinstance(first, Followed)
    assert {key: bytes(raw) for key, raw in first.onward.items()} == {
        "x-mcpax-route": b'["root","edge","gate","read"]',
        "x-mcpax-cursor": b"2",
    }
    assert hop.follow({}, said(), READ) is first


@pytest.mark.req("AX-7.2-4")
@pytest.mark.parametrize("name", [b'"read"', b'"gate.read"', b'"root.edge.gate.read"', b'"g\\u0061te.read"'])
def test_every_way_to_say_the_name_leads_to_the_same_tool(name: bytes) -> None:
    hop = Hop("edge")
    for _ in range(2):
        followed = hop.follow({}, said(), Raw(name))
        assert isinstance(followed, Followed)
        assert (followed.name, bytes(followed.raw)) == ("gate.read", b'"gate.read"')


@pytest.mark.parametrize(
    ("meta", "name"),
    [
        (said(), b'"gate.write"'),
        (said(), b'"gate"'),
        (said(), b'"edge.gate.read"'),
        (said(cursor=0), b'"gate.read"'),
        (said(cursor=2), b'"gate.read"'),
        (said(cursor=-1), b'"gate.read"'),
        (said(path=["root", "edge", "gate", "READ"]), b'"gate.read"'),
        ({**said(), "x-mcpax-cursor": Raw(b"null")}, b'"gate.read"'),
        ({"x-mcpax-route": said()["x-mcpax-route"]}, b'"gate.read"'),
    ],
)
def test_what_was_remembered_of_one_request_is_not_believed_of_another_request(
    meta: dict[str, Raw], name: bytes
) -> None:
    hop = Hop("edge")
    assert isinstance(hop.follow({}, said(), READ), Followed)
    assert isinstance(hop.follow({}, meta, Raw(name)), Refusal)
    assert isinstance(hop.follow({}, meta, Raw(name)), Refusal)  # a refusal is not remembered as anything else
    assert isinstance(hop.follow({}, said(), READ), Followed)


def test_a_route_beside_meta_is_compared_with_the_route_in_it_every_time() -> None:
    hop = Hop("edge")
    assert isinstance(hop.follow({}, said(), READ), Followed)
    assert isinstance(hop.follow(said(path=["evil", "edge", "gate", "read"]), said(), READ), Refusal)
    params: dict[str, Any] = dict(said())
    assert isinstance(hop.follow(params, said(), READ), Followed)
    assert params == {}  # written only to `_meta`


def test_without_a_route_or_a_name_there_is_nothing_to_follow() -> None:
    hop = Hop("edge")
    assert hop.follow({}, {}, READ) is None
    assert hop.follow({}, said(), None) is None
    assert hop.follow({}, said(), Raw(b"7")) is None


def test_the_memory_for_routes_is_bounded() -> None:
    hop = Hop("edge")
    for number in range(KNOWN_MAX + 10):
        assert isinstance(hop.follow({}, said(["edge", f"t{number}"], 0), Raw(b'"t%d"' % number)), Followed)
    assert len(hop._known) <= KNOWN_MAX

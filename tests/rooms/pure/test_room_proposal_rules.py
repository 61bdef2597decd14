"""What a proposal asks for, how it stands, and which envelopes carry it out or answer that."""

import pytest
from msgspec import Raw

from interlock.approvals.protocol.approval import (
    TABLE,
    Approval,
    Kind,
    Move,
    Source,
    Status,
    find_next_status,
    refusal_of,
)
from interlock.approvals.protocol.digests import proposal_digest
from interlock.rooms.protocol.proposals import (
    STATUS,
    Fulfilment,
    ProposalStatus,
    fulfilment_payload,
    is_as_proposed,
    read_fulfilment,
    read_outcome,
    read_proposed,
    read_reason,
)

MOVES = {  # what a room sees of every move there is
    ("pending", Move.APPROVE): "claimed",
    ("pending", Move.DENY): "rejected",
    ("pending", Move.WITHDRAW): "withdrawn",
    ("pending", Move.EXPIRE): "expired",
    ("pending", Move.VOID): "void",
    ("claimed", Move.USE): "claimed",
    ("claimed", Move.DENY): "rejected",
    ("claimed", Move.EXPIRE): "expired",
    ("claimed", Move.VOID): "void",
    ("claimed", Move.SUCCEED): "fulfilled",
    ("claimed", Move.FAIL): "failed",
    ("claimed", Move.LOSE): "unknown",
}


@pytest.mark.req("X-10.2-1", "X-N-6")
def test_a_room_has_a_word_for_every_state_and_no_move_beside_the_inbox() -> None:
    assert STATUS.keys() == set(Status) and set(STATUS.values()) == set(ProposalStatus)
    assert {(STATUS[before].value, move): STATUS[after].value for (before, move), after in TABLE.items()} == MOVES


@pytest.mark.req("X-10.2-1")
@pytest.mark.parametrize("status", Status)
def test_an_illegal_move_is_refused_by_its_name(status: Status) -> None:
    approval = Approval(
        id="i",
        kind=Kind.PROPOSAL,
        source=Source.ROOMS,
        requested_by="r",
        tool="t",
        digest="d",
        created_at=0,
        status=status,
    )
    names = {"claimed": "already_claimed", "fulfilled": "already_claimed", "failed": "already_claimed"}
    names |= {"unknown": "already_claimed", "expired": "proposal_expired", "rejected": "confirmation_denied"}
    names |= {"withdrawn": "confirmation_void", "void": "confirmation_void", "pending": "confirmation_unknown"}
    assert refusal_of(approval).message == names[STATUS[status].value]
    assert (find_next_status(status, Move.APPROVE) is not None) == (status is Status.PENDING)


@pytest.mark.req("X-4.2-2", "X-4.2-3", "X-4.2-4")
def test_a_proposal_is_read_as_it_was_written() -> None:
    payload = b'{"method":"tools/call","params":{ "name":"a","arguments":{"n":1.50} },"reason":"why"}'
    result = read_proposed(payload)
    assert result is not None and (result.method, result.tool, result.reason) == ("tools/call", "a", "why")
    assert result.params == Raw(b'{ "name":"a","arguments":{"n":1.50} }')
    bare = read_proposed(b'{"method":"resources/list"}')
    assert bare is not None and (bare.params, bare.tool) == (None, None)
    for params in (
        b'{"name":"a","name":"b"}',
        b'{"x":{"y":1,"y":2}}',
        b'{"x":NaN}',
        b'{"n":12345678901234567890}',
        b"{" + b'"a":{' * 900,
    ):
        assert read_proposed(b'{"method":"m","params":%b}' % params) is None


@pytest.mark.parametrize(
    "payload",
    [
        b'{"method":"m","params":{"name":"safe"},"params":{"name":"other"}}',
        b'{"method":"m","method":"n"}',
        b'{"method":"m","reason":"a","reason":"b"}',
        b'{"method":"m","params":{},"\\u0070arams":{"name":"other"}}',
        b'{"method":"m","params":{},"Params":{"name":"other"}}',
        b'{"method":"m","params":{},"about":{"a":1,"a":2}}',
    ],
)
def test_a_proposal_that_readers_may_take_in_two_ways_is_none(payload: bytes) -> None:
    assert read_proposed(payload) is None
    assert read_proposed(b'{"method":"m","params":{"method":1,"reason":2},"about":{"a":1}}') is not None


@pytest.mark.req("X-4.2.1-2")
def test_a_fulfilment_is_what_was_proposed_with_an_id_and_nothing_else() -> None:
    params = Raw(b'{ "name":"a" }')
    assert fulfilment_payload("tools/call", params, "7") == (
        b'{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{ "name":"a" }}'
    )
    assert fulfilment_payload("ping", None, "7") == b'{"jsonrpc":"2.0","id":"7","method":"ping"}'
    read = read_fulfilment(fulfilment_payload("tools/call", params, "7"))
    assert read == Fulfilment(method="tools/call", id=Raw(b'"7"'), params=params)
    for payload in (b'{"method":"x"}', b'{"id":1}', b"[]", b"", b'{"id":1,"method":2}'):
        assert read_fulfilment(payload) is None


@pytest.mark.req("X-4.2.1-3")
@pytest.mark.parametrize(
    ("sent", "is_same"),
    [
        (b'{"a":1,"b":[2]}', True),
        (b'{ "b":[2.0], "a":1e0 }', True),
        (b'{"a":1,"b":[2],"c":null}', False),
        (b'{"a":"1","b":[2]}', False),
        (b'{"a":2,"a":1,"b":[2]}', False),
    ],
)
def test_params_are_compared_by_value_not_by_spelling(sent: bytes, is_same: bool) -> None:
    request = Fulfilment(method="m", id=Raw(b"1"), params=Raw(sent))
    assert is_as_proposed("m", Raw(b'{"a":1,"b":[2]}'), request) is is_same
    assert not is_as_proposed("n", Raw(b'{"a":1,"b":[2]}'), request)
    assert is_as_proposed("m", None, Fulfilment(method="m", id=Raw(b"1"), params=Raw(b"{}")))


@pytest.mark.parametrize(
    ("payload", "end"),
    [
        (b'{"id":7,"result":{}}', (Move.SUCCEED, "ok")),
        (b'{"id":7,"result":{"isError":true}}', (Move.SUCCEED, "tool_error")),
        (b'{"id":7,"result":5}', (Move.SUCCEED, "ok")),
        (b'{"id":7,"error":{"code":1}}', (Move.FAIL, "error")),
        (b'{"id":"7","result":{}}', None),
        (b'{"id":7}', None),
        (b'{"id":7,"result":{},"error":{}}', None),
        (b"nonsense", None),
    ],
)
def test_an_answer_tells_how_a_fulfilment_ended(payload: bytes, end: object) -> None:
    assert read_outcome(payload, b"7") == end


def test_each_part_of_what_is_shown_is_in_the_digest() -> None:
    shown = ("garden", "p1", "agent", "robot", "tools/call", b"{}")
    digests = {proposal_digest(*shown)}
    for place in range(5):
        changed = [*shown]
        changed[place] = "other"
        digests.add(proposal_digest(*changed))  # type: ignore[arg-type]
    digests |= {
        proposal_digest(*shown[:5], b"{ }"),
        proposal_digest("garden", "p1agent", "", "robot", "tools/call", b"{}"),
    }
    assert len(digests) == 8


def test_a_reason_is_a_string_and_is_cut() -> None:
    assert (
        read_reason(b'{"reason":"unsafe"}') == "unsafe"
        and len(read_reason(b'{"reason":"%b"}' % (b"x" * 9000)) or "") == 2000
    )
    assert read_reason(b'{"reason":5}') is None and read_reason(b"[") is None and read_reason(b"{}") is None

"""How many connections one peer may have, and for whom unfinished requests leave room."""

from ipaddress import ip_address
from typing import Any, cast

from interlock.fronts.connections import ENDPOINT_UNKNOWN_BYTES, PEER_UNKNOWN_BYTES, ConnectionTable
from interlock.net.protocol.address_scope import is_loopback

MESSAGE_BYTES = 1024


def connections(most: int) -> ConnectionTable:
    return ConnectionTable(most=most, message_bytes=MESSAGE_BYTES, note_refusal=lambda *_: None, is_shared=is_loopback)


def one() -> Any:
    return cast(Any, object())


def test_one_peer_cannot_take_all_connections() -> None:
    table = connections(8)
    peer, site, near = ip_address("203.0.113.5"), ip_address("2001:db8::1"), ip_address("2001:db8::2")
    mine = [one(), one()]
    assert all(table.enter(each, peer) for each in mine)
    assert not table.enter(one(), peer)
    assert table.enter(one(), site) and table.enter(one(), near)
    assert not table.enter(one(), ip_address("2001:db8::3"))  # of the same site
    table.leave(mine[0])
    table.leave(mine[0])
    assert table.enter(one(), peer) and not table.enter(one(), peer)


def test_programs_of_this_machine_share_an_address_and_have_the_bound_of_all() -> None:
    table = connections(8)
    assert [table.enter(one(), ip_address("127.0.0.1")) for _ in range(9)] == [True] * 8 + [False]
    assert not table.enter(one(), None)


def test_bytes_of_unknown_peers_take_no_memory_reserved_for_bodies() -> None:
    table = connections(8)
    peer = "203.0.113.5"
    assert table.unknown.hold(peer, PEER_UNKNOWN_BYTES) is not None
    assert table.unknown.hold(peer, 1) is None
    for number in range(ENDPOINT_UNKNOWN_BYTES // PEER_UNKNOWN_BYTES - 1):
        assert table.unknown.hold(f"198.51.100.{number}", PEER_UNKNOWN_BYTES) is not None
    assert table.unknown.hold("192.0.2.1", 1) is None
    assert table.bodies.hold(peer, 4 * MESSAGE_BYTES) is not None

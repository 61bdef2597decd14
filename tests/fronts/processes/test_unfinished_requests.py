"""What strangers send and do not finish costs little memory, and is refused as soon as its head says so."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.start import raw
from tests.support.authority import Authority, authority, protected_node
from tests.support.node_process import RunningNode, running_node, wait_for
from tests.support.raw_client import RawConnection, ask, assert_unharmed, call, modern_headers, request

TOOL = "good__echo"
MIB = 1024 * 1024
BODY = 15 * MIB
CROWD = 80
CHUNKED = {"transfer-encoding": "chunked", "content-length": None}
SERVERS = {"good": {"command": raw("all")}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("open"), SERVERS) as started:
        yield started


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("guarded"), SERVERS, '[auth]\nanonymous = "never"\n') as started:
        yield started


def resident_mib(node: RunningNode) -> float:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def unfinished(length: int = BODY + 2, **headers: str | None) -> bytes:
    """A head, and one byte of its body."""
    named = {**modern_headers("tools/call", TOOL), "content-length": str(length), **headers}
    return request("POST", "/mcp", named) + (b"1\r\n{\r\nfffffff\r\n" if headers == CHUNKED else b"{")


def from_address(node: RunningNode, number: int) -> socket.socket:
    return socket.create_connection((node.host, node.port), 10, (f"127.0.1.{number}", 0))


# Memory


@pytest.mark.parametrize("head", [{}, {"authorization": "Bearer ilc_nobody"}, CHUNKED], ids=str)
def test_bodies_of_those_who_may_not_come_in_are_not_kept(guarded: RunningNode, head: dict[str, str | None]) -> None:
    before = resident_mib(guarded)
    with contextlib.ExitStack() as open_connections:
        crowd = [open_connections.enter_context(RawConnection(guarded)) for _ in range(CROWD)]
        for rude in crowd:
            rude.send(unfinished(**head))
            rude.send(b"x" * BODY)
        assert resident_mib(guarded) < before + 30
        for rude in crowd:
            answer = rude.answer()
            assert (answer.status, answer.json["error"]) == (401, "unauthorised")


@pytest.mark.parametrize(("sources", "held_mib"), [(1, 64), (20, 128)], ids=["one peer", "many peers"])
def test_unfinished_bodies_are_held_up_to_a_limit_of_the_peer_and_of_the_endpoint(
    node: RunningNode, sources: int, held_mib: int
) -> None:
    before, count = resident_mib(node), CROWD // 3
    with contextlib.ExitStack() as open_connections:
        crowd = [open_connections.enter_context(from_address(node, number % sources + 1)) for number in range(count)]
        for one in crowd:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                one.sendall(unfinished() + b"x" * BODY)
        assert resident_mib(node) < before + 1.2 * held_mib + 30
        assert_unharmed(node)  # who sends short requests is served all the same
        refused = [one for one in crowd if refusal(one)]
        assert count - held_mib // 15 - 1 <= len(refused) < count
    wait_for(lambda: resident_mib(node) < before + 40)
    whole = call(TOOL, {"a": "x" * BODY})
    assert len(ask(node, whole).json["result"]["structuredContent"]["a"]) == BODY  # what was held is given back


def refusal(one: socket.socket) -> bool:
    one.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        said = one.recv(4096)
        assert said.startswith(b"HTTP/1.1 503 ") and b"retry-after: 5" in said and b"too_many_bytes" in said
        return True
    return False


def test_a_body_in_tiny_chunks_costs_no_more_than_its_bytes(node: RunningNode) -> None:
    chunks = 2_000_000
    before = resident_mib(node)
    with RawConnection(node, 30) as rude:
        rude.send(request("POST", "/mcp", {**modern_headers("tools/call", TOOL), **CHUNKED}))
        for _ in range(20):
            rude.send(b"2\r\nab\r\n" * (chunks // 20))
        assert ask(node, request("GET", "/healthz"), 30).status == 200
        assert resident_mib(node) < before + 2 * chunks / MIB + 20


def test_heads_that_do_not_end_are_held_up_to_the_limit_too(node: RunningNode) -> None:
    before = resident_mib(node)
    with contextlib.ExitStack() as open_connections:
        for _ in range(900):
            rude = open_connections.enter_context(RawConnection(node))
            rude.send(b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"x" * 60_000)
        assert ask(node, request("GET", "/healthz")).status == 200
        assert resident_mib(node) < before + 110


# When the head is judged


@pytest.mark.parametrize(
    ("status", "head"),
    [
        (401, {}),
        (401, {"authorization": "Bearer ilc_nobody"}),
        (401, {"expect": "100-continue"}),
        (403, {"origin": "https://evil.example"}),
        (421, {"host": "evil.example"}),
    ],
    ids=str,
)
def test_a_head_is_judged_before_its_body_has_come(guarded: RunningNode, status: int, head: dict[str, str]) -> None:
    with RawConnection(guarded, 5.0) as rude:
        answer = rude.send(unfinished(**head)).answer()
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert rude.interim == []
        rude.assert_closed()


def test_a_head_that_is_known_is_judged_before_its_body_has_come_too(guarded: RunningNode) -> None:
    whole = call(TOOL, {"a": 1})
    end = whole.index(b"\r\n\r\n") + 4
    with RawConnection(guarded, 5.0) as rude:
        for _ in range(3):
            assert rude.send(whole).answer().status == 401
        assert rude.send(whole[:end]).answer().status == 401
        rude.assert_closed()


def test_a_request_refused_at_its_head_is_recorded(guarded: RunningNode) -> None:
    with RawConnection(guarded) as rude:
        assert rude.send(unfinished()).answer().status == 401

    def recorded() -> bool:
        records = guarded.admin("/admin/audit?limit=50")["records"]
        return any(one["reason"] == "unauthorised" and one["who"] == "peer:127.0.0.1" for one in records)

    wait_for(recorded)


def test_a_refusal_is_read_by_a_client_that_sends_all_it_has_first(node: RunningNode, guarded: RunningNode) -> None:
    for where, status, data in (
        (node, 413, request("POST", "/mcp", modern_headers("tools/call", TOOL), b"x" * 40 * MIB)),
        (guarded, 401, request("POST", "/mcp", modern_headers("tools/call", TOOL), b"x" * BODY)),
    ):
        with RawConnection(where) as rude:
            rude.socket.sendall(data)
            time.sleep(0.1)  # a reset would overtake the answer now
            assert rude.answer().status == status


@pytest.fixture(scope="module")
def corp() -> Iterator[Authority]:
    with authority() as started:
        yield started


def test_the_body_of_a_token_that_has_to_be_asked_about_waits_for_the_verdict(corp: Authority, tmp_path: Path) -> None:
    with protected_node(tmp_path, corp, "") as node:
        for token, status in ((corp.token(), 200), ("opaque", 401)):
            whole = call(TOOL, {"a": 1}, authorization=f"Bearer {token}", expect="100-continue")
            end = whole.index(b"\r\n\r\n") + 4
            with RawConnection(node) as rude:
                rude.send(whole[:end])
                if status == 200:
                    assert rude._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
                    rude.send(whole[end:])
                answer = rude.answer()
                assert answer.status == status
        for token, status in ((corp.token(sub="other"), 200), ("opaque", 401)):
            whole = call(TOOL, {"a": "x" * MIB}, authorization=f"Bearer {token}")
            with RawConnection(node) as rude:
                assert rude.send(whole).answer().status == status

"""Every call leaves a record: who, what, the digest of its arguments, verdict, outcome, duration. None is lost."""

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.raw_client import (
    STAMP,
    RawConnection,
    ask,
    assert_unharmed,
    call,
    legacy,
    legacy_session,
    modern,
    modern_headers,
    request,
)

SERVERS: dict[str, dict[str, Any]] = {
    "good": {"command": raw("all")},
    "crash": {"command": raw("crash-on-call")},
    "never": {"command": raw("never")},
}
RULES = '[[tool]]\nmatch = "never.*"\nlatency_class = "realtime"\n'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("audit"), SERVERS, RULES) as started:
        yield started
        assert_unharmed(started)


def records_of(node: RunningNode, *requests: bytes) -> list[dict[str, Any]]:
    """The records that these requests left."""
    before = node.admin("/admin/audit?limit=1")["last"]
    for data in requests:
        ask(node, data)
    return node.admin(f"/admin/audit?after={before}&limit=1000")["records"]


def digest(arguments: bytes) -> str:
    return hashlib.sha256(arguments).hexdigest()


def test_a_call_leaves_who_what_digest_verdict_outcome_and_duration(node: RunningNode) -> None:
    token = node.admin("/admin/tokens", "POST", {"name": "ci", "for": "client"})["token"]
    arguments = b'{ "z":1.0 ,"a":"\xc3\xa9" }'
    stamp = json.dumps(STAMP).encode()
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"good__progress","arguments":%b,"_meta":%b}}'
    )
    body = body % (arguments, stamp)
    headers = modern_headers("tools/call", "good__progress", authorization=f"Bearer {token}")
    slow = call("good__progress", {"steps": 1, "ms": 120})
    first, second = records_of(node, request("POST", "/mcp", headers, body), slow)
    assert (first["who"], first["via"], first["method"]) == ("client:ci", "http", "tools/call")
    assert (first["tool"], first["verdict"], first["outcome"]) == ("good.progress", "admitted", "ok")
    assert first["args_sha256"] == digest(arguments)
    assert second["who"] == "local"
    assert second["ms"] >= 120
    assert second["seq"] == first["seq"] + 1
    assert first["at"].endswith("Z") and abs(time.time() - _unix(first["at"])) < 60
    assert "\xe9" not in json.dumps(first) and token not in json.dumps(first)  # arguments are not kept, nor tokens


def _unix(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("data", "tool", "verdict", "outcome", "reason"),
    [
        (call("good__echo"), "good.echo", "admitted", "ok", None),
        (call("good__fail"), "good.fail", "admitted", "tool_error", None),
        (call("good__refuse"), "good.refuse", "admitted", "error", None),
        (call("never__echo"), "never.echo", "admitted", "timeout", "call_timeout"),
        (call("crash__echo"), "crash.echo", "admitted", "lost", "subserver_unreachable"),
        (call("no_such_tool"), "no_such_tool", "refused", "refused", "tool_not_found"),
        (call("good__touch\u0000"), "good__touch\u0000", "refused", "refused", "tool_not_found"),
        (modern("prompts/get", {"name": "good__plain"}), "good.plain", "admitted", "ok", None),
        (modern("resources/read", {"uri": "raw://text"}), "raw://text", "admitted", "ok", None),
        (modern("resources/read", {"uri": "raw://none"}), "raw://none", "refused", "refused", "Resource not found"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_way_a_call_can_end_is_in_the_record(
    node: RunningNode, data: bytes, tool: str, verdict: str, outcome: str, reason: str | None
) -> None:
    for segment in ("crash", "never"):
        node.wait_link(segment, {"state": "ready"})
    [record] = records_of(node, data)
    assert (record["tool"], record["verdict"], record["outcome"]) == (tool, verdict, outcome)
    assert record.get("reason") == reason
    assert record["ms"] >= 0
    assert len(record["args_sha256"]) == 64


def test_calls_on_every_front_and_cancelled_calls_are_in_the_record(node: RunningNode) -> None:
    session = legacy_session(node)
    [record] = records_of(node, legacy(session, "tools/call", {"name": "good__echo", "arguments": {}}))
    assert (record["via"], record["outcome"], record["args_sha256"]) == ("http", "ok", digest(b"{}"))
    before = node.admin("/admin/audit?limit=1")["last"]
    with RawConnection(node) as rude:
        rude.send(call("good__wait"))
        wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 1)
    [record] = wait_for(lambda: node.admin(f"/admin/audit?after={before}")["records"])
    assert (record["tool"], record["outcome"]) == ("good.wait", "cancelled")


def test_the_chain_is_proved_and_one_changed_byte_is_found(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:
        with Wire(node) as wire:
            for number in range(30):
                wire.modern("tools/call", {"name": "good__echo", "arguments": {"n": number}})
        shown = node.cli("audit", "tail", "-n", "5", "--json")
        assert len(shown.stdout.splitlines()) == 5
        assert node.stop() == 0
        verified = node.cli("audit", "verify", "--json")
        assert verified.returncode == 0, verified.stderr
        proof = json.loads(verified.stdout)
        assert (proof["intact"], proof["records"]) == (True, 30)
        exported = node.cli("audit", "export")
        assert len(exported.stdout.splitlines()) == 30
        assert change_record(node.data, b'"good.echo"', b'"good.ecHo"', at=17) == 17
        broken = node.cli("audit", "verify", "--json")
        assert broken.returncode == 1
        proof = json.loads(broken.stdout)
        assert proof["intact"] is False
        assert proof["broken"]["sequence"] == 17


def change_record(data: Path, was: bytes, now: bytes, at: int = 0) -> int:
    """In the first record from there on that holds it, wherever the log keeps it; gives its number."""
    whole = re.compile(rb"[^\n]+")
    with sqlite3.connect(data / "audit" / "audit.db") as database:
        for first, blob in database.execute("SELECT seq, data FROM record ORDER BY seq").fetchall():
            for sequence, record in enumerate(whole.finditer(blob), first):
                if sequence >= at and was in record[0]:
                    changed = blob[: record.start()] + record[0].replace(was, now) + blob[record.end() :]
                    database.execute("UPDATE record SET data = ? WHERE seq = ?", (changed, first))
                    database.commit()
                    return sequence
    raise AssertionError(f"no record holds {was!r}")


def test_a_killed_node_loses_a_second_at_most_and_leaves_a_whole_chain(tmp_path: Path) -> None:
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:
        with Wire(node) as wire:
            for number in range(50):
                wire.modern("tools/call", {"name": "good__echo", "arguments": {"n": number}})
            answered = time.monotonic()
            # Nobody asks the node, which would make it write: the folder is looked at from outside.
            wait_for(lambda: stored(node) >= 50, 3)
            assert time.monotonic() - answered < 1.5
            for number in range(200):
                wire.modern("tools/call", {"name": "good__echo", "arguments": {"n": number}})
        node.process.kill()
        node.process.wait()
        verified = node.cli("audit", "verify", "--json")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert 50 <= json.loads(verified.stdout)["records"] <= 250
    with running_node(tmp_path / "n", {"good": {"command": raw("all")}}) as node:  # and the chain goes on
        ask(node, call("good__echo"))
        node.stop()
        verified = node.cli("audit", "verify", "--json")
        assert json.loads(verified.stdout)["intact"] is True


def stored(node: RunningNode) -> int:
    """How many records stand in the file: their hashes are 32 bytes each."""
    path = node.data / "audit" / "audit.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as database:
        [count] = database.execute("SELECT coalesce(sum(length(hash)), 0) / 32 FROM record").fetchone()
    database.close()
    return count

"""Do tokens and the audit log work on a data folder that no node runs on?"""

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.program import Inline, Interlock

from interlock.store.sqlite.audit import AUDIT_FILE, SqliteAudit
from interlock.store.sqlite.store import SqliteStore
from interlock.store.tokens import TokenRecord, TokenTable, token_hash


def found(data: Path, token: str) -> TokenRecord | None:
    async def find() -> TokenRecord | None:
        store = SqliteStore(data)
        await store.open()
        try:
            return await TokenTable(store.kv).find(token_hash(token), time.time())
        finally:
            await store.close()

    return asyncio.run(find())


def test_a_token_made_without_a_node_is_kept_as_a_hash_and_accepted_at_its_endpoint(interlock: Interlock) -> None:
    output = interlock("access", "token", "--for", "client", "--name", "ci", "--scope", "read", "--days", "2")
    token = output.out.strip()
    assert re.fullmatch(r"ilc_[0-9A-Za-z]{43}", token)
    record = found(interlock.data, token)
    assert record is not None
    assert (record.name, record.audience, record.scope) == ("ci", "client", "read")
    assert record.expires_at is not None
    assert abs(record.expires_at - time.time() - 2 * 86400) < 60
    assert token.encode() not in (interlock.data / "store.db").read_bytes()


def test_tokens_are_listed_and_revoked_without_a_node(interlock: Interlock) -> None:
    issued = interlock("access", "token", "--for", "operator", "--name", "me", "--json").json
    assert issued["token"].startswith("ilo_")
    assert set(issued) == {"token", "id", "name", "for", "expires_at"}
    (listed,) = interlock("access", "list", "--json").json["tokens"]
    assert (listed["id"], listed["door"]) == (issued["id"], "operator")
    assert "token" not in listed
    assert interlock("access", "revoke", "me").out == f"revoked {issued['id']}\n"
    assert found(interlock.data, issued["token"]) is None
    assert interlock("access", "list", "--json").json == {"tokens": []}
    assert interlock("access", "revoke", "me").code == 1


def test_a_token_made_or_revoked_without_a_node_is_on_record_and_the_token_is_not(interlock: Interlock) -> None:
    issued = interlock("access", "token", "--for", "client", "--name", "ci", "--scope", "read", "--json").json
    assert interlock("access", "revoke", "ci").code == 0
    assert interlock("access", "revoke", "ci").code == 1
    out = interlock("audit", "export").out
    records = [json.loads(line) for line in out.splitlines()]
    assert [
        (current_record["who"], current_record["via"], current_record["method"], current_record["outcome"])
        for current_record in records
    ] == [
        ("local", "operator", "tokens/issue", "made"),
        ("local", "operator", "tokens/revoke", "revoked"),
    ]
    for record in records:
        assert (record["token_id"], record["token_name"], record["token_for"]) == (issued["id"], "ci", "client")
        assert (record["scope"], record["until"]) == ("read", issued["expires_at"])
    assert issued["token"] not in out
    assert interlock("audit", "verify").code == 0
    assert "tokens/issue ci for client" in interlock("audit", "tail").out


@pytest.mark.parametrize("name", ["", "a b", "-x", "a" * 65, "ü", "a\nb", "../x"])
def test_a_name_that_a_principal_cannot_bear_is_refused(inline: Inline, name: str) -> None:
    done = inline("access", "token", "--for", "client", f"--name={name}")
    assert (done.code, done.out) == (1, "")
    assert "token name" in done.err


def test_another_nodes_tokens_are_not_looked_for_here(inline: Inline) -> None:
    done = inline("access", "list", "--url", "http://127.0.0.1:1")
    assert (done.code, done.out) == (4, "")


def test_a_store_that_is_none_is_refused_with_what_to_do(inline: Inline, interlock: Interlock) -> None:
    (interlock.data / "store.db").write_bytes(b"this is no database" * 100)
    done = inline("access", "list")
    assert (done.code, done.out) == (1, "")
    assert "Traceback" not in done.err


@pytest.fixture
def logged(interlock: Interlock) -> Interlock:
    """A data folder whose audit log has five records."""
    append(interlock, [f'{{"at":"2026-11-15T10:00:0{n}Z","who":"local","n":{n}.10}}'.encode() for n in range(5)])
    return interlock


def append(program: Interlock, records: list[bytes]) -> None:
    async def append_all() -> None:
        audit = SqliteAudit(program.data)
        await audit.open()
        for record in records:  # each in a row of its own, so that a statement can touch one
            await audit.append([record])
        await audit.close()

    asyncio.run(append_all())


def tamper(program: Interlock, statement: str) -> None:
    connection = sqlite3.connect(program.data / AUDIT_FILE)
    with connection:
        connection.execute(statement)
    connection.close()


def test_an_intact_log_is_proved(logged: Interlock) -> None:
    done = logged("audit", "verify")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == "intact: 5 records, the last is 5"
    as_json = logged("audit", "verify", "--json").json
    assert (as_json["intact"], as_json["records"], as_json["broken"]) == (True, 5, None)
    assert as_json["last"]["hash"] in done.out


@pytest.mark.parametrize(
    ("statement", "sequence", "flaw"),
    [
        ("UPDATE record SET data = CAST('{}' AS BLOB) WHERE seq = 3", 3, "changed"),
        ("DELETE FROM record WHERE seq = 2", 2, "removed"),
        ("DELETE FROM record WHERE seq > 3", 4, "tail_removed"),
    ],
)
def test_a_log_that_was_touched_exits_1_and_names_the_record(
    logged: Interlock, inline: Inline, statement: str, sequence: int, flaw: str
) -> None:
    tamper(logged, statement)
    done = inline("audit", "verify")
    assert done.code == 1
    assert done.lines[0].startswith(f"BROKEN at record {sequence} ({flaw}): ")
    as_json = inline("audit", "verify", "--json")
    assert (as_json.code, as_json.json["intact"]) == (1, False)
    assert (as_json.json["broken"]["sequence"], as_json.json["broken"]["flaw"]) == (sequence, flaw)


def test_an_export_has_every_record_as_it_was_written(logged: Interlock) -> None:
    done = logged("audit", "export")
    assert (done.code, done.err) == (0, "")
    records = [json.loads(line) for line in done.lines]
    assert [record["seq"] for record in records] == [1, 2, 3, 4, 5]
    assert all(re.fullmatch("[0-9a-f]{64}", record["hash"]) for record in records)
    assert '"n":4.10}' in done.lines[-1]  # the bytes of the value, not a number read and written anew
    assert [json.loads(line)["seq"] for line in logged("audit", "export", "--after", "3").lines] == [4, 5]


def test_a_damaged_record_is_exported_as_such(logged: Interlock, inline: Inline) -> None:
    tamper(logged, "UPDATE record SET data = x'ff00' WHERE seq = 2")
    done = inline("audit", "export")
    assert done.code == 0
    assert "damaged" in json.loads(done.lines[1])


def test_a_reader_that_closes_early_ends_the_export_quietly(logged: Interlock) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "interlock", "audit", "export"],
        env=logged.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_the_log_is_tailed_where_no_node_runs(logged: Interlock) -> None:
    done = logged("audit", "tail", "-n", "2", "--json")
    assert (done.code, done.err) == (0, "")
    records = [json.loads(line) for line in done.lines]
    assert [(record["seq"], record["n"]) for record in records] == [(4, 3.1), (5, 4.1)]
    exported = [json.loads(line) for line in logged("audit", "export", "--after", "3").lines]
    assert records == exported
    drawn = logged("audit", "tail")
    assert drawn.code == 0
    assert re.search(r"10:00:04 +this machine", drawn.out)


def test_tailing_a_stored_log_changes_nothing_in_it(logged: Interlock) -> None:
    value = {path: path.read_bytes() for path in (logged.data / AUDIT_FILE, logged.data / "store.db")}
    assert logged("audit", "tail").code == 0
    assert {path: path.read_bytes() for path in value} == value


def test_a_stored_log_is_followed_until_a_node_writes_to_it(logged: Interlock) -> None:
    with logged.start("audit", "tail", "-n", "1", "--follow", "--json") as following:
        assert json.loads(following.next_line())["seq"] == 5
        append(logged, [b'{"who":"local"}'])
        assert json.loads(following.next_line())["seq"] == 6
        assert following.interrupt().code == 0


def test_a_stored_log_with_a_damaged_record_is_tailed(logged: Interlock, inline: Inline) -> None:
    tamper(logged, "UPDATE record SET data = x'ff00' WHERE seq = 4")
    assert "damaged" in json.loads(inline("audit", "tail", "--json").lines[3])
    assert inline("audit", "tail").code == 0


def test_a_stored_log_that_is_none_is_refused(logged: Interlock, inline: Inline) -> None:
    (logged.data / AUDIT_FILE).write_bytes(b"no database" * 100)
    done = inline("audit", "tail", "--json")
    assert (done.code, done.json["error"]) == (1, "store_refused")


def test_without_a_log_there_is_nothing_to_prove(inline: Inline, interlock: Interlock) -> None:
    for verb in ("verify", "export"):
        done = inline("audit", verb)
        assert (done.code, done.out) == (1, "")
        assert "there is no audit log" in done.err
    assert not (interlock.data / AUDIT_FILE).exists()


def test_another_nodes_log_is_out_of_reach(inline: Inline) -> None:
    done = inline("audit", "verify", "--url", "http://127.0.0.1:1")
    assert done.code == 1
    assert "data folder" in done.err

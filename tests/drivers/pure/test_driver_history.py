"""What of a driver is kept across restarts, and what it says about the next one of the same id and major."""

from typing import Any

import msgspec
import pytest
from tests.drivers.driver_texts import as_driver, binding, driver, remote, told

from interlock.drivers.protocol.identity import Manifest, changes_of_identity, manifest_of, successor_problems
from interlock.drivers.protocol.model import Driver
from interlock.drivers.workspace.declaration import read_record


def read(data: dict[str, Any]) -> Driver:
    value = as_driver(data).value
    assert value is not None
    return value


def stored(driver: Driver) -> Manifest | None:
    """Return the manifest of a driver after it was written to the store and read again."""
    return read_record(msgspec.json.encode(manifest_of(driver)), Manifest)


SEVERAL = [
    driver(),
    driver(server={"kind": "pypi", "package": "mcp-server-git==1.2.3"}),
    driver(server={"kind": "docker", "image": "r.example:5000/a/b:1@sha256:" + "0" * 64}),
    driver(server={"kind": "binary", "path": "/usr/bin/x"}),
    driver(implements=[binding(schema_narrowing={"drop_inputs": ["head"]})], protocol_version="2025-03"),
    remote(),
]


@pytest.mark.parametrize("before", SEVERAL)
@pytest.mark.parametrize("now", SEVERAL)
def test_a_stored_manifest_judges_like_the_file_it_was_read_from(before: dict[str, Any], now: dict[str, Any]) -> None:
    old, new = read(before), read(now | {"version": "1.1.0"})
    kept = stored(old)
    assert kept is not None
    assert successor_problems(kept, new) == tuple(changes_of_identity(old, new))
    assert bool(successor_problems(kept, new)) is (before is not now)


def test_a_driver_that_was_never_registered_has_no_successor_problems() -> None:
    assert successor_problems(None, read(driver())) == ()


def test_while_developing_a_refusal_is_a_warning() -> None:
    kept = stored(read(remote()))
    now = read(remote() | {"transport": "sse"})
    (refused,) = successor_problems(kept, now)
    (warned,) = successor_problems(kept, now, dev=True)
    assert (refused.severity, warned.severity) == ("error", "warning")
    assert told((refused,)) == told((warned,)) == [("major_bump_required", "/transport")]


def test_a_contract_named_with_and_without_a_dot_is_the_same_contract() -> None:
    before = read(driver())
    now = read(driver(implements=[binding(tool="tools/fs-read/TOOL.md", schema_narrowing={"drop_inputs": ["a"]})]))
    assert told(successor_problems(stored(before), now)) == [("major_bump_required", "/implements/0/schema_narrowing")]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"key": 1}', b"[" * 100_000, b'{"x":' + b"[" * 100_000])
def test_bytes_that_nobody_kept_are_recalled_as_nothing(data: bytes) -> None:
    assert read_record(data, Manifest) is None

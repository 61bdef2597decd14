"""A data folder with a fake node in it, and the program that asks it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_node import FakeOperations, FakePublicDoor, serving, tcp_listener, unix_listener, url_of
from program import Inline, Interlock
from tests import prompt_server

from interlock.operator.app import operator_app

prompt_server.install()


@pytest.fixture
def interlock(tmp_path: Path) -> Interlock:
    return Interlock(tmp_path)


@pytest.fixture
def inline(interlock: Interlock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inline:
    return Inline(interlock, monkeypatch, capsys)


@pytest.fixture
def operations() -> FakeOperations:
    return FakeOperations()


@pytest.fixture
def node(interlock: Interlock, operations: FakeOperations) -> Iterator[FakeOperations]:
    """A fake node on the data folder's admin.sock."""
    listener = unix_listener(interlock.data / "run" / "admin.sock")
    with serving(operator_app(operations, authenticate=None), listener):
        yield operations


@pytest.fixture
def public_door(operations: FakeOperations) -> Iterator[FakePublicDoor]:
    door = FakePublicDoor()
    listener = tcp_listener()
    operations.url = url_of(listener) + "/mcp"
    with serving(door.app, listener):
        yield door

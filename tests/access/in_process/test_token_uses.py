"""When a token was last used: known to the minute, written down without a call waiting for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.access.tokens import USE_NOTED_S, TokenRegistry
from interlock.config.plan import AccessRule
from interlock.core.clock import rfc3339
from interlock.core.store_backends import build_store
from interlock.store.ports import Store
from interlock.store.tokens import TokenTable


class Hands:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    built = build_store("sqlite", tmp_path)
    await built.open()
    yield built
    await built.close()


async def _book(store: Store, clock: Hands, *rules: AccessRule) -> TokenRegistry:
    book = TokenRegistry(TokenTable(store.kv), clock, rules, 30)
    await book.open()
    return book


async def _used(book: TokenRegistry) -> str | None:
    (record,) = await book.list()
    return book.token_view(record).last_used_at


async def test_a_clients_token_is_noted_once_a_minute_and_the_caller_stays_the_same(store: Store, clock: Hands) -> None:
    book = await _book(store, clock)
    token, _ = await book.issue("laptop", "client", None, None)
    assert await _used(book) is None
    header = f"Bearer {token}".encode()
    first, began = book.principal(header), clock.at
    assert first is not None
    assert await _used(book) == rfc3339(began)
    clock.at += USE_NOTED_S - 1
    assert book.principal(header) is first
    assert await _used(book) == rfc3339(began)
    clock.at += 1
    assert book.principal(header) is first
    assert await _used(book) == rfc3339(clock.at)


async def test_a_token_that_has_expired_or_is_revoked_opens_nothing_and_is_not_noted(
    store: Store, clock: Hands
) -> None:
    book = await _book(store, clock)
    token, record = await book.issue("laptop", "client", None, 1)
    header = f"Bearer {token}".encode()
    assert book.principal(header) is not None
    used = await _used(book)
    clock.at = (record.expires_at or 0.0) - 0.5
    assert book.principal(header) is not None
    clock.at += 1.0
    assert book.principal(header) is None
    assert await _used(book) != used
    token, _ = await book.issue("other", "client", None, 1)
    await book.revoke("other")
    assert book.principal(f"Bearer {token}".encode()) is None
    shown = {record.name: book.token_view(record).last_used_at for record in await book.list()}
    assert shown["other"] is None


async def test_uses_of_tokens_are_written_when_the_node_stops(store: Store, clock: Hands) -> None:
    book = await _book(store, clock)
    for door in ("subserver", "operator"):
        token, _ = await book.issue(door, door, None, None)  # type: ignore[arg-type]
        if door == "subserver":
            assert book.subserver(f"Bearer {token}".encode()) is not None
        else:
            assert book.operator(token) is not None
    await book.close()
    later = await _book(store, clock)
    assert [record.last_used_at for record in await later.list()] == [clock.at, clock.at]


@pytest.mark.parametrize(
    ("rule", "given", "shown"),
    [(None, None, "read"), ("write", None, "write"), ("admin", None, "admin"), ("admin", "read", "read")],
)
async def test_a_subservers_token_is_shown_with_what_it_may_do(
    store: Store, clock: Hands, rule: str | None, given: str | None, shown: str
) -> None:
    rules = () if rule is None else (AccessRule(who=("subserver:plant",), scope=rule),)  # type: ignore[arg-type]
    book = await _book(store, clock, *rules)
    _, record = await book.issue("plant", "subserver", given, None)  # type: ignore[arg-type]
    assert book.token_view(record).scope == shown

"""Bearer tokens over any store."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import pytest

from interlock.core.store_backends import BACKENDS, build_store
from interlock.store.ports import Damaged, SharedPlace, Store
from interlock.store.tokens import (
    BUCKET,
    NAME_LENGTH_MAX,
    PREFIXES,
    BadTokenName,
    TokenAudience,
    TokenRecord,
    TokenTable,
    find_audience,
    mint,
    token_hash,
)

NOW = 1_700_000_000.0


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store(backend: str, tmp_path: Path, shared: SharedPlace | None) -> AsyncIterator[Store]:
    store = build_store(backend, tmp_path, shared)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def tokens(store: Store) -> TokenTable:
    return TokenTable(store.kv)


async def issue(tokens: TokenTable, name: str = "laptop", **more: object) -> tuple[str, TokenRecord]:
    values = {"owner": "local", "audience": "client", "scope": "write", "now": NOW} | more
    return await tokens.issue(name=name, **values)  # type: ignore[arg-type]


def contents_of(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("audience", get_args(TokenAudience))
def test_a_token_names_its_audience_and_carries_256_bits(audience: TokenAudience) -> None:
    token, _ = mint(audience)
    assert re.fullmatch(PREFIXES[audience] + "[0-9A-Za-z]{43}", token)
    assert find_audience(token) == audience


def test_tokens_and_their_ids_differ() -> None:
    entries = [mint("client") for _ in range(200)]
    assert len({token for token, _ in entries}) == len({token_id for _, token_id in entries}) == 200


@pytest.mark.parametrize(
    "token",
    [
        "",
        "ilc_",
        "ilx_" + "a" * 43,
        "ilc_" + "a" * 42,
        "ilc_" + "a" * 44,
        "ilc_" + "a" * 42 + "-",
        "ilc_" + "a" * 43 + "\n",
        "ilc_" + "٣" * 43,
        "ILC_" + "a" * 43,
        "\ud800",
        "\x00",
        "ilc_" * 100_000,
    ],
)
async def test_a_malformed_token_has_no_record(tokens: TokenTable, token: str) -> None:
    await issue(tokens)
    assert find_audience(token) is None
    assert await tokens.find(token_hash(token), NOW) is None


async def test_an_issued_token_is_found_by_its_hash(tokens: TokenTable) -> None:
    token, record = await issue(tokens, audience="operator", scope="admin", expires_at=NOW + 60)
    assert find_audience(token) == "operator"
    assert await tokens.find(token_hash(token), NOW) == record
    assert (record.name, record.owner, record.audience, record.scope) == ("laptop", "local", "operator", "admin")
    assert (record.created_at, record.expires_at, record.revoked_at) == (NOW, NOW + 60, None)


async def test_a_token_that_was_never_issued_is_nobodys(tokens: TokenTable) -> None:
    token, _ = await issue(tokens)
    other, _ = mint("client")
    changed = token[:-1] + ("a" if token[-1] != "a" else "b")
    for stranger in (other, changed, PREFIXES["operator"] + token[4:]):
        assert await tokens.find(token_hash(stranger), NOW) is None


async def test_a_token_opens_nothing_from_its_expiry_on_but_stays_listed(tokens: TokenTable) -> None:
    token, record = await issue(tokens, expires_at=NOW + 60)
    assert await tokens.find(token_hash(token), NOW + 59.9) == record
    assert await tokens.find(token_hash(token), NOW + 60) is None
    assert await tokens.list(NOW + 60) == [record]


async def test_a_revoked_token_opens_nothing_but_stays_listed(tokens: TokenTable) -> None:
    token, record = await issue(tokens)
    assert await tokens.revoke(record.id, NOW + 1) == (record,)
    assert await tokens.find(token_hash(token), NOW + 1) is None
    assert [listed.revoked_at for listed in await tokens.list(NOW + 2)] == [NOW + 1]


async def test_revoking_by_name_takes_all_of_that_name_and_no_other(tokens: TokenTable) -> None:
    _, first = await issue(tokens, "ci")
    _, second = await issue(tokens, "ci", now=NOW + 1)
    kept, _ = await issue(tokens, "ci2")
    assert {entry.id for entry in await tokens.revoke("ci", NOW)} == {first.id, second.id}
    assert await tokens.find(token_hash(kept), NOW) is not None


async def test_an_id_goes_before_a_name_that_looks_like_it(tokens: TokenTable) -> None:
    token, record = await issue(tokens)
    namesake, _ = await issue(tokens, str(record.id))
    assert await tokens.revoke(record.id, NOW) == (record,)
    assert await tokens.find(token_hash(token), NOW) is None
    assert await tokens.find(token_hash(namesake), NOW) is not None


async def test_revoking_a_missing_or_revoked_credential_revokes_nothing(tokens: TokenTable) -> None:
    _, record = await issue(tokens)
    assert await tokens.revoke("nobody", NOW) == ()
    assert await tokens.revoke("", NOW) == ()
    await tokens.revoke("laptop", NOW)
    assert await tokens.revoke("laptop", NOW + 5) == ()
    assert [listed.revoked_at for listed in await tokens.list(NOW)] == [NOW]
    assert [listed.id for listed in await tokens.list(NOW)] == [record.id]


async def test_of_parallel_revocations_one_reports_it(tokens: TokenTable) -> None:
    _, record = await issue(tokens)
    revoked = await asyncio.gather(*(tokens.revoke(record.id, NOW + number) for number in range(10)))
    assert sorted(([entry.id for entry in ids] for ids in revoked), reverse=True) == [[record.id], *[[]] * 9]


async def test_the_list_is_in_order_of_issue(tokens: TokenTable) -> None:
    names = ["c", "a", "b"]
    for number, name in enumerate(names):
        await issue(tokens, name, now=NOW + number)
    assert [record.name for record in await tokens.list(NOW)] == names


async def test_all_records_can_be_had_under_their_hashes(tokens: TokenTable) -> None:
    first, first_record = await issue(tokens, "a")
    second, second_record = await issue(tokens, "b", expires_at=NOW + 1)
    expected = {token_hash(first): first_record, token_hash(second): second_record}
    assert await tokens.by_hash(NOW + 2) == expected


async def test_the_token_itself_is_stored_nowhere(
    store: Store, tokens: TokenTable, tmp_path: Path, backend: str
) -> None:
    token, _ = await issue(tokens)
    secret = token[4:].encode()
    for entry in await store.kv.entries(BUCKET, NOW):
        assert secret not in entry.value + entry.key.encode()
    await store.close()
    if BACKENDS[backend].is_shared:
        return
    assert contents_of(tmp_path)
    assert all(secret not in content for content in contents_of(tmp_path))


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "-x", "a/b", "a:b", "a*", "a\n", "é", "a" * (NAME_LENGTH_MAX + 1), "\ud800"]
)
async def test_a_name_that_cannot_be_part_of_a_principal_is_refused(tokens: TokenTable, name: str) -> None:
    with pytest.raises(BadTokenName, match="letters, digits"):
        await issue(tokens, name)
    assert await tokens.list(NOW) == []


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"null", b"\xff", b'{"id":"x","name":"n","owner":"o","audience":"attic"}']
)
async def test_a_record_that_cannot_be_read_opens_nothing(store: Store, tokens: TokenTable, data: bytes) -> None:
    token, _ = mint("client")
    await store.kv.put(BUCKET, token_hash(token), data, NOW)
    with pytest.raises(Damaged, match="token record"):
        await tokens.find(token_hash(token), NOW)


def test_a_record_survives_encoding() -> None:
    record = TokenRecord(
        id=mint("room")[1], name="n", owner="o", audience="room", scope="read", created_at=NOW, revoked_at=NOW + 0.25
    )
    assert TokenRecord.decode(record.encode()) == record

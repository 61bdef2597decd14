"""Secrets at rest: sealed, bound to their names, and useless without their key."""

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.store.ports import Damaged, StoreRefused
from interlock.store.sqlite.secrets import KEY_FILE, SECRETS_FILE, VALUE_BYTES_MAX, SealedSecrets
from interlock.store.sqlite.store import SqliteStore

NOW = 1_700_000_000.0
MARKER = b"marker-of-a-secret"


@pytest.fixture
async def secrets(tmp_path: Path) -> AsyncIterator[SealedSecrets]:
    secrets = SealedSecrets(tmp_path)
    await secrets.open()
    yield secrets
    await secrets.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def reopened(secrets: SealedSecrets) -> None:
    await secrets.close()
    await secrets.open()


async def test_secrets_are_found_by_kind_and_name_only(secrets: SealedSecrets, tmp_path: Path) -> None:
    await secrets.put("secret", "one", MARKER, NOW)
    await secrets.put("token", "one", b"", NOW)
    await secrets.put("secret", "one", MARKER * 2, NOW)
    await reopened(secrets)
    assert await secrets.get("secret", "one", NOW) == MARKER * 2
    assert await secrets.get("token", "one", NOW) == b""
    assert await secrets.get("client", "one", NOW) is None
    assert await secrets.names("secret", NOW) == ["one"]
    assert await secrets.remove("secret", "one") and not await secrets.remove("secret", "one")
    assert await secrets.get("secret", "one", NOW) is None


async def test_no_secret_can_be_read_from_the_files_and_only_their_owner_may_open_them(
    secrets: SealedSecrets, tmp_path: Path
) -> None:
    await secrets.put("secret", "one", MARKER, NOW)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {SECRETS_FILE, KEY_FILE} <= {path.name for path in files}
    assert [path for path in files if MARKER in path.read_bytes()] == []
    assert {mode(path) for path in files} == {0o600}


async def test_the_same_secret_twice_looks_different(secrets: SealedSecrets, tmp_path: Path) -> None:
    await secrets.put("secret", "one", MARKER, NOW)
    first = (tmp_path / SECRETS_FILE).read_bytes() + (tmp_path / f"{SECRETS_FILE}-wal").read_bytes()
    await secrets.put("secret", "one", MARKER, NOW)
    assert (tmp_path / SECRETS_FILE).read_bytes() + (tmp_path / f"{SECRETS_FILE}-wal").read_bytes() != first


async def test_before_the_first_secret_there_are_no_files(secrets: SealedSecrets, tmp_path: Path) -> None:
    assert await secrets.get("secret", "one", NOW) is None
    assert await secrets.names("token", NOW) == []
    assert not await secrets.remove("secret", "one")
    assert list(tmp_path.iterdir()) == []


async def test_a_key_that_others_may_read_is_closed_to_them(secrets: SealedSecrets, tmp_path: Path) -> None:
    await secrets.put("secret", "one", MARKER, NOW)
    (tmp_path / KEY_FILE).chmod(0o644)
    await reopened(secrets)
    assert await secrets.get("secret", "one", NOW) == MARKER
    assert mode(tmp_path / KEY_FILE) == 0o600


async def test_a_key_may_be_kept_elsewhere(secrets: SealedSecrets, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "key").write_bytes(os.urandom(32))
    (tmp_path / KEY_FILE).symlink_to(tmp_path / "elsewhere" / "key")
    await secrets.put("secret", "one", MARKER, NOW)
    assert await secrets.get("secret", "one", NOW) == MARKER


@pytest.mark.parametrize("what", ["gone", "other", "short", "empty"])
async def test_without_its_key_nothing_is_opened_and_no_new_key_is_made(
    secrets: SealedSecrets, tmp_path: Path, what: str
) -> None:
    await secrets.put("secret", "one", MARKER, NOW)
    await secrets.close()
    key = tmp_path / KEY_FILE
    if what == "gone":
        key.unlink()
    else:
        key.write_bytes({"other": os.urandom(32), "short": b"x", "empty": b""}[what])
    await secrets.open()
    with pytest.raises(Damaged):
        await secrets.get("secret", "one", NOW)
    if what != "other":
        with pytest.raises(Damaged):
            await secrets.put("secret", "two", MARKER, NOW)
    assert key.exists() is (what != "gone")
    assert await secrets.names("secret", NOW) == ["one"]
    assert await secrets.remove("secret", "one")  # forgetting needs no key


@pytest.mark.parametrize("change", ["moved", "cut", "bit", "version"])
async def test_an_entry_that_was_tampered_with_or_moved_is_not_opened(
    secrets: SealedSecrets, tmp_path: Path, change: str
) -> None:
    await secrets.put("secret", "one", MARKER, NOW)
    await secrets.put("secret", "two", b"other", NOW)
    store = SqliteStore(tmp_path, file=SECRETS_FILE, schema=_schema())
    await store.open()
    entry = await store.kv.get("secret", "one", NOW)
    assert entry is not None
    value = bytearray(entry.value)
    if change == "cut":
        del value[-1:]
    elif change == "bit":
        value[20] ^= 1
    elif change == "version":
        value[0] = 2
    await store.kv.put("secret", "two", bytes(value), NOW)
    await store.close()
    with pytest.raises(Damaged, match=r"secrets\.db holds an entry that secrets\.key does not"):
        await secrets.get("secret", "two", NOW)
    assert await secrets.get("secret", "one", NOW) == MARKER


def _schema() -> object:
    from interlock.store.sqlite import secrets as room

    return room._SCHEMA


async def test_a_secret_larger_than_any_is_refused(secrets: SealedSecrets) -> None:
    with pytest.raises(StoreRefused, match="a secret has at most 65536 bytes"):
        await secrets.put("secret", "one", b"x" * (VALUE_BYTES_MAX + 1), NOW)


async def test_many_first_secrets_at_once_share_one_key(tmp_path: Path) -> None:
    rooms = [SealedSecrets(tmp_path) for _ in range(4)]
    await asyncio.gather(*(room.put("secret", f"s{number}", MARKER, NOW) for number, room in enumerate(rooms)))
    for room in rooms:
        await room.close()
    fresh = SealedSecrets(tmp_path)
    await fresh.open()
    for number in range(4):
        assert await fresh.get("secret", f"s{number}", NOW) == MARKER
    await fresh.close()
    assert sorted(path.name for path in tmp_path.glob("*key*")) == [KEY_FILE]


async def test_a_copy_of_both_files_is_a_backup(secrets: SealedSecrets, tmp_path: Path) -> None:
    await secrets.put("secret", "one", MARKER, NOW)
    await secrets.close()
    (tmp_path / "copy").mkdir()
    for name in (SECRETS_FILE, KEY_FILE):
        shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    copy = SealedSecrets(tmp_path / "copy")
    await copy.open()
    assert await copy.get("secret", "one", NOW) == MARKER
    await copy.close()

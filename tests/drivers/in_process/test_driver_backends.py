"""Is a secret found where its entry says, and is what cannot be asked said in words without a value?"""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from interlock.core.clock import Clock
from interlock.drivers.provider.vault import BackendFailed, Vault, fetch
from interlock.store.sqlite.secrets import VALUE_BYTES_MAX, SealedSecrets


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SealedSecrets]:
    secrets = SealedSecrets(tmp_path / "data")
    (tmp_path / "data").mkdir(mode=0o700)
    await secrets.put("secret", "acme/key", b"of the store", time.time())
    yield secrets
    await secrets.close()


async def found(store: SealedSecrets, backend: str | None, *private: Path) -> str:
    env = {"ACME": "of the environment", "EMPTY": ""}
    vault = Vault(store=store, clock=Clock(), record=lambda _: None, workspace="here", environment=env, private=private)
    return await fetch("acme/key", backend, vault)


@pytest.mark.req("AIP-19.plain-1")
async def test_a_value_is_where_its_backend_says(store: SealedSecrets, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"of a file\r\n")
    assert await found(store, None) == "of the store"
    assert await found(store, "env://ACME") == "of the environment"
    assert await found(store, f"file://{file}") == "of a file"


async def test_a_missing_value_is_empty(store: SealedSecrets, tmp_path: Path) -> None:
    assert await found(store, "env://NONE") == ""
    assert await found(store, "env://EMPTY") == ""
    assert await found(store, f"file://{tmp_path}/none") == ""


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("vault://acme", "not known"),
        ("file://relative/path", "absolute"),
        ("file:///proc/self", "cannot be read"),
        ("keyring://alone", "SERVICE/NAME"),
        ("keyring:///", "SERVICE/NAME"),
    ],
)
async def test_backends_that_cannot_be_asked_are_reported(store: SealedSecrets, backend: str, words: str) -> None:
    with pytest.raises(BackendFailed, match=words):
        await found(store, backend)


async def test_a_file_beyond_the_size_of_a_secret_is_not_read_whole(store: SealedSecrets, tmp_path: Path) -> None:
    with pytest.raises(BackendFailed, match="bytes"):
        await found(store, "file:///dev/zero")
    file = tmp_path / "large"
    file.write_bytes(b"x" * (VALUE_BYTES_MAX + 1))
    with pytest.raises(BackendFailed, match="bytes"):
        await found(store, f"file://{file}")


async def test_a_pipe_is_not_waited_for(store: SealedSecrets, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BackendFailed, match="pipe"):
        await found(store, f"file://{tmp_path}/pipe")


@pytest.mark.req("AIP-19.plain-1")
async def test_no_way_of_writing_it_reads_a_file_of_the_node_or_its_operator(
    store: SealedSecrets, tmp_path: Path
) -> None:
    config, outside = tmp_path / "config" / "interlock", tmp_path / "outside"
    (config / "keys").mkdir(parents=True)
    outside.mkdir()
    (config / "keys" / "ada.key").write_text("of the operator")
    (tmp_path / "data" / "deep.key").write_text("of the node")
    settings = tmp_path / "interlock.toml"
    settings.write_text("[servers.a]")
    (outside / "link").symlink_to(config / "keys" / "ada.key")
    (outside / "folder").symlink_to(config)
    (tmp_path / "named-otherwise").symlink_to(tmp_path / "data")
    private = (tmp_path / "named-otherwise", config, settings)
    for path in (
        config / "keys" / "ada.key",
        tmp_path / "data" / "secrets.key",
        tmp_path / "data" / "deep.key",
        tmp_path / "config" / ".." / "data" / "deep.key",
        outside / "link",
        outside / "folder" / "keys" / "ada.key",
        Path(f"/proc/self/root{config}/keys/ada.key"),
        settings,
    ):
        with pytest.raises(BackendFailed, match="never read"):
            await found(store, f"file://{path}", *private)
    (outside / "key").write_text("of a file")
    assert await found(store, f"file://{outside / 'key'}", *private) == "of a file"


async def test_the_systems_keyring_is_asked(store: SealedSecrets, monkeypatch: pytest.MonkeyPatch) -> None:
    # Names a backend, because keyring would start programs to find out which ones this machine has.
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    import keyring
    import keyring.backend

    class Remembering(keyring.backend.KeyringBackend):  # type: ignore[misc]
        priority = 1

        def get_password(self, service: str, username: str) -> str | None:
            return "of the keyring" if (service, username) == ("acme/prod", "key") else None

        def set_password(self, service: str, username: str, password: str) -> None:
            raise NotImplementedError

        def delete_password(self, service: str, username: str) -> None:
            raise NotImplementedError

    before = keyring.get_keyring()
    keyring.set_keyring(Remembering())
    try:
        assert await found(store, "keyring://acme/prod/key") == "of the keyring"
        assert await found(store, "keyring://acme/other") == ""
    finally:
        keyring.set_keyring(before)

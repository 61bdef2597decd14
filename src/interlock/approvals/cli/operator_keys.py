"""The keys of the person at this machine: NAME.key (private, 0600) and NAME.pub beside it, in <config>/interlock/keys.

A node never sees a private key. It knows the public one, as an [[anchor]] of its configuration.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.cli.terminal.errors import BadUsage, Refused
from interlock.config.folders import config_folder
from interlock.config.toml_text import toml_text
from interlock.crypto.keys.operator_keys import (
    KEY_NAME,
    PUBLIC_BYTES_MAX,
    KeyExists,
    KeyKind,
    key_names,
    make_key,
    public_text,
)
from interlock.store.ports import StoreError

if TYPE_CHECKING:
    from interlock.crypto.keys.signing import SigningKey


class OperatorKeys:
    def __init__(self) -> None:
        self.folder = config_folder(os.environ) / "keys"

    def names(self) -> list[str]:
        return key_names(self.folder)

    def file(self, name: str) -> Path:
        if not KEY_NAME.fullmatch(name):
            raise BadUsage("bad_name", "a key's name is 1 to 63 of the characters A-Z a-z 0-9 . _ -")
        return self.folder / f"{name}.key"

    def maybe_public(self, name: str) -> str | None:
        """The public key as an [[anchor]] has it; None where there is no key of that name."""
        if not self.file(name).exists():
            return None
        path = self._public_file(name)
        try:
            return public_text(self.file(name))
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(
                "key_unusable",
                f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}",
                hint="the private key is of no use without it; make another with interlock access key NAME",
            ) from None

    def make(self, name: str, kind: KeyKind, passphrase: Callable[[], bytes] | None) -> str:
        """The public key of a new pair. Never over one that is there."""
        path = self.file(name)
        if path.exists():
            raise self._exists(name)
        try:
            return make_key(path, kind, passphrase() if passphrase is not None else None)
        except KeyExists:
            raise self._exists(name) from None
        except OSError as error:
            raise Refused("not_written", f"{path} cannot be written: {error.strerror or error}") from None

    def open(self, name: str, passphrase: Callable[[], bytes]) -> "SigningKey":
        """`passphrase` is asked only for a key that has one."""
        from interlock.crypto.keys.encrypted_pem import is_sealed
        from interlock.crypto.keys.signing import read_signing_key

        path = self.file(name)
        try:
            sealed = is_sealed(path.read_bytes()[:PUBLIC_BYTES_MAX])
            return read_signing_key(path, passphrase() if sealed else None)
        except FileNotFoundError:
            raise self.unknown(name) from None
        except OSError as error:
            raise Refused("key_unusable", f"the key {path} cannot be read: {error.strerror or error}") from None
        except StoreError as refused:
            raise Refused("key_unusable", str(refused)) from None

    def remove(self, name: str) -> bool:
        """Whether there was a private key here."""
        path = self.file(name)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Refused("not_written", f"{path} cannot be removed: {error.strerror or error}") from None
        self._public_file(name).unlink(missing_ok=True)
        return True

    def unknown(self, name: str) -> Refused:
        known = ", ".join(self.names())
        hint = f"there is {known}" if known else f"interlock access key {name} makes it"
        return Refused("no_key", f"there is no key {name} in {self.folder}", hint=hint)

    def _exists(self, name: str) -> Refused:
        return Refused(
            "exists",
            f"there is a key {name} already: {self.file(name)}",
            hint=f"interlock access key {name} --show prints its public half; --revoke takes it back",
        )

    def _public_file(self, name: str) -> Path:
        return self.file(name).with_suffix(".pub")


def anchor_lines(name: str, public: str, approves: Sequence[str], *, source: str = "key") -> list[str]:
    """What makes a node believe the key."""
    entry = {"name": name, source: public, "approves": list(approves)}
    return ["[[anchor]]", *(f"{word} = {toml_text(value)}" for word, value in entry.items())]


def own_name() -> str:
    """What the person at this machine is called, as the name of a key."""
    import getpass

    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, no such variable
        user = ""
    return user if KEY_NAME.fullmatch(user) else "operator"

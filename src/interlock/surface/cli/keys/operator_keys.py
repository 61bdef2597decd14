"""The keys of the person at this machine: NAME.key (private, 0600) and NAME.pub beside it, in <config>/interlock/keys.

A node never sees a private key. It knows the public one, as an [[anchor]] of its configuration.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from interlock.config.folders import config_folder
from interlock.config.toml_text import toml_text
from interlock.store.ports import StoreError
from interlock.surface.cli.terminal.errors import BadUsage, Refused

if TYPE_CHECKING:
    from interlock.keys.signing import SigningKey

KeyKind = Literal["ed25519", "es256"]

PUBLIC_BYTES_MAX = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)  # as an [[anchor]] may be called


class OperatorKeys:
    def __init__(self) -> None:
        self.folder = config_folder(os.environ) / "keys"

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.key")) if self.folder.is_dir() else []

    def file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise BadUsage("bad_name", "a key's name is 1 to 63 of the characters A-Z a-z 0-9 . _ -")
        return self.folder / f"{name}.key"

    def maybe_public(self, name: str) -> str | None:
        """The public key as an [[anchor]] has it; None where there is no key of that name."""
        if not self.file(name).exists():
            return None
        path = self._public_file(name)
        try:
            return path.read_bytes()[:PUBLIC_BYTES_MAX].decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(
                "key_unusable",
                f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}",
                hint="the private key is of no use without it; make another with interlock access key NAME",
            ) from None

    def make(self, name: str, kind: KeyKind, passphrase: Callable[[], bytes] | None) -> str:
        """The public key of a new pair. Never over one that is there."""
        from interlock.keys.signing import jwk_of, write_once
        from interlock.protocol.jose.public_key import written

        path, beside = self.file(name), self._public_file(name)
        if path.exists():
            raise self._exists(name)
        public, private = _pair(kind, passphrase() if passphrase is not None else None)
        text = written(jwk_of(public))
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_once(path, private)
            if path.read_bytes() != private:  # another process was first
                raise self._exists(name)
            beside.unlink(missing_ok=True)  # of a private key that is gone
            write_once(beside, f"{text}\n".encode(), 0o644)
        except OSError as error:
            raise Refused("not_written", f"{path} cannot be written: {error.strerror or error}") from None
        return text

    def open(self, name: str, passphrase: Callable[[], bytes]) -> "SigningKey":
        """`passphrase` is asked only for a key that has one."""
        from interlock.keys.encrypted_pem import is_sealed
        from interlock.keys.signing import read_signing_key

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
    return user if _NAME.fullmatch(user) else "operator"


def _pair(kind: KeyKind, passphrase: bytes | None) -> tuple[object, bytes]:
    """The public key, and the private one in PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from interlock.keys.encrypted_pem import sealed_pem

    private = Ed25519PrivateKey.generate() if kind == "ed25519" else generate_private_key(SECP256R1())
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    if passphrase is None:
        return private.public_key(), private.private_bytes(serialization.Encoding.PEM, form, plain)
    der = private.private_bytes(serialization.Encoding.DER, form, plain)
    return private.public_key(), sealed_pem(der, passphrase)

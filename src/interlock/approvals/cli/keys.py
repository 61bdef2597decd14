"""The keys of the person at this machine: NAME.key (private, 0600) and NAME.pub beside it, in <config>/interlock/keys.

A node knows the public key as an approver. It reads the private key only for a person in a browser, who sends the
passphrase for one signature.
"""

import getpass
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from interlock.cli.terminal.errors import BadUsage
from interlock.config.folders import config_folder
from interlock.config.toml_text import toml_text
from interlock.crypto import signing
from interlock.wire.refusal import Refused

VARIABLE = "INTERLOCK_PASSPHRASE"
BYTES_MAX = 1024

FromDescriptor = Annotated[
    int | None,
    typer.Option(
        "--passphrase-fd", metavar="N", min=0, help="Read the passphrase from this descriptor.", show_default=False
    ),
]


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_terminal(hint: str) -> None:
    """Raise Refused if no person can be asked. `hint` says how to answer in another way."""
    if not can_ask():
        raise Refused("not_confirmed", "there is no terminal to confirm on, and nothing was done", hint=hint)


def is_given(descriptor: int | None) -> bool:
    """Return whether a script supplies a passphrase, without reading it."""
    return descriptor is not None or bool(os.environ.get(VARIABLE))


def find_supplied_passphrase(descriptor: int | None) -> bytes | None:
    """Return the passphrase that a script supplies, or None if it supplies none. A descriptor can be read only once."""
    if descriptor is not None:
        try:
            with os.fdopen(os.dup(descriptor), "rb") as file:
                passphrase = file.readline(BYTES_MAX + 2).removesuffix(b"\n").removesuffix(b"\r")
        except OSError as error:
            raise BadUsage("bad_passphrase", f"descriptor {descriptor} cannot be read: {error.strerror}") from None
    else:
        passphrase = os.environ.get(VARIABLE, "").encode("utf-8", "surrogateescape")
        if not passphrase:
            return None
    return _check(passphrase)


def read_passphrase(name: str, descriptor: int | None) -> bytes:
    passphrase = find_supplied_passphrase(descriptor)
    if passphrase is not None:
        return passphrase
    if not can_ask():
        raise Refused(
            "passphrase_needed", f"the key {name} has a passphrase, and there is no terminal to type it on", hint=_HOW
        )
    return _check(_prompt(f"passphrase of the key {name}: "))


def choose_passphrase(name: str, descriptor: int | None) -> bytes:
    """Ask for the passphrase of a new key. Raise Refused if it is short, because a program that copies the key file
    could guess it.
    """
    passphrase = find_supplied_passphrase(descriptor)
    if passphrase is not None:
        return _long_enough(passphrase)
    if not can_ask():
        raise Refused(
            "passphrase_needed", f"the key {name} needs a passphrase, and there is no terminal to type it on", hint=_HOW
        )

    chars = f"at least {signing.PASSPHRASE_CHARS_MIN} characters"
    typed = _long_enough(_check(_prompt(f"passphrase for the new key {name} ({chars}): ")))
    if _prompt("once more: ") != typed:
        raise Refused("bad_passphrase", "the two are not the same; nothing was made")
    return typed


def _long_enough(passphrase: bytes) -> bytes:
    if len(passphrase.decode("utf-8", "surrogateescape")) < signing.PASSPHRASE_CHARS_MIN:
        raise Refused(
            "bad_passphrase",
            f"the passphrase of a new key has at least {signing.PASSPHRASE_CHARS_MIN} characters; nothing was made",
            hint="several words are easy to type; --no-passphrase makes a key that every program here can use",
        )
    return passphrase


_HOW = f"{VARIABLE} or --passphrase-fd supplies it"


def _prompt(prompt: str) -> bytes:
    try:
        return getpass.getpass(prompt).encode("utf-8", "surrogateescape")
    except EOFError:
        raise Refused("bad_passphrase", "no passphrase was typed", hint=_HOW) from None


def _check(passphrase: bytes) -> bytes:
    if not passphrase:
        raise Refused(
            "bad_passphrase", "the passphrase is empty", hint="a new key can be made without one by --no-passphrase"
        )
    if len(passphrase) > BYTES_MAX:
        raise Refused("bad_passphrase", f"the passphrase is longer than {BYTES_MAX} bytes")
    return passphrase


class OperatorKeys:
    def __init__(self) -> None:
        self.folder = config_folder(os.environ) / "keys"

    def names(self) -> list[str]:
        return signing.key_names(self.folder)

    def file(self, name: str) -> Path:
        if not signing.KEY_NAME.fullmatch(name):
            raise BadUsage("bad_name", "a key's name is 1 to 63 of the characters A-Z a-z 0-9 . _ -")
        return self.folder / f"{name}.key"

    def find_public(self, name: str) -> str | None:
        """Return the public key in the form that an [[anchor]] entry uses, or None if there is no
        key with this name.
        """
        if not self.file(name).exists():
            return None

        path = self._public_file(name)
        try:
            return signing.public_text(self.file(name))
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(
                "key_unusable",
                f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}",
                hint="the private key is of no use without it; make another with interlock access key NAME",
            ) from None

    def make(self, name: str, kind: signing.KeyKind, passphrase: Callable[[], bytes] | None) -> str:
        """Create a key pair and return its public key. An existing key is never overwritten."""
        path = self.file(name)
        if path.exists():
            raise self._exists(name)
        try:
            return signing.make_key(path, kind, passphrase() if passphrase is not None else None)
        except signing.KeyExists:
            raise self._exists(name) from None
        except OSError as error:
            raise Refused("not_written", f"{path} cannot be written: {error.strerror or error}") from None

    def open(self, name: str, passphrase: Callable[[], bytes]) -> signing.SigningKey:
        """Open a private key. `passphrase` is called only if the key is encrypted."""
        path = self.file(name)
        try:
            sealed = signing.is_sealed(path.read_bytes()[: signing.PUBLIC_BYTES_MAX])
            return signing.read_signing_key(path, passphrase() if sealed else None)
        except FileNotFoundError:
            raise self.unknown(name) from None
        except OSError as error:
            raise Refused("key_unusable", f"the key {path} cannot be read: {error.strerror or error}") from None
        except signing.KeyFileError as refused:
            raise Refused("key_unusable", str(refused)) from None

    def remove(self, name: str) -> bool:
        """Remove the operator key with this name. Return whether its private key was stored here and removed too."""
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
        names = ", ".join(self.names())
        hint = f"there is {names}" if names else f"interlock access key {name} makes it"
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
    """Return the configuration lines of an [[anchor]] entry for the key."""
    entry = {"name": name, source: public, "approves": list(approves)}
    return ["[[anchor]]", *(f"{word} = {toml_text(value)}" for word, value in entry.items())]


def own_name() -> str:
    """Return the name of the local user, in a form that is valid as the name of a key."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, no such variable
        user = ""
    return user if signing.KEY_NAME.fullmatch(user) else "operator"

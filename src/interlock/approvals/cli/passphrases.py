"""The passphrase of an operator's key: typed, or for scripts from a file descriptor or INTERLOCK_PASSPHRASE.

Never from an argument: other users of the machine could read it there.
"""

import os
import sys
from typing import Annotated

import typer

from interlock.cli.terminal.errors import BadUsage, Refused
from interlock.crypto.keys.operator_keys import PASSPHRASE_CHARS_MIN

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


def is_given(descriptor: int | None) -> bool:
    """Whether a script supplies one; nothing is read."""
    return descriptor is not None or bool(os.environ.get(VARIABLE))


def maybe_given(descriptor: int | None) -> bytes | None:
    """What a script supplies; None when it supplies nothing. What a descriptor holds can be read once."""
    if descriptor is not None:
        try:
            with os.fdopen(os.dup(descriptor), "rb") as file:
                given = file.readline(BYTES_MAX + 2).removesuffix(b"\n").removesuffix(b"\r")
        except OSError as error:
            raise BadUsage("bad_passphrase", f"descriptor {descriptor} cannot be read: {error.strerror}") from None
    else:
        given = os.environ.get(VARIABLE, "").encode("utf-8", "surrogateescape")
        if not given:
            return None
    return _check(given)


def read_passphrase(name: str, descriptor: int | None) -> bytes:
    given = maybe_given(descriptor)
    if given is not None:
        return given
    if not can_ask():
        raise Refused(
            "passphrase_needed", f"the key {name} has a passphrase, and there is no terminal to type it on", hint=_HOW
        )
    return _check(_prompt(f"passphrase of the key {name}: "))


def choose_passphrase(name: str, descriptor: int | None) -> bytes:
    """For a new key, which a program that copies its file may try at leisure: a short one is refused."""
    given = maybe_given(descriptor)
    if given is not None:
        return _long_enough(given)
    if not can_ask():
        raise Refused(
            "passphrase_needed", f"the key {name} needs a passphrase, and there is no terminal to type it on", hint=_HOW
        )
    chars = f"at least {PASSPHRASE_CHARS_MIN} characters"
    typed = _long_enough(_check(_prompt(f"passphrase for the new key {name} ({chars}): ")))
    if _prompt("once more: ") != typed:
        raise Refused("bad_passphrase", "the two are not the same; nothing was made")
    return typed


def _long_enough(passphrase: bytes) -> bytes:
    if len(passphrase.decode("utf-8", "surrogateescape")) < PASSPHRASE_CHARS_MIN:
        raise Refused(
            "bad_passphrase",
            f"the passphrase of a new key has at least {PASSPHRASE_CHARS_MIN} characters; nothing was made",
            hint="several words are easy to type; --no-passphrase makes a key that every program here can use",
        )
    return passphrase


_HOW = f"{VARIABLE} or --passphrase-fd supplies it"


def _prompt(prompt: str) -> bytes:
    from getpass import getpass

    try:
        return getpass(prompt).encode("utf-8", "surrogateescape")
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

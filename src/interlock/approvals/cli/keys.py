"""The keys of the person at this machine: NAME.key (private, 0600) and NAME.pub beside it, in <config>/interlock/keys.

A node knows the public key as an approver. It reads the private key only for a person in a browser, who sends the
passphrase for one signature. The last part creates approvers: the key that `interlock init` adds to the configuration,
and passkeys that a browser makes.
"""

import getpass
import os
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from interlock.approvals.api import GET_INVITATION, INVITE_PASSKEY, Invitation, InvitePasskey
from interlock.cli.command import Invocation, option
from interlock.cli.terminal.errors import BadUsage, Waits
from interlock.cli.terminal.output import confirm
from interlock.cli.terminal.text import as_typed
from interlock.config.folders import config_folder
from interlock.config.toml_text import toml_lines
from interlock.crypto import signing
from interlock.wire.refusal import Refused

VARIABLE = "INTERLOCK_PASSPHRASE"
BYTES_MAX = 1024

_READ_FROM = "Read the passphrase from this descriptor."
FromDescriptor = Annotated[
    int | None, typer.Option("--passphrase-fd", metavar="N", min=0, help=_READ_FROM, show_default=False)
]


@dataclass(frozen=True)
class KeyChoice:
    """The options of a command that signs: which key of the user, and where its passphrase is read."""

    key: Annotated[str | None, option("--key", "Which of your keys signs.", "NAME")] = None
    passphrase_fd: FromDescriptor = None


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_terminal(hint: str, undone: str = "done") -> None:
    """Raise Refused if there is no terminal on which a person can confirm. `hint` says how to confirm in
    another way, and `undone` names what was not done.
    """
    if not can_ask():
        raise Refused("not_confirmed", f"there is no terminal to confirm on, and nothing was {undone}", hint=hint)


def require_confirmation(question: str, *, hint: str, undone: str = "done") -> None:
    """Ask a person a question. Raise Waits if the answer is no, and Refused as `require_terminal` does."""
    require_terminal(hint, undone)
    if not confirm(question):
        raise Waits("not_decided", f"nothing was {undone}")


def find_supplied_passphrase(descriptor: int | None) -> bytes | None:
    """Return the passphrase that a script supplies by a file descriptor or an environment variable, or None if there is
    none. A descriptor can be read only once.
    """
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
    if (passphrase := find_supplied_passphrase(descriptor)) is not None:
        return passphrase
    if not can_ask():
        why = f"the key {name} has a passphrase, and there is no terminal to type it on"
        raise Refused("passphrase_needed", why, hint=_HOW)
    return _check(_prompt(f"passphrase of the key {name}: "))


def choose_passphrase(name: str, descriptor: int | None) -> bytes:
    """Ask for the passphrase of a new key. Raise Refused if it is short, because a program that copies the key file
    could guess it.
    """
    chars = f"at least {signing.PASSPHRASE_CHARS_MIN} characters"
    supplied = find_supplied_passphrase(descriptor)
    if supplied is None and not can_ask():
        why = f"the key {name} needs a passphrase, and there is no terminal to type it on"
        raise Refused("passphrase_needed", why, hint=_HOW)
    passphrase = supplied or _check(_prompt(f"passphrase for the new key {name} ({chars}): "))
    if len(passphrase.decode("utf-8", "surrogateescape")) < signing.PASSPHRASE_CHARS_MIN:
        why = f"the passphrase of a new key has {chars}; nothing was made"
        hint = "several words are easy to type; --no-passphrase makes a key that every program here can use"
        raise Refused("bad_passphrase", why, hint=hint)
    if supplied is None and _prompt("once more: ") != passphrase:
        raise Refused("bad_passphrase", "the two are not the same; nothing was made")
    return passphrase


_HOW = f"{VARIABLE} or --passphrase-fd supplies it"


def _prompt(prompt: str) -> bytes:
    try:
        return getpass.getpass(prompt).encode("utf-8", "surrogateescape")
    except EOFError:
        raise Refused("bad_passphrase", "no passphrase was typed", hint=_HOW) from None


def _check(passphrase: bytes) -> bytes:
    if not passphrase:
        hint = "a new key can be made without one by --no-passphrase"
        raise Refused("bad_passphrase", "the passphrase is empty", hint=hint)
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
        try:
            return signing.public_text(self.file(name))
        except (OSError, UnicodeDecodeError) as error:
            path, why = self._public_file(name), getattr(error, "strerror", None) or "it is not text"
            hint = "the private key is of no use without it; make another with interlock access key NAME"
            raise Refused("key_unusable", f"{path} cannot be read: {why}", hint=hint) from None

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
        hint = f"interlock access key {name} --show prints its public half; --revoke takes it back"
        return Refused("exists", f"there is a key {name} already: {self.file(name)}", hint=hint)

    def _public_file(self, name: str) -> Path:
        return self.file(name).with_suffix(".pub")


def anchor_lines(entry: Mapping[str, object]) -> list[str]:
    """Return the configuration lines of an [[anchor]] entry."""
    return ["[[anchor]]", *toml_lines(entry)]


def own_name() -> str:
    """Return the name of the local user, in a form that is valid as the name of a key."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, no such variable
        user = ""
    return user if signing.KEY_NAME.fullmatch(user) else "operator"


# The first key of a person, and passkeys that a browser makes

ABOUT = "# Whose signature releases calls that cannot be undone (interlock approve ID)."


def anchor_toml(entry: Mapping[str, object]) -> str:
    """Return the text that adds an [[anchor]] entry to a configuration."""
    return "\n".join((ABOUT, *anchor_lines(entry), ""))


class OwnKey(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    public: str
    file: Path
    is_new: bool

    def toml(self) -> str:
        return anchor_toml({"name": self.name, "key": self.public, "approves": ["*"]})

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "key": self.public, "file": str(self.file), "made": self.is_new}


def find_or_make_own_key(
    invocation: Invocation, name: str | None, descriptor: int | None, *, no_passphrase: bool
) -> OwnKey | None:
    """Return the user's own key, and create it if there is none. If a passphrase is needed but cannot be entered, write
    a remark and return None.
    """
    keys = OperatorKeys()
    chosen = name or own_name()
    public = keys.find_public(chosen)
    if public is not None:
        return OwnKey(name=chosen, public=public, file=keys.file(chosen), is_new=False)
    is_supplied = descriptor is not None or bool(os.environ.get(VARIABLE))
    if not no_passphrase and not is_supplied and not can_ask():
        if not invocation.out.as_json:
            invocation.out.remark("no operator key was made, because there is no terminal to type a passphrase on;")
            invocation.out.remark("interlock init in a terminal makes it, or with INTERLOCK_PASSPHRASE")
        return None
    if can_ask() and not no_passphrase:
        invocation.out.remark("your key approves what agents may not do alone; its passphrase is asked each time")
    public_key = keys.make(chosen, "ed25519", None if no_passphrase else lambda: choose_passphrase(chosen, descriptor))
    return OwnKey(name=chosen, public=public_key, file=keys.file(chosen), is_new=True)


def add_to(invocation: Invocation, path: Path, own_key: Callable[[], OwnKey | None]) -> OwnKey | None:
    """Add the user's key to the configuration file and return the key. Return None if the file already has an approver
    or an anchor of that name, if it is invalid, or if there is no key.
    """
    from interlock.config.load import ConfigInvalid, load

    try:
        anchors = load(path, os.environ, {}, starting=False).plan.anchors
    except ConfigInvalid:
        return None
    if any(anchor.approves for anchor in anchors):
        return None
    key = own_key()
    if key is None or any(anchor.name == key.name for anchor in anchors):
        return None
    append(path, key.toml(), hint=f"interlock access key {key.name} --show prints what belongs into it")
    return key


def append(path: Path, toml: str, *, hint: str) -> None:
    """Append `toml` to the file. If the file cannot be written, raise Refused with `hint`, which says where else to
    find the text.
    """
    addition = f"\n{toml}"
    try:
        tomllib.loads(path.read_text(encoding="utf-8") + addition)
        with path.open("a", encoding="utf-8") as file:
            file.write(addition)
    except tomllib.TOMLDecodeError:
        raise Refused("not_written", f"nothing can be added at the end of {path}", hint=hint) from None
    except OSError as error:
        raise Refused("not_written", f"{path} cannot be written: {error.strerror}") from None


def add_passkey(invocation: Invocation, path: Path, name: str | None) -> None:
    """Invite the user to create a passkey in a browser, at the node that runs with this configuration file, and add the
    passkey to the file.
    """

    invocation.config = str(path)
    taken = {anchor.name for anchor in invocation.loaded.plan.anchors}
    chosen = name or own_name()
    if chosen in taken:
        raise Refused("exists", f"{path} has an anchor {chosen} already", hint="name this one with --key NAME")
    invitation = enrol(invocation, chosen)
    anchor = {"name": invitation.name, "passkey": invitation.passkey or "", "approves": ["*"]}
    append(path, anchor_toml(anchor), hint=f"interlock access passkey {chosen} prints what belongs into it")
    if invocation.out.as_json:
        config = str(path.absolute())
        invocation.out.json({"config": config, "anchor": anchor, "thumbprint": invitation.thumbprint})
        return
    how = as_typed("interlock status says how")
    invocation.out.line(f"added the passkey {invitation.name} to {path}; at a running node it is enrolled first: {how}")


EVERY_S = 1.0


def enrol(invocation: Invocation, name: str) -> Invitation:
    """Invite a person to create a passkey, and wait until it is created. Raise Refused if the
    invitation expires first.
    """
    out, node = invocation.out, invocation.node
    invitation = node.call(INVITE_PASSKEY, body=InvitePasskey(name=name)).as_(Invitation)
    out.remark(f"open this in the browser that is to approve, within ten minutes: {invitation.url}")
    ticket = invitation.url.rpartition("/")[2]
    while invitation.passkey is None:
        time.sleep(EVERY_S)
        try:
            invitation = node.call(GET_INVITATION, ticket=ticket).as_(Invitation)
        except Refused as refused:
            if refused.code != "not_found":
                raise
            raise Refused("invitation_over", "no passkey was made in time", hint="ask for another one") from None
    out.remark(f"made the passkey {invitation.thumbprint}; the page in the browser shows the same thumbprint")
    return invitation

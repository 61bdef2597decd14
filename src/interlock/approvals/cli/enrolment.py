"""Creation of approvers: the key that `interlock init` adds to the configuration, and passkeys made in a browser."""

import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec

from interlock.approvals.api import GET_INVITATION, INVITE_PASSKEY, Invitation, InvitePasskey
from interlock.approvals.cli.keys import OperatorKeys, anchor_lines, can_ask, choose_passphrase, is_given, own_name
from interlock.cli.command import Invocation
from interlock.cli.terminal.text import as_typed
from interlock.wire.refusal import Refused

ABOUT = "# Whose signature releases calls that cannot be undone (interlock approve ID)."


class OwnKey(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    public: str
    file: Path
    is_new: bool

    def toml(self) -> str:
        return "\n".join((ABOUT, *anchor_lines(self.name, self.public, ("*",)), ""))

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
    if not no_passphrase and not is_given(descriptor) and not can_ask():
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
    invitation_result = enrol(invocation, chosen)
    lines = "\n".join(
        (ABOUT, *anchor_lines(invitation_result.name, invitation_result.passkey or "", ("*",), source="passkey"), "")
    )
    append(path, lines, hint=f"interlock access passkey {chosen} prints what belongs into it")
    if invocation.out.as_json:
        anchor = {"name": invitation_result.name, "passkey": invitation_result.passkey, "approves": ["*"]}
        config = str(path.absolute())
        invocation.out.json({"config": config, "anchor": anchor, "thumbprint": invitation_result.thumbprint})
        return
    how = as_typed("interlock status says how")
    invocation.out.line(
        f"added the passkey {invitation_result.name} to {path}; at a running node it is enrolled first: {how}"
    )


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

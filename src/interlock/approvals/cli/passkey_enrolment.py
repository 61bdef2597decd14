"""A person's passkey, made in a browser at the operator endpoint of a node: invite, wait, and say what it is."""

import time

from interlock.approvals.api import Invitation, InvitePasskey
from interlock.cli.command import Invocation
from interlock.cli.terminal.errors import Refused

EVERY_S = 1.0


def enrol(invocation: Invocation, name: str) -> Invitation:
    """Ends when the passkey is made; Refused when the invitation is over before."""
    out, node = invocation.out, invocation.node
    asked = node.post("passkeys", body=InvitePasskey(name=name)).as_(Invitation)
    out.remark(f"open this in the browser that is to approve, within ten minutes: {asked.url}")
    ticket = asked.url.rpartition("/")[2]
    while asked.passkey is None:
        time.sleep(EVERY_S)
        try:
            asked = node.get("passkeys", ticket).as_(Invitation)
        except Refused as refused:
            if refused.error != "not_found":
                raise
            raise Refused("invitation_over", "no passkey was made in time", hint="ask for another one") from None
    out.remark(f"made the passkey {asked.thumbprint}; the page in the browser shows the same thumbprint")
    return asked

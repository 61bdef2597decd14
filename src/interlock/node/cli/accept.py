"""The option `--accept-configuration` of `interlock serve`: a person lets the written configuration count as signed.

It is for a person at a terminal with the key of an approver, who edited the configuration themselves and would have to
sign the difference in the inbox right after the start. It is also the way out if no approver may sign
`configuration.guard`. The key has to be enrolled and to have a passphrase: a key that every program can open would show
nothing. The record in the audit log names the key.

If the configuration belongs to another node (`approvals.guarded_starts`), the key has to be one of an approver of that
node. Then the node that the configuration names may be started in its place.
"""

import asyncio

from interlock.approvals.cli.keys import OperatorKeys, own_name, read_passphrase
from interlock.approvals.enrolments import find_approver_prints
from interlock.approvals.guard_changes import accept_written, find_unsigned
from interlock.approvals.guarded_starts import StartConflict, forget_start
from interlock.approvals.trust.anchors import Anchors
from interlock.cli.command import Invocation
from interlock.config.load import Loaded
from interlock.config.plan import Plan
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.part import CannotStart, opened
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit, build_store
from interlock.crypto import signing
from interlock.crypto.jose import read_key_untrusted, thumbprint
from interlock.node.common_parts import find_start_conflict, opened_stores
from interlock.node.sockets import answers
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refused

_INBOX = "interlock approvals shows the change to the approvers, and interlock approve ID signs it"


def accept_configuration(invocation: Invocation, loaded: Loaded) -> None:
    """Show how the written plan loosens the guard, ask for the passphrase of an enrolled key, and let the plan count as
    signed. Raise Refused if there is no such key.
    """
    plan = loaded.plan
    if answers(str(plan.data / "run" / "admin.sock")):
        raise Refused("node_running", "a node runs with this data folder", hint=_INBOX)
    try:
        is_other_node, opened_key = False, ("", "")
        # AX-11.N-11: each record needs a key of its own approvers
        while (conflict := asyncio.run(find_start_conflict(loaded, Clock()))) is not None:
            opened_key, is_other_node = _accept_start(invocation, loaded, conflict, opened_key), True
        lines, prints = asyncio.run(_find_loosening(plan))
        if not lines and is_other_node:
            return
        if not lines:
            invocation.out.remark("the configuration loosens nothing that was signed; there is nothing to accept")
            return
        invocation.out.remark("the configuration would let through more than was signed for:")
        for line in lines:
            invocation.out.remark(f"  {line}")
        name, key_print = _open_key(prints, _INBOX)
        asyncio.run(_accept(plan, name, key_print))
        invocation.out.remark(f"accepted with the key {name}; the audit log says so")
    except (StoreError, CannotStart) as error:
        raise Refused("not_started", str(error)) from None


async def _find_loosening(plan: Plan) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the unsigned changes by which this plan loosens the guard, and the thumbprints of the approvers' keys."""
    now, anchors = Clock().wall(), Anchors(plan.anchors, Clock())
    try:
        anchors.load()
        async with opened_stores(plan, Clock()) as (store, local):
            return await find_unsigned(plan, local.kv, now), await find_approver_prints(store.kv, anchors, now)
    finally:
        await anchors.close()


def _accept_start(
    invocation: Invocation, loaded: Loaded, conflict: StartConflict, opened_key: tuple[str, str]
) -> tuple[str, str]:
    """Show that the configuration belongs to a different node. Remove the record that says so after an approver of the
    other node has opened a key. Return the name and the thumbprint of this key. Raise Refused if there is no such key
    on this machine.

    `opened_key` is the key that was opened for the last record. If it is one for this record too, it is not asked for
    again.
    """
    out = invocation.out
    out.remark("the configuration belongs to another node; a start with other data ignores what was signed there:")
    for line in conflict.lines:
        out.remark(f"  {line}")
    hint = "start with the data folder and store of that node"
    if conflict.record is not None:
        hint += f"; if no key of its approvers is left, remove {conflict.record}"
    name, key_print = opened_key
    if key_print not in conflict.keys:
        name, key_print = _open_key(frozenset(conflict.keys), hint)
    asyncio.run(_forget_start(loaded, conflict, name, key_print))
    out.remark(f"accepted with the key {name}; the audit log says so")
    return name, key_print


async def _forget_start(loaded: Loaded, conflict: StartConflict, name: str, key_print: str) -> None:
    plan = loaded.plan
    audit = build_audit(plan.store.backend, plan.data)
    own = build_store("sqlite", plan.data)  # of this machine, also if replicas share another
    async with opened(audit), opened(own):
        # AX-11.N-11: on record before it counts
        record = AuditRecord.event(
            Clock().wall(),
            name,
            "operator",
            "config/accept",
            verdict="signed",
            outcome="in effect",
            keys=[key_print],
            lines=conflict.lines,
        )
        await Recorder(audit).append_now(record)
        await forget_start(conflict, own.kv)


def _open_key(prints: frozenset[str], hint: str) -> tuple[str, str]:
    """Open the key of an enrolled approver that is stored on this machine, and return its name and thumbprint. Raise
    Refused with `hint` if there is none. `prints` are the thumbprints of all enrolled keys.
    """
    keys, own = OperatorKeys(), own_name()
    publics = {name: keys.find_public(name) for name in keys.names()}
    enrolled = [name for name, text in publics.items() if text and thumbprint(read_key_untrusted(text)[0]) in prints]
    if not enrolled:
        raise Refused("no_key", f"no key in {keys.folder} is enrolled as an approver", hint=hint)
    name = own if own in enrolled else enrolled[0]
    if not signing.is_sealed(keys.file(name).read_bytes()[: signing.PUBLIC_BYTES_MAX]):
        why = f"the key {name} has no passphrase, so every program on this machine could accept with it"
        raise Refused("key_unusable", why, hint=hint)
    # AX-11.N-8: the private half decides, because a file with a public key can be replaced
    key_print = thumbprint(keys.open(name, lambda: read_passphrase(name, None)).public)
    if key_print not in prints:
        raise Refused("no_key", f"the key {name} is not enrolled as an approver", hint=hint)
    return name, key_print


async def _accept(plan: Plan, name: str, key_print: str) -> None:
    audit = build_audit(plan.store.backend, plan.data)
    async with opened(audit), opened_stores(plan, Clock()) as (_, local):
        await accept_written(plan, local.kv, Recorder(audit), Clock().wall(), by=name, key_print=key_print)

"""Taking back a key while no node runs: written where the node reads it when it starts."""

from pathlib import Path

import msgspec

from interlock.approvals.api import RevokedKeys
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier, revocation_line
from interlock.cli.client.offline import LOCAL, record_stored, run_stored
from interlock.cli.client.operator import Answer
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.part import CannotStart
from interlock.credentials.shared_store import build_shared_store
from interlock.wire.refusal import Refused


def revoke_stored(plan: Plan, folder: Path, ref: str) -> Answer:
    """Revoke the keys of an anchor, or one key. `ref` is the name of the anchor or the thumbprint of the key."""

    async def revoke() -> Answer:
        store = build_shared_store(plan, folder)
        anchors = Anchors(plan.anchors, Clock())
        try:
            anchors.load()
            await store.open()
            revoked = await ProofVerifier(store.kv, Clock(), anchors).revoke(ref)
            if revoked:
                line = revocation_line(revoked, ref, LOCAL, Clock().wall())
                await record_stored(plan, folder, [line])
        except CannotStart as error:
            raise Refused("key_unusable", str(error)) from None
        finally:
            await anchors.close()
            await store.close()
        if not revoked:
            names = ", ".join(anchor.name for anchor in plan.anchors) or "none"
            raise Refused("not_found", f"there is no anchor {ref} with a key of its own", hint=f"there is {names}")
        return Answer(msgspec.json.encode(RevokedKeys(revoked=tuple(revoked), voided=())))

    return run_stored(revoke())

"""AuthorityProofs of authority: judged by an anchor's key, used once (MCP-AX 4.2)."""

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.registrant import AuthorityProofs
from interlock.ax.protocol.messages import AuthorityProof, Register
from interlock.config.plan import AnchorPlan
from interlock.core.clock import Clock
from interlock.core.store_backends import build_store
from interlock.wire.refusal import Refusal

AUTHORITY = "edge01.example.com"
OWN_ID = str(uuid.uuid4())
KEY = Ed25519PrivateKey.generate()


def _anchor() -> AnchorPlan:
    x = base64.urlsafe_b64encode(KEY.public_key().public_bytes_raw()).rstrip(b"=").decode()
    key = json.dumps({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "k1"})
    return AnchorPlan(name="plant", key=key, speaks_for=(AUTHORITY,))


def _request(key: Any = KEY, **claims: Any) -> Register:
    now = Clock.wall()
    said = {"sub": f"dns:{AUTHORITY}", "aud": OWN_ID, "iat": now, "exp": now + 60, "jti": uuid.uuid4().hex, **claims}
    token = jwt.encode(said, key, algorithm="EdDSA", headers={"kid": "k1"})
    return Register(
        subserver_id=str(uuid.uuid4()),
        segment="plant",
        authority=AUTHORITY,
        authority_proof=AuthorityProof(type="jwt", token=token),
    )


async def _judge(proofs: AuthorityProofs, request: Register) -> Refusal | None:
    proved = await proofs.judge(request)
    assert proved is not None
    return proved if isinstance(proved, Refusal) else await proofs.spend(proved)


@pytest.mark.parametrize("anchored", [True, False])
async def test_a_proof_holds_once_and_only_under_an_anchor(tmp_path: Path, anchored: bool) -> None:
    store = build_store("sqlite", tmp_path)
    await store.open()
    anchors = Anchors((_anchor(),) if anchored else (), Clock())
    anchors.load()
    proofs = AuthorityProofs(store.kv, Clock(), anchors, audiences=lambda: (OWN_ID,))
    try:
        request = _request()
        first, again = await _judge(proofs, request), await _judge(proofs, request)
        assert isinstance(again, Refusal)
        if not anchored:
            assert isinstance(first, Refusal)
            assert (first.details or {})["reason"] == "key_unknown"
            return
        assert first is None
        assert (again.details or {})["reason"] == "replayed"
        forged = await _judge(proofs, _request(Ed25519PrivateKey.generate()))
        assert isinstance(forged, Refusal)
        assert (forged.message, (forged.details or {})["reason"]) == ("authority_unverified", "signature")
        elsewhere = await _judge(proofs, _request(aud=str(uuid.uuid4())))
        assert isinstance(elsewhere, Refusal)
        assert (elsewhere.details or {})["reason"] == "audience"
        assert await proofs.judge(Register(subserver_id=str(uuid.uuid4()), segment="plant")) is None
    finally:
        await store.close()

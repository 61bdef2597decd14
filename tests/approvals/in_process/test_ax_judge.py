"""Proofs of a decision: judged by an anchor's key, used once, also after a restart; keys that are taken back."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.approvals.inboxes import ManualClock
from tests.servers.minting import SigningKey, key, mint

from interlock.approvals.protocol.approval import Approval, Decision, Kind, Proof, Source, What
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.config.plan import AnchorPlan
from interlock.core.store_backends import build_store
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import PROOF_S_MAX, ProofQuestion, Verified
from interlock.net.fetch import FetchFailed
from interlock.wire.refusal import Refusal

OWN_ID = "550e8400-e29b-41d4-a716-446655440000"
ADA, BOB, SERVICE = key("EdDSA", "ada"), key("ES256", "bob"), key("RS256", "service")
URL = "https://desk.example.com/jwks"
CALL = Approval(
    id="7f1c7a52-4b9b-4d4c-9d7b-5d1f2f0f8a11",
    kind=Kind.CALL,
    source=Source.AX,
    requested_by="client:alice",
    tool="files.delete",
    digest="cd" * 32,
    nonce="bm9uY2U",
    created_at=0.0,
)
ASKED = ProofQuestion(
    confirmation_id=CALL.id, call_digest=CALL.digest, nonce="bm9uY2U", tool=CALL.tool, aggregator_id=OWN_ID
)


class Service:
    def __init__(self) -> None:
        self.away = False

    async def get(self, url: str) -> bytes:
        assert url == URL
        if self.away:
            raise FetchFailed("HTTP status 503")
        return json.dumps({"keys": [SERVICE.jwk()]}).encode()


def plan(name: str, signer: SigningKey, *approves: str) -> AnchorPlan:
    return AnchorPlan(name=name, key=json.dumps(signer.jwk()), approves=approves)


PLANS = (plan("ada", ADA, "*"), plan("bob", BOB, "office.*"), AnchorPlan(name="desk", jwks=URL, approves=("files.*",)))


@contextlib.asynccontextmanager
async def court(
    folder: Path, clock: ManualClock, plans: tuple[AnchorPlan, ...] = PLANS, service: Service | None = None
) -> AsyncIterator[ProofVerifier]:
    store = build_store("sqlite", folder)
    await store.open()
    anchors = Anchors(plans, clock, (service or Service()).get)
    anchors.load()
    try:
        judge = ProofVerifier(store.kv, clock, anchors)
        await judge.open()
        yield judge
    finally:
        await anchors.close()
        await store.close()


def proof_of(clock: ManualClock, signer: SigningKey = ADA, **changes: Any) -> Presented:
    claims = {
        "iss": "x",
        "aud": OWN_ID,
        "jti": "j1",
        "iat": clock.wall(),
        "exp": clock.wall() + PROOF_S_MAX,
        "confirmation_id": CALL.id,
        "call_digest": CALL.digest,
    }
    return Presented(token=mint(signer, claims | changes, typ="mcpax-confirm+jwt"))


def reason(judged: Verified | Refusal) -> tuple[int, str]:
    assert isinstance(judged, Refusal), judged
    return judged.number, (judged.details or {})["reason"]


async def test_a_proof_holds_once_also_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    proof = proof_of(clock)
    async with court(tmp_path, clock) as judge:
        first = await judge.judge(ASKED, proof)
        assert isinstance(first, Verified)
        assert (first.type, first.anchor, first.jti) == ("operator_signature", "ada", "j1")
        assert first.expires_at == clock.wall() + 300
        assert reason(await judge.judge(ASKED, proof)) == (32122, "replayed")
        assert reason(await judge.judge(ASKED, msgspec.structs.replace(proof, type="operator_signature"))) == (
            32122,
            "replayed",
        )
    async with court(tmp_path, clock) as judge:
        assert reason(await judge.judge(ASKED, proof)) == (32122, "replayed")
        assert isinstance(await judge.judge(ASKED, proof_of(clock, jti="j2")), Verified)


async def test_of_many_at_once_one_proof_holds(tmp_path: Path) -> None:
    clock = ManualClock()
    async with court(tmp_path, clock) as judge:
        judged = await asyncio.gather(*(judge.judge(ASKED, proof_of(clock)) for _ in range(20)))
    assert [isinstance(one, Verified) for one in judged].count(True) == 1
    assert {one.number for one in judged if isinstance(one, Refusal)} == {32122}


async def test_a_refused_proof_is_not_used_up(tmp_path: Path) -> None:
    clock = ManualClock()
    async with court(tmp_path, clock) as judge:
        assert reason(await judge.judge(ASKED, proof_of(clock, call_digest="ab" * 32))) == (32123, "digest")
        assert isinstance(await judge.judge(ASKED, proof_of(clock)), Verified)


async def test_a_clock_that_is_set_back_makes_no_old_proof_good_again(tmp_path: Path) -> None:
    clock = ManualClock()
    proof = proof_of(clock)
    async with court(tmp_path, clock) as judge:
        assert isinstance(await judge.judge(ASKED, proof), Verified)
        clock.pass_(PROOF_S_MAX + 600)
        assert reason(await judge.judge(ASKED, proof)) == (32123, "expired")
        assert reason(await judge.judge(ASKED, proof_of(clock))) == (32122, "replayed")  # a new one of the same jti
        clock.wall_at -= PROOF_S_MAX + 590
        assert reason(await judge.judge(ASKED, proof)) == (32122, "replayed")


async def test_a_disk_that_refuses_takes_no_proof(tmp_path: Path) -> None:
    clock = ManualClock()
    async with court(tmp_path, clock) as judge:
        store = build_store("sqlite", tmp_path / "other")
        await store.open()
        await store.close()
        judge.kv = store.kv
        assert reason(await judge.judge(ASKED, proof_of(clock))) == (32131, "store")


async def test_an_anchor_approves_only_its_own_tools(tmp_path: Path) -> None:
    clock = ManualClock()
    async with court(tmp_path, clock) as judge:
        assert reason(await judge.judge(ASKED, proof_of(clock, BOB))) == (32123, "not_entitled")


async def test_a_key_set_that_cannot_be_had_refuses(tmp_path: Path) -> None:
    clock, service = ManualClock(), Service()
    service.away = True
    async with court(tmp_path, clock, service=service) as judge:
        assert reason(await judge.judge(ASKED, proof_of(clock, SERVICE))) == (32131, "anchor_keys")
        assert isinstance(await judge.judge(ASKED, proof_of(clock)), Verified)  # others do not wait for it
        service.away = False
        clock.pass_(60)
        judged = await judge.judge(ASKED, proof_of(clock, SERVICE))
        assert isinstance(judged, Verified) and (judged.type, judged.anchor) == ("approval_token", "desk")


def approved_by(anchor: str, tool: str = CALL.tool) -> Approval:
    proof = Proof(type="operator_signature", anchor=anchor, jti="j")
    decision = Decision(what=What.APPROVED, by="operator:ada", at=0.0, proof=proof)
    return msgspec.structs.replace(CALL, tool=tool, decision=decision)


async def test_an_approval_holds_while_its_anchor_does(tmp_path: Path) -> None:
    async with court(tmp_path, ManualClock()) as judge:
        assert judge.stands(CALL)
        assert judge.stands(approved_by("ada"))
        assert judge.stands(approved_by("desk"))
        assert not judge.stands(approved_by("bob"))
        assert judge.stands(approved_by("bob", "office.print"))
        assert not judge.stands(approved_by("gone"))
    async with court(tmp_path, ManualClock(), PLANS[1:]) as judge:
        assert not judge.stands(approved_by("ada"))


async def test_a_revoked_key_proves_nothing_from_then_on(tmp_path: Path) -> None:
    clock = ManualClock()
    async with court(tmp_path, clock) as judge:
        (revoked,) = await judge.revoke("ada")
        assert reason(await judge.judge(ASKED, proof_of(clock))) == (32123, "revoked")
        assert not judge.stands(approved_by("ada"))
        assert await judge.revoke("nobody") == ()
        assert await judge.revoke("desk") == ()
    again = (plan("ada-again", ADA, "*"),)  # under another name it is the same key
    async with court(tmp_path, clock, again) as judge:
        assert reason(await judge.judge(ASKED, proof_of(clock))) == (32123, "revoked")
    async with court(tmp_path / "elsewhere", clock) as judge:
        assert await judge.revoke(revoked) == (revoked,)
        assert reason(await judge.judge(ASKED, proof_of(clock))) == (32123, "revoked")


async def test_a_start_with_a_revoked_key_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with court(tmp_path, ManualClock()) as judge:
        await judge.revoke("ada")
    assert "revoked" not in caplog.text
    async with court(tmp_path, ManualClock()):
        pass
    assert "the key of anchor ada was revoked" in caplog.text

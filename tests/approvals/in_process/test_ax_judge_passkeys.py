"""Passkeys before the judge: used once, counting upwards, taken back, and asked for again and again."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.approvals.inboxes import ManualClock
from tests.servers.authenticator import Authenticator

from interlock.approvals.api import PasskeyRequest
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.config.plan import AnchorPlan
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit, build_store
from interlock.crypto.webauthn import find_relying_party
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import ProofQuestion, Verified
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refusal

URL = "http://127.0.0.1:7412"
ASKED = ProofQuestion(
    confirmation_id="7f1c7a52-4b9b-4d4c-9d7b-5d1f2f0f8a11",
    call_digest="cd" * 32,
    nonce="bm9uY2U",
    tool="files.delete",
    aggregator_id="550e8400-e29b-41d4-a716-446655440000",
)


class Court:
    def __init__(self, judge: ProofVerifier, desk: PasskeyService, store: Any) -> None:
        self.judge, self.desk, self.store = judge, desk, store

    def asked(self) -> str:
        request = self.desk.request(ASKED)
        assert isinstance(request, PasskeyRequest)
        return request.challenge

    async def judged(self, token: str) -> Verified | Refusal:
        return await self.judge.judge(ASKED, Presented(token=token))

    async def reason(self, token: str) -> tuple[int, str]:
        judged = await self.judged(token)
        assert isinstance(judged, Refusal), judged
        return judged.number, (judged.details or {})["reason"]


@contextlib.asynccontextmanager
async def court(folder: Path, clock: ManualClock, *people: Authenticator, url: str = URL) -> AsyncIterator[Court]:
    store = build_store("sqlite", folder)
    await store.open()
    plans = [
        AnchorPlan(name=f"p{index}", passkey=one.text(), approves=("files.*",)) for index, one in enumerate(people)
    ]
    anchors = Anchors(plans, clock)
    anchors.load()
    judge = ProofVerifier(store.kv, clock, anchors, lambda: find_relying_party(url))
    await judge.open()
    desk = PasskeyService(anchors, Recorder(build_audit("sqlite", folder)), clock, lambda: url)
    try:
        yield Court(judge, desk, store)
    finally:
        await anchors.close()
        await store.close()


async def test_an_assertion_holds_once_also_after_a_restart(tmp_path: Path) -> None:
    clock, ada = ManualClock(), Authenticator()
    async with court(tmp_path, clock, ada) as here:
        token = ada.sign(here.asked())
        first = await here.judged(token)
        assert isinstance(first, Verified)
        assert (first.type, first.anchor, first.expires_at) == ("operator_signature", "p0", clock.wall() + 300)
        assert await here.reason(token) == (32122, "replayed")
    async with court(tmp_path, clock, ada) as here:
        assert await here.reason(token) == (32122, "replayed")
        clock.pass_(300)
        assert await here.reason(token) == (32123, "expired")


async def test_the_same_signature_spelled_otherwise_is_the_same_assertion(tmp_path: Path) -> None:
    """ECDSA: whoever has (r, s) has (r, -s) too."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
    from tests.servers.authenticator import b64, unb64

    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    ada = Authenticator("es256")
    async with court(tmp_path, ManualClock(), ada) as here:
        token = ada.sign(here.asked())
        head, _, signature = token.rpartition(".")
        r, s = decode_dss_signature(unb64(signature))
        twin = f"{head}.{b64(encode_dss_signature(r, order - s))}"
        assert isinstance(await here.judged(twin), Verified)
        assert await here.reason(token) == (32122, "replayed")


async def test_a_passkey_that_does_not_count_can_be_asked_again(tmp_path: Path) -> None:
    ada = Authenticator("ed25519")
    async with court(tmp_path, ManualClock(), ada) as here:
        for _ in range(3):
            assert isinstance(await here.judged(ada.sign(here.asked())), Verified)


async def test_a_passkey_that_counts_must_count_upwards_also_after_a_restart(tmp_path: Path) -> None:
    clock, ada, bob = ManualClock(), Authenticator(), Authenticator()
    async with court(tmp_path, clock, ada, bob) as here:
        assert isinstance(await here.judged(ada.sign(here.asked(), counter=5)), Verified)
        assert isinstance(await here.judged(ada.sign(here.asked(), counter=6)), Verified)
        for backwards in (6, 5, 0):
            assert await here.reason(ada.sign(here.asked(), counter=backwards)) == (32123, "counter")
        assert isinstance(await here.judged(bob.sign(here.asked(), counter=1)), Verified)
    async with court(tmp_path, clock, ada) as here:
        assert await here.reason(ada.sign(here.asked(), counter=6)) == (32123, "counter")
        assert isinstance(await here.judged(ada.sign(here.asked(), counter=7)), Verified)


async def test_a_counter_that_was_not_signed_counts_for_nothing(tmp_path: Path) -> None:
    ada, eve = Authenticator(), Authenticator()
    async with court(tmp_path, ManualClock(), ada) as here:
        asked = here.asked()
        forged = eve.signed(ada.client_data("webauthn.get", asked), ada.data(0x05, 2**32 - 1), ada.credential)
        assert await here.reason(forged) == (32123, "signature")
        assert isinstance(await here.judged(ada.sign(asked, counter=1)), Verified)


async def test_a_passkey_can_be_taken_back_by_the_name_of_its_anchor(tmp_path: Path) -> None:
    ada = Authenticator()
    async with court(tmp_path, ManualClock(), ada) as here:
        assert len(await here.judge.revoke("p0")) == 1
        assert await here.reason(ada.sign(here.asked())) == (32123, "revoked")


async def test_a_store_that_cannot_remember_refuses(tmp_path: Path) -> None:
    ada = Authenticator()
    async with court(tmp_path, ManualClock(), ada) as here:
        kept = here.store.kv.get

        async def away(*_: Any) -> Any:
            raise StoreError("away")

        here.store.kv.get = away
        judged = await here.judged(ada.sign(here.asked(), counter=1))
        assert isinstance(judged, Refusal) and judged.number == 32131
        here.store.kv.get = kept
        assert isinstance(await here.judged(ada.sign(here.asked(), counter=1)), Verified)


async def test_where_browsers_use_no_passkeys_none_is_asked_and_none_counts(tmp_path: Path) -> None:
    ada = Authenticator()
    async with court(tmp_path, ManualClock(), ada, url="http://192.0.2.1:7412") as here:
        refused = here.desk.request(ASKED)
        assert isinstance(refused, Refusal) and (refused.details or {})["reason"] == "party"
        assert here.desk.find_origin("files.delete") is None
        assert here.desk.url() == "http://192.0.2.1:7412"
        assert here.desk.invite("ada", "local") is None


async def test_links_lead_to_where_passkeys_work(tmp_path: Path) -> None:
    async with court(tmp_path, ManualClock(), Authenticator()) as here:
        assert here.desk.url() == "http://localhost:7412"
        assert here.desk.find_origin("files.delete") == "http://localhost:7412"
        assert here.desk.find_origin("mail.send") is None
        refused = here.desk.request(ProofQuestion(**{**_members(ASKED), "tool": "mail.send"}))
        assert isinstance(refused, Refusal) and (refused.details or {})["reason"] == "not_entitled"
    async with court(tmp_path, ManualClock()) as here:
        assert here.desk.url() == URL
    async with court(tmp_path, ManualClock(), Authenticator(), url="https://ops.example.com/x") as here:
        assert here.desk.url() == "https://ops.example.com/x"


def _members(asked: ProofQuestion) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in asked.__struct_fields__}

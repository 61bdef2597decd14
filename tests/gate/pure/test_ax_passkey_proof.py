"""Does exactly a passkey of somebody entitled, asked for this very confirmation, release a call (MCP-AX 11.3)?"""

from typing import Any

import msgspec
import pytest
from tests.servers.authenticator import PRESENT, USUAL, VERIFIED, Authenticator, b64
from tests.servers.minting import key, mint

from interlock.ax.protocol.registration.authority import Anchor
from interlock.crypto.jose import thumbprint
from interlock.crypto.jwt_verification import check_assertion_signature, check_signature
from interlock.crypto.webauthn import Party, read_passkey_untrusted
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import (
    TOKEN_CHARS_MAX,
    ProofQuestion,
    Verified,
    challenge,
    judge_confirmation,
    judge_passkey,
    passkeys_for,
)
from interlock.wire.refusal import Refusal

NOW = 1_800_000_000.0
ENTROPY = bytes(range(16))
PARTY = Party(id="localhost", origin="http://localhost:7412")
ASKED = ProofQuestion(
    confirmation_id="7f1c7a52-4b9b-4d4c-9d7b-5d1f2f0f8a11",
    call_digest="cd" * 32,
    nonce="dGhlIG5vbmNl",
    tool="plant.valve.open",
    aggregator_id="550e8400-e29b-41d4-a716-446655440000",
)
ADA, BOB, CLERK = Authenticator("es256"), Authenticator("ed25519"), Authenticator("es256")


def anchor(name: str, made: Authenticator, *approves: str) -> Anchor:
    return Anchor(name=name, keys=(read_passkey_untrusted(made.text()),), approves=approves, source="passkey")


ANCHORS = (anchor("ada", ADA, "*"), anchor("bob", BOB, "plant.*"), anchor("clerk", CLERK, "office.*"))


def asked_for(asked: ProofQuestion = ASKED, now: float = NOW, entropy: bytes = ENTROPY) -> str:
    return b64(challenge(asked, now=now, entropy=entropy))


def judged(token: str, kind: str | None = None, party: Party | None = PARTY, now: float = NOW) -> Verified | Refusal:
    return judge_passkey(
        Presented(type=kind, token=token),
        ASKED,
        anchors=ANCHORS,
        party=party,
        now=now,
        verify=check_assertion_signature,
    )


def reason(judgement: Verified | Refusal) -> str:
    assert isinstance(judgement, Refusal), judgement
    assert (judgement.number, judgement.message) == (32123, "proof_invalid")
    assert judgement.details is not None and judgement.details["detail"]
    return str(judgement.details["reason"])


def other(**changes: Any) -> ProofQuestion:
    return msgspec.structs.replace(ASKED, **changes)


def test_the_challenge_begins_with_the_call_digest_and_is_another_for_everything_else() -> None:
    whole = challenge(ASKED, now=NOW, entropy=ENTROPY)
    assert whole[:32] == bytes.fromhex(ASKED.call_digest)
    assert whole[-16:] == ENTROPY
    others = [other(confirmation_id="x"), other(nonce="x"), other(aggregator_id="x"), other(call_digest="ab" * 32)]
    made = {challenge(one, now=NOW, entropy=ENTROPY) for one in (ASKED, *others)}
    assert len(made) == 5


@pytest.mark.req("AX-11.3-6")
@pytest.mark.parametrize("kind", [None, "operator_signature"])
@pytest.mark.parametrize(("name", "signer"), [("ada", ADA), ("bob", BOB)])
def test_a_persons_passkey_over_this_very_confirmation_holds(
    kind: str | None, name: str, signer: Authenticator
) -> None:
    assert judged(signer.sign(asked_for(), counter=3), kind) == Verified(
        type="operator_signature",
        anchor=name,
        issuer=name,
        jti=ENTROPY.hex(),
        key=thumbprint(read_passkey_untrusted(signer.text())),
        expires_at=NOW + 300,
        counter=3,
    )


@pytest.mark.req("AX-11.3-6")
@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (other(call_digest="ab" * 32), "digest"),
        (other(confirmation_id="another"), "confirmation"),
        (other(nonce="another"), "confirmation"),
        (other(nonce=""), "confirmation"),
        (other(aggregator_id="another"), "confirmation"),
    ],
)
def test_a_signature_over_anything_else_does_not(asked: ProofQuestion, word: str) -> None:
    assert reason(judged(ADA.sign(asked_for(asked)))) == word


@pytest.mark.parametrize(
    "signed",
    [
        bytes.fromhex(ASKED.call_digest),  # the bare digest would be good for every call like this one
        b"",
        challenge(ASKED, now=NOW, entropy=b""),
        challenge(ASKED, now=NOW, entropy=bytes(17)),
    ],
)
def test_a_challenge_that_is_not_whole_is_none(signed: bytes) -> None:
    assert reason(judged(ADA.sign(b64(signed)))) == "challenge"


@pytest.mark.req("AX-11.3-6", "AX-11.3-9")
@pytest.mark.parametrize(
    ("token", "word"),
    [
        (ADA.sign(asked_for(), origin="https://evil.example"), "origin"),
        (ADA.sign(asked_for(), origin="http://127.0.0.1:7412"), "origin"),
        (ADA.sign(asked_for(), type="webauthn.create"), "type"),
        (ADA.sign(asked_for(), flags=VERIFIED), "presence"),
        (ADA.sign(asked_for(), flags=PRESENT), "verification"),
        (ADA.signed(ADA.client_data("webauthn.get", asked_for()), ADA.data(USUAL, 0, "evil.example")), "party"),
        (Authenticator().sign(asked_for()), "key_unknown"),
        (CLERK.sign(asked_for()), "not_entitled"),
        (BOB.signed(ADA.client_data("webauthn.get", asked_for()), ADA.data(USUAL, 0), ADA.credential), "signature"),
        ("a.b.c.d", "malformed"),
        ("A" * TOKEN_CHARS_MAX + ".QQ.QQ.QQ", "too_long"),
    ],
)
def test_each_thing_that_is_wrong_has_its_word(token: str, word: str) -> None:
    assert reason(judged(token)) == word


@pytest.mark.parametrize(
    ("made_at", "word"),
    [(NOW - 299, None), (NOW - 300, "expired"), (NOW + 30, None), (NOW + 32, "not_yet"), (0, "expired")],
)
def test_a_passkey_was_asked_within_the_last_five_minutes(made_at: float, word: str | None) -> None:
    judgement = judged(ADA.sign(asked_for(now=made_at)))
    assert (reason(judgement) if word else isinstance(judgement, Verified)) == (word or True)


@pytest.mark.parametrize("kind", ["policy_nonce", "approval_token", "passkey", ""])
def test_a_passkey_is_no_other_type_than_a_persons_signature(kind: str) -> None:
    assert reason(judged(ADA.sign(asked_for()), kind)) == "kind"


def test_without_a_place_for_passkeys_none_counts() -> None:
    assert reason(judged(ADA.sign(asked_for()), party=None)) == "party"


def test_two_anchors_with_one_passkey_count_for_what_either_may_approve() -> None:
    both = (anchor("office", ADA, "office.*"), *ANCHORS)
    proof = Presented(token=ADA.sign(asked_for()))
    judgement = judge_passkey(proof, ASKED, anchors=both, party=PARTY, now=NOW, verify=check_assertion_signature)
    assert isinstance(judgement, Verified) and judgement.anchor == "ada"


def test_a_passkeys_key_verifies_no_token_and_another_key_no_assertion() -> None:
    signer = key("ES256", "stolen")
    as_passkey = Anchor(name="x", keys=(), approves=("*",), source="passkey")
    from interlock.crypto.jose import read_jwks_untrusted

    jwk = read_jwks_untrusted(msgspec.json.encode({"keys": [signer.jwk()]}))
    claims = {
        "iss": "x",
        "aud": ASKED.aggregator_id,
        "jti": "j",
        "iat": NOW,
        "exp": NOW + 60,
        "confirmation_id": ASKED.confirmation_id,
        "call_digest": ASKED.call_digest,
    }
    token = Presented(token=mint(signer, claims, typ="mcpax-confirm+jwt"))

    def of(source: Any) -> Verified | Refusal:
        anchors = (msgspec.structs.replace(as_passkey, keys=jwk, source=source),)
        return judge_confirmation(token, ASKED, anchors=anchors, now=NOW, verify=check_signature)

    assert isinstance(of("key"), Verified)
    assert reason(of("passkey")) == "key_unknown"
    plain = tuple(msgspec.structs.replace(one, source="key") for one in ANCHORS)
    proof = Presented(token=ADA.sign(asked_for()))
    assert (
        reason(judge_passkey(proof, ASKED, anchors=plain, party=PARTY, now=NOW, verify=check_assertion_signature))
        == "key_unknown"
    )


def test_a_browser_learns_which_passkeys_may_approve_the_tool() -> None:
    assert [one.kid for one in passkeys_for("plant.valve.open", ANCHORS)] == [b64(ADA.credential), b64(BOB.credential)]
    assert [one.kid for one in passkeys_for("office.print", ANCHORS)] == [b64(ADA.credential), b64(CLERK.credential)]

"""Does exactly a proof of somebody entitled, for this very call, release it (MCP-AX 11.3)? With real signatures."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.minting import b64, confused, key, mint, tampered, unsigned

from interlock.ax.protocol.registration.authority import Anchor
from interlock.crypto.jose import read_jwks_untrusted, thumbprint
from interlock.crypto.jwt_verification import check_signature
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import (
    TOKEN_CHARS_MAX,
    ProofQuestion,
    Verified,
    approvers,
    judge_confirmation,
    replay_refusal,
)
from interlock.wire.refusal import Refusal

NOW = 1_800_000_000.0
AGGREGATOR = "550e8400-e29b-41d4-a716-446655440000"
ASKED = ProofQuestion(
    confirmation_id="7f1c7a52-4b9b-4d4c-9d7b-5d1f2f0f8a11",
    call_digest="cd" * 32,
    nonce="dGhlIG5vbmNl",
    tool="plant.valve.open",
    aggregator_id=AGGREGATOR,
)
OPERATOR, POLICY, SERVICE = key("EdDSA", "op"), key("ES256", "policy"), key("RS256", "service")
CLERK, STRANGER = key("EdDSA", "clerk"), key("EdDSA", "stranger")
GOOD: dict[str, Any] = {
    "iss": "ada",
    "aud": AGGREGATOR,
    "jti": "j1",
    "iat": NOW - 1,
    "exp": NOW + 299,
    "confirmation_id": ASKED.confirmation_id,
    "call_digest": ASKED.call_digest,
}


def anchor(name: str, *signers: Any, source: Any = "key", approves: tuple[str, ...] = ("*",), **jwk: Any) -> Anchor:
    keys = read_jwks_untrusted(json.dumps({"keys": [signer.jwk(**jwk) for signer in signers]}).encode())
    return Anchor(name=name, keys=keys, approves=approves, source=source)


ANCHORS = (
    anchor("ada", OPERATOR),
    anchor("clerk", CLERK, approves=("office.*",)),
    anchor("engine", POLICY),
    anchor("desk", SERVICE, key("PS256", "ps"), source="jwks", approves=("plant.valve.*", "x")),
    Anchor(name="registrants", keys=anchor("x", STRANGER).keys, speaks_for=frozenset({"a.example"})),
)


def token(signer: Any = OPERATOR, header: dict[str, Any] | None = None, **changes: Any) -> str:
    claims = {name: value for name, value in (GOOD | changes).items() if value is not None}
    return mint(signer, claims, **({"typ": "mcpax-confirm+jwt"} | (header or {})))


def judged(
    text: str, kind: str | None = None, asked: ProofQuestion = ASKED, anchors: Any = ANCHORS
) -> Verified | Refusal:
    return judge_confirmation(Presented(type=kind, token=text), asked, anchors=anchors, now=NOW, verify=check_signature)


def reason(judgement: Verified | Refusal) -> str:
    assert isinstance(judgement, Refusal), judgement
    assert (judgement.number, judgement.message) == (32123, "proof_invalid")
    assert judgement.details is not None and judgement.details["detail"]
    return str(judgement.details["reason"])


@pytest.mark.req("AX-11.3-6")
@pytest.mark.parametrize("kind", [None, "operator_signature"])
def test_an_operators_signature_over_the_call_holds(kind: str | None) -> None:
    assert judged(token(), kind) == Verified(
        type="operator_signature",
        anchor="ada",
        issuer="ada",
        jti="j1",
        key=thumbprint(ANCHORS[0].keys[0]),
        expires_at=NOW + 299,
    )


@pytest.mark.req("AX-11.3-7")
@pytest.mark.parametrize("kind", [None, "policy_nonce"])
def test_a_policy_engines_signature_over_nonce_and_call_holds(kind: str | None) -> None:
    made = judged(token(POLICY, iss="https://policy.example", nonce=ASKED.nonce), kind)
    assert isinstance(made, Verified)
    assert (made.type, made.anchor, made.issuer) == ("policy_nonce", "engine", "https://policy.example")


@pytest.mark.req("AX-11.3-8")
@pytest.mark.parametrize("kind", [None, "approval_token"])
def test_an_approval_token_under_a_key_set_holds(kind: str | None) -> None:
    made = judged(token(SERVICE, iss="https://desk.example"), kind)
    assert isinstance(made, Verified)
    assert (made.type, made.anchor) == ("approval_token", "desk")


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": AGGREGATOR.upper()},
        {"aud": ["https://else.example", AGGREGATOR]},
        {"iat": NOW + 30, "exp": NOW + 330},
        {"iat": NOW - 299.5, "exp": NOW + 0.5},
        {"iat": NOW, "exp": NOW + 300},
        {"nbf": NOW + 30},
        {"jti": "x" * 255},
        {"sub": "whatever", "more": {"a": [1]}},
    ],
)
def test_claims_may_be_spelled_and_timed_like_this(changes: dict[str, Any]) -> None:
    assert isinstance(judged(token(**changes)), Verified)


def test_the_type_may_be_a_whole_media_type_in_capitals() -> None:
    assert isinstance(judged(token(header={"typ": "application/MCPAX-Confirm+JWT"})), Verified)


@pytest.mark.req("AX-11.3-5")
@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (unsigned(GOOD), "algorithm"),
        (unsigned(GOOD, "NONE"), "algorithm"),
        (confused(SERVICE, GOOD, SERVICE.pem()), "algorithm"),
        (token(header={"alg": "HS256"}), "algorithm"),
        (token(key("PS256", "ps")), "algorithm"),
        (token(key("EdDSA", "nobody")), "key_unknown"),
        (token(STRANGER, header={"kid": "op"}), "signature"),
        (token(OPERATOR, header={"kid": "policy"}), "key_unfit"),
        (token(header={"typ": "at+jwt"}), "type"),
        (token(header={"typ": "JWT"}), "type"),
        (token(header={"typ": None}), "type"),
        (token(header={"crit": ["b64"], "b64": False}), "malformed"),
        (tampered(token(call_digest="ab" * 32), call_digest=ASKED.call_digest), "signature"),
        (tampered(token(), exp=NOW + 10), "signature"),
        (token()[:-5], "malformed"),  # 81 characters are never base64; 82 are, one time in sixteen
        (token().rpartition(".")[0] + ".", "algorithm"),
        (token() + "A" * 4, "signature"),
        (ASKED.nonce, "malformed"),
        ("ilc_" + "A" * 43, "malformed"),
        ("a.b", "malformed"),
        ("a.b.c.d.e", "malformed"),
        ("é.é.é", "malformed"),
        ("..", "malformed"),
        ("\ud800.a.b", "malformed"),
        ("A" * (TOKEN_CHARS_MAX + 1), "too_long"),
        (token(pad="x" * TOKEN_CHARS_MAX), "too_long"),
    ],
)
def test_a_forged_or_foreign_token_is_refused_with_a_reason(forged: str, why: str) -> None:
    assert reason(judged(forged)) == why


@pytest.mark.req("AX-11.3-5", "AX-11.3-6", "AX-11.3-7", "AX-11.3-8")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": None}, "audience"),
        ({"aud": "https://hub.example.com"}, "audience"),
        ({"aud": "650e8400-e29b-41d4-a716-446655440000"}, "audience"),
        ({"aud": []}, "audience"),
        ({"confirmation_id": None}, "confirmation"),
        ({"confirmation_id": "8f1c7a52-4b9b-4d4c-9d7b-5d1f2f0f8a11"}, "confirmation"),
        ({"confirmation_id": [ASKED.confirmation_id]}, "confirmation"),
        ({"call_digest": None}, "digest"),
        ({"call_digest": "ef" * 32}, "digest"),
        ({"call_digest": ASKED.call_digest.upper()}, "digest"),
        ({"call_digest": True}, "digest"),
        ({"iss": None}, "claims"),
        ({"iss": ""}, "claims"),
        ({"iss": "x" * 256}, "claims"),
        ({"jti": None}, "claims"),
        ({"jti": ""}, "claims"),
        ({"jti": 7}, "claims"),
        ({"jti": "x" * 256}, "claims"),
        ({"iat": None}, "claims"),
        ({"exp": None}, "claims"),
        ({"iat": NOW + 31, "exp": NOW + 300}, "not_yet"),
        ({"nbf": NOW + 31}, "not_yet"),
        ({"exp": NOW}, "expired"),
        ({"iat": NOW - 400, "exp": NOW - 100}, "expired"),
        ({"iat": NOW - 2, "exp": NOW + 299}, "lifetime"),
        ({"iat": 0, "exp": NOW + 1}, "lifetime"),
        ({"exp": "soon"}, "malformed"),
        ({"exp": True}, "malformed"),
        ({"iat": []}, "malformed"),
        ({"nonce": "another"}, "nonce"),
        ({"nonce": 7}, "nonce"),
    ],
)
def test_a_proof_of_something_else_or_another_time_is_refused(changes: dict[str, Any], why: str) -> None:
    assert reason(judged(token(**changes))) == why


@pytest.mark.parametrize(
    "claims",
    [
        b'{"call_digest":"%b",%b' % (b"ab" * 32, json.dumps(GOOD).encode()[1:]),
        b'%b,"jti":"j1"}' % json.dumps(GOOD).encode()[:-1],
        b'%b,"\\u006ati":"j2"}' % json.dumps(GOOD).encode()[:-1],
        b'%b,"x":{"a":1,"a":2}}' % json.dumps(GOOD).encode()[:-1],
        b'%b,"exp":1e999}' % json.dumps({**GOOD, "exp": None}).encode()[:-1],
        rb'%b,"x":"\ud800"}' % json.dumps(GOOD).encode()[:-1],
        b'%b,"x":%b}' % (json.dumps(GOOD).encode()[:-1], b"[" * 80 + b"]" * 80),
        json.dumps([GOOD]).encode(),
        b"",
    ],
)
def test_a_signed_text_that_can_be_taken_in_two_ways_is_refused(claims: bytes) -> None:
    assert reason(judged(mint(OPERATOR, claims, typ="mcpax-confirm+jwt"))) == "malformed"


def test_a_header_that_says_something_twice_is_refused() -> None:
    header = b'{"alg":"none","typ":"mcpax-confirm+jwt","kid":"op","alg":"EdDSA"}'
    signed = f"{b64(header)}.{b64(json.dumps(GOOD).encode())}"
    assert reason(judged(f"{signed}.{b64(OPERATOR.sign(signed.encode()))}")) == "malformed"


@pytest.mark.req("AX-11.3-7")
def test_a_bare_nonce_or_a_nonce_without_the_call_is_no_proof() -> None:
    assert reason(judged(token(POLICY, nonce=ASKED.nonce, call_digest=None), "policy_nonce")) == "digest"
    assert reason(judged(token(POLICY), "policy_nonce")) == "nonce"
    assert reason(judged(token(POLICY, nonce="of an earlier call"), "policy_nonce")) == "nonce"


def test_an_approval_without_a_nonce_takes_no_proof_by_nonce() -> None:
    without = msgspec.structs.replace(ASKED, nonce="")
    assert reason(judged(token(POLICY, nonce=""), "policy_nonce", without)) == "nonce"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (token(SERVICE), "operator_signature"),
        (token(POLICY, nonce=ASKED.nonce), "operator_signature"),
        (token(POLICY, nonce=ASKED.nonce), "approval_token"),
        (token(), "jwt"),
        (token(), ""),
        (token(), "x" * 5000),
    ],
)
def test_a_proof_is_not_taken_for_another_kind_than_it_is(text: str, kind: str) -> None:
    assert reason(judged(text, kind)) == "kind"


@pytest.mark.req("AX-11.3-9")
def test_a_signer_who_may_not_approve_the_tool_is_refused() -> None:
    assert reason(judged(token(CLERK))) == "not_entitled"
    assert reason(judged(token(CLERK, header={"kid": None}))) == "not_entitled"
    assert reason(judged(token(STRANGER))) == "not_entitled"
    office = msgspec.structs.replace(ASKED, tool="office.print")
    assert isinstance(judged(token(CLERK), asked=office), Verified)
    assert reason(judged(token(SERVICE), asked=office)) == "not_entitled"


def test_a_forged_signature_says_nothing_of_who_may_approve_what() -> None:
    assert reason(judged(token(OPERATOR, header={"kid": "clerk"}))) == "signature"


def test_without_anchors_nothing_is_proved() -> None:
    assert reason(judged(token(), anchors=())) == "key_unknown"
    assert reason(judged(token(), anchors=(anchor("ada", OPERATOR, approves=()),))) == "not_entitled"


def test_two_anchors_may_use_the_same_key_id() -> None:
    both = (anchor("one", POLICY, kid="1"), anchor("two", OPERATOR, kid="1"), anchor("three", CLERK, kid="1"))
    made = judged(token(CLERK, header={"kid": "1"}), anchors=both)
    assert isinstance(made, Verified) and made.anchor == "three"


def test_a_key_that_two_anchors_share_counts_for_the_entitled_anchor() -> None:
    both = (anchor("office", OPERATOR, approves=("office.*",)), anchor("plant", OPERATOR, approves=("plant.*",)))
    made = judged(token(), anchors=both)
    assert isinstance(made, Verified) and made.anchor == "plant"


def test_a_key_that_was_published_with_its_private_half_proves_nothing() -> None:
    assert reason(judged(token(), anchors=(anchor("ada", OPERATOR, d="x"),))) == "key_unfit"


@pytest.mark.req("AX-11.3-9")
def test_approvers_are_those_whose_patterns_match_the_qualified_name() -> None:
    assert [one.name for one in approvers("plant.valve.open", ANCHORS)] == ["ada", "engine", "desk"]
    assert [one.name for one in approvers("Plant.valve.open", ANCHORS)] == ["ada", "engine"]


@pytest.mark.req("AX-11.3-15")
def test_a_used_proof_has_a_refusal_of_its_own() -> None:
    assert (replay_refusal().number, replay_refusal().message) == (32122, "confirmation_used")


@given(st.text(max_size=60) | st.lists(st.binary(max_size=20), min_size=3, max_size=3))
def test_garbage_is_refused_and_raises_nothing(garbage: Any) -> None:
    text = garbage if isinstance(garbage, str) else ".".join(map(b64, garbage))
    assert reason(judged(text)) in ("malformed", "algorithm", "type", "key_unknown")


@given(st.integers(min_value=0), st.binary(min_size=1, max_size=1))
def test_one_changed_character_breaks_it(place: int, by: bytes) -> None:
    good = token()
    place %= len(good)
    changed = good[:place] + chr(by[0]) + good[place + 1 :]
    if changed != good:
        reason(judged(changed))


@given(st.sampled_from(["iss", "jti"]), st.text(min_size=1, max_size=255).filter(lambda text: text.isprintable()))
def test_the_signed_call_is_the_shown_call(claim: str, text: str) -> None:
    made = judged(token(**{claim: text}))
    assert isinstance(made, Verified)
    assert getattr(made, {"iss": "issuer", "jti": "jti"}[claim]) == text

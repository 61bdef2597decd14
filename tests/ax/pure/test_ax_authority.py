"""What proves that a registrant may speak for an authority (MCP-AX 4.2), with real signatures."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.minting import confused, key, mint, tampered, unsigned

from interlock.ax.protocol.messages import AuthorityProof
from interlock.ax.protocol.registration.authority import (
    Anchor,
    Proved,
    check_certificate,
    judge_proof,
    maybe_authority,
    replay_refusal,
)
from interlock.crypto.jose import read_jwks_untrusted
from interlock.crypto.jwt_verification import check_signature
from interlock.net.protocol.dns import find_dns_name
from interlock.wire.refusal import Refusal

NOW = 1_800_000_000.0
EDGE = "edge01.factory.example.com"
OTHER = "other.example.com"
URL = "https://hub.example.com"
AGGREGATOR_ID = "550e8400-e29b-41d4-a716-446655440000"
ED, ES, RS = key("EdDSA", "ed"), key("ES256", "es"), key("RS256", "rs")
STRANGER, NEIGHBOUR = key("EdDSA", "stranger"), key("EdDSA", "neighbour")
GOOD: dict[str, Any] = {"sub": f"dns:{EDGE}", "aud": URL, "iat": NOW - 1, "exp": NOW + 300, "jti": "j1"}


def anchor(name: str, speaks_for: str, *signers: Any) -> Anchor:
    keys = read_jwks_untrusted(json.dumps({"keys": [signer.jwk() for signer in signers]}).encode())
    return Anchor(name=name, keys=keys, speaks_for=frozenset({speaks_for}))


ANCHORS = (anchor("factory", EDGE, ED, ES, RS, key("PS256", "ps")), anchor("neighbours", OTHER, NEIGHBOUR))


def judged(token: str, authority: str = EDGE) -> Proved | Refusal:
    return judge_proof(
        AuthorityProof(type="jwt", token=token),
        authority,
        audiences=(URL, AGGREGATOR_ID),
        anchors=ANCHORS,
        now=NOW,
        verify=check_signature,
    )


def reason(judgement: Proved | Refusal | None) -> str:
    assert isinstance(judgement, Refusal), judgement
    assert (judgement.number, judgement.message) == (32114, "authority_unverified")
    assert judgement.details is not None
    assert judgement.details["mcpax_error"] == "authority_unverified"
    assert judgement.details["detail"]
    return str(judgement.details["reason"])


def token(signer: Any = ED, header: dict[str, Any] | None = None, **changes: Any) -> str:
    claims = {name: value for name, value in (GOOD | changes).items() if value is not None}
    return mint(signer, claims, **({"typ": "JWT"} | (header or {})))


@pytest.mark.req("AX-4.2-8")
@pytest.mark.parametrize("signer", [ED, ES, RS], ids=lambda signer: signer.alg)
def test_a_jwt_under_a_key_that_speaks_for_the_authority_proves_it(signer: Any) -> None:
    assert judged(token(signer)) == Proved(authority=EDGE, anchor="factory", jti="j1", expires_at=NOW + 300)


@pytest.mark.req("AX-4.2-8")
@pytest.mark.parametrize(
    "changes",
    [
        {"sub": EDGE},
        {"sub": f"DNS:{EDGE.upper()}."},
        {"aud": AGGREGATOR_ID.upper()},
        {"aud": URL + "/"},
        {"aud": ["https://else.example", "HTTPS://HUB.example.com"]},
        {"iat": NOW + 30},
        {"exp": NOW + 0.5},
        {"iat": NOW - 1, "exp": NOW + 599},
        {"nbf": NOW + 30},
        {"jti": "x" * 255},
        {"iss": "whoever"},
    ],
)
def test_claims_may_be_spelled_and_timed_like_this(changes: dict[str, Any]) -> None:
    assert isinstance(judged(token(**changes)), Proved)


def test_a_jwt_without_a_type_is_a_jwt() -> None:
    assert isinstance(judged(token(header={"typ": None})), Proved)


@pytest.mark.req("AX-4.2-8")
@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (unsigned(GOOD), "algorithm"),
        (unsigned(GOOD, "NONE"), "algorithm"),
        (confused(RS, GOOD, RS.pem()), "algorithm"),
        (token(header={"alg": "HS512"}), "algorithm"),
        (token(key("PS256", "ps")), "algorithm"),
        (token(STRANGER), "key_unknown"),
        (token(STRANGER, header={"kid": "ed"}), "signature"),
        (token(NEIGHBOUR), "key_of_another"),
        (token(NEIGHBOUR, header={"kid": None}), "signature"),
        (token(ED, header={"kid": "es"}), "key_unfit"),
        (tampered(token(sub=f"dns:{OTHER}"), sub=f"dns:{EDGE}"), "signature"),
        (token(header={"typ": "at+jwt"}), "type"),
        (token(header={"typ": "mcpax-confirm+jwt"}), "type"),
        (token(header={"crit": ["b64"]}), "malformed"),
        ("", "malformed"),
        ("a.b", "malformed"),
        ("é.é.é", "malformed"),
    ],
)
def test_a_forged_or_foreign_jwt_is_refused_with_a_reason(forged: str, why: str) -> None:
    assert reason(judged(forged)) == why


@pytest.mark.req("AX-4.2-8")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sub": None}, "subject"),
        ({"sub": ""}, "subject"),
        ({"sub": OTHER}, "subject"),
        ({"sub": f"x.{EDGE}"}, "subject"),
        ({"sub": "dns:*.factory.example.com"}, "subject"),
        ({"sub": f"https://{EDGE}"}, "subject"),
        ({"sub": f"dns:dns:{EDGE}"}, "subject"),
        ({"aud": None}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": ""}, "audience"),
        ({"aud": "https://else.example"}, "audience"),
        ({"aud": URL + "/mcp"}, "audience"),
        ({"aud": "http://hub.example.com"}, "audience"),
        ({"iat": None}, "claims"),
        ({"exp": None}, "claims"),
        ({"exp": NOW}, "expired"),
        ({"exp": NOW - 1, "iat": NOW - 60}, "expired"),
        ({"iat": NOW + 30.5}, "not_yet"),
        ({"nbf": NOW + 31}, "not_yet"),
        ({"iat": NOW - 1, "exp": NOW + 599.5}, "lifetime"),
        ({"iat": NOW - 86400}, "lifetime"),
        ({"exp": 1e300}, "lifetime"),
        ({"jti": None}, "claims"),
        ({"jti": ""}, "claims"),
        ({"jti": 7}, "claims"),
        ({"jti": "x" * 256}, "claims"),
    ],
)
def test_each_claim_must_hold(changes: dict[str, Any], why: str) -> None:
    assert reason(judged(token(**changes))) == why


@pytest.mark.req("AX-4.2-8")
def test_a_key_proves_only_the_authorities_its_anchor_speaks_for() -> None:
    assert reason(judged(token(sub=OTHER), OTHER)) == "key_of_another"
    assert isinstance(judged(token(NEIGHBOUR, sub=OTHER), OTHER), Proved)
    assert reason(judged(token(NEIGHBOUR, sub="nobody.example"), "nobody.example")) == "key_of_another"


def test_the_same_name_for_another_key_does_not_mix_the_anchors_up() -> None:
    twin = key("EdDSA", "twin")
    anchors = (anchor("theirs", OTHER, ED), Anchor(name="ours", keys=read_twin(twin), speaks_for=frozenset({EDGE})))
    both = [token(ED), token(twin, header={"kid": "ed"})]
    verdicts = [
        judge_proof(
            AuthorityProof(type="jwt", token=one),
            EDGE,
            audiences=(URL,),
            anchors=anchors,
            now=NOW,
            verify=check_signature,
        )
        for one in both
    ]
    assert reason(verdicts[0]) == "signature"
    assert isinstance(verdicts[1], Proved)
    assert verdicts[1].anchor == "ours"


def read_twin(twin: Any) -> Any:
    return read_jwks_untrusted(json.dumps({"keys": [twin.jwk(kid="ed")]}).encode())


def test_one_key_in_two_anchors_is_one_key() -> None:
    anchors = (anchor("first", EDGE, ED), anchor("second", EDGE, ED))
    proved = judge_proof(
        AuthorityProof(type="jwt", token=token()),
        EDGE,
        audiences=(URL,),
        anchors=anchors,
        now=NOW,
        verify=check_signature,
    )
    assert isinstance(proved, Proved) and proved.anchor == "first"  # always: it is part of what makes a jti used


@pytest.mark.req("AX-4.2-8")
def test_a_proof_used_before_is_refused_the_same_way() -> None:
    assert reason(replay_refusal()) == "replayed"


@given(st.dictionaries(st.sampled_from([*GOOD, "nbf"]), st.none() | st.integers() | st.floats() | st.text(max_size=6)))
def test_no_claims_do_worse_than_be_refused(claims: dict[str, Any]) -> None:
    assert isinstance(judged(mint(ED, GOOD | claims, typ="JWT")), Proved | Refusal)


@pytest.mark.req("AX-4.2-9")
@pytest.mark.parametrize("name", [EDGE, EDGE.upper(), EDGE + "."])
def test_a_certificate_with_the_very_name_proves_it(name: str) -> None:
    assert check_certificate(EDGE, ["else.example", name]) is None


@pytest.mark.req("AX-4.2-9")
@pytest.mark.parametrize(
    "names",
    [
        *([], [""], ["else.example"], ["*.factory.example.com"], ["*"], ["factory.example.com"]),
        *([f"x.{EDGE}"], [f"dns:{EDGE}"], [EDGE + "\0.evil.example"], [EDGE + "\n"]),
    ],
)
def test_any_other_certificate_does_not(names: list[str]) -> None:
    assert reason(check_certificate(EDGE, names)) == "certificate"


@given(st.text(max_size=300))
def test_a_name_that_is_accepted_is_spelled_one_way(text: str) -> None:
    name = find_dns_name(text)
    if name is not None:
        assert find_dns_name(name) == find_dns_name(name.upper() + ".") == name == maybe_authority("dns:" + text)

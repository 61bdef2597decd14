"""Is a signature the person's word for exactly what they were shown?"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tests.cli.program import Inline, Interlock
from tests.operator.fake_approvals import approval

from interlock.approvals import api
from interlock.approvals.cli.keys import KeyChoice, own_name
from interlock.approvals.cli.signing import prove
from interlock.approvals.protocol.approval import Approval, Kind, Source
from interlock.approvals.protocol.digests import shown_digest, signed_digest
from interlock.ax.protocol.registration.authority import Anchor
from interlock.cli.client.operator import Answer
from interlock.cli.terminal.errors import BadUsage
from interlock.core.clock import Clock
from interlock.crypto import signing as sealing
from interlock.crypto.jose import read_key_untrusted
from interlock.crypto.jwt_verification import check_signature
from interlock.gate.protocol.held_call import Presented, call_digest
from interlock.gate.protocol.proofs import ProofQuestion, Verified, judge_confirmation
from interlock.wire.refusal import Refused

OWN_ID = "550e8400-e29b-41d4-a716-446655440000"
ARGUMENTS = '{"path": "/a",  "n": 1.50}'
CALL = {"tool": "files.delete", "requested_by": "client:agent", "tool_digest": "ab" * 32, "route": ["files", "delete"]}


def digest(arguments: str | None = ARGUMENTS, **changes: Any) -> str:
    call = {**CALL, **changes}
    made = call_digest(
        None if arguments is None else arguments.encode(),
        aggregator_id=OWN_ID,
        tool=call["tool"],
        route=call["route"],
        caller=call["requested_by"],
        tool_digest=call["tool_digest"],
    )
    assert isinstance(made, str)
    return made


def shown(arguments: str | None = ARGUMENTS, **changes: Any) -> Answer:
    made = approval("c1", **{"aggregator_id": OWN_ID, "digest": digest(), **CALL, **changes})
    text = json.dumps({name: value for name, value in made.items() if name != "params"})
    return Answer(f'{text[:-1]},"params":{arguments or "null"}}}'.encode())


def sign(answer: Answer, said: str | None = None, key: str | None = "ada") -> dict[str, Any]:
    proof: dict[str, Any] = json.loads(bytes(prove(answer.as_(api.Approval), KeyChoice(key=key), choice=said)))
    return proof


def issuer(proof: dict[str, Any]) -> str:
    claims = proof["token"].split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["iss"])


@pytest.fixture
def public(inline: Inline) -> str:
    """Of a key without a passphrase, called ada."""
    return str(inline("access", "key", "ada", "--no-passphrase", "--json").json["anchor"]["key"])


def judged(proof: dict[str, Any], public: str, call_digest: str) -> Any:
    return judge_confirmation(
        Presented(**proof),
        ProofQuestion(
            confirmation_id="c1", call_digest=call_digest, nonce="", tool="files.delete", aggregator_id=OWN_ID
        ),
        anchors=(Anchor(name="ada", keys=read_key_untrusted(public), approves=("*",)),),
        now=Clock.wall(),
        verify=check_signature,
    )


@pytest.mark.parametrize("kind", ["ed25519", "es256"])
def test_a_node_accepts_the_proof_of_a_call(inline: Inline, kind: str) -> None:
    public = inline("access", "key", "ada", "--kind", kind, "--no-passphrase", "--json").json["anchor"]["key"]
    verified = judged(sign(shown()), public, digest())
    assert isinstance(verified, Verified)
    assert (verified.type, verified.issuer) == ("operator_signature", "ada")
    again = judged(sign(shown()), public, digest())
    assert verified.jti != again.jti


def test_a_call_without_arguments_is_signed_too(public: str) -> None:
    assert isinstance(judged(sign(shown(None, digest=digest(None))), public, digest(None)), Verified)


@pytest.mark.parametrize(
    "lie",
    [
        {"arguments": '{"path": "/b", "n": 1.50}'},
        {"arguments": '{"path": "/a", "path": "/a", "n": 1.50}'},
        {"arguments": None},
        {"tool": "files.read"},
        {"route": ["files", "read"]},
        {"requested_by": "client:somebody"},
        {"tool_digest": "cd" * 32},
        {"tool_digest": None},
        {"aggregator_id": "650e8400-e29b-41d4-a716-446655440000"},
        {"digest": "ef" * 32},
    ],
)
@pytest.mark.usefixtures("public")
def test_nothing_is_signed_where_the_node_shows_another_call_than_it_names(lie: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        sign(shown(**lie))
    assert refused.value.code == "not_what_is_shown"


@pytest.mark.usefixtures("public")
def test_an_answer_that_is_no_approval_is_refused() -> None:
    for raw in (b"{}", b"[]", b'{"id":"c1","kind":"poem"}', b"<html>"):
        with pytest.raises(Refused, match="the node answered in a form this version"):
            sign(Answer(raw))
    with pytest.raises(Refused, match="the node asks for a kind of decision"):
        sign(shown(kind="poem"))


def test_statements_about_a_definition_are_signed_along(public: str) -> None:
    definition = '{"definition":{"name":"delete","description":"Deletes.","capability":{"mutable":true}}}'
    tool_digest = shown_digest(definition.encode())
    assert tool_digest is not None
    question = Approval(
        id="c1",
        kind=Kind.DEFINITION,
        source=Source.AX,
        requested_by="client:agent",
        tool="files.delete",
        digest=tool_digest,
        created_at=0.0,
    )
    proof = sign(shown(definition, kind="definition", digest=tool_digest), "irreversible")
    assert isinstance(judged(proof, public, signed_digest(question, "irreversible")), Verified)
    assert not isinstance(judged(proof, public, signed_digest(question, "read_only")), Verified)


def test_a_key_with_a_passphrase_signs_only_with_it(
    inline: Inline, monkeypatch: pytest.MonkeyPatch, interlock: Interlock
) -> None:
    monkeypatch.setattr(sealing, "SCRYPT_N", 2**4)
    inline("access", "key", "ada", INTERLOCK_PASSPHRASE="a grey horse")
    with pytest.raises(Refused) as nobody:
        sign(shown())
    assert nobody.value.code == "passphrase_needed"
    monkeypatch.setenv("INTERLOCK_PASSPHRASE", "a grey house")
    with pytest.raises(Refused) as wrong:
        sign(shown())
    assert wrong.value.code == "key_unusable" and "passphrase" in wrong.value.message
    monkeypatch.setenv("INTERLOCK_PASSPHRASE", "a grey horse")
    assert sign(shown())["type"] == "operator_signature"
    path = interlock.folder / ".config" / "interlock" / "keys" / "ada.key"
    assert load_pem_private_key(path.read_bytes(), b"a grey horse")


def test_the_only_key_signs_and_of_several_keys_one_is_chosen(inline: Inline) -> None:
    with pytest.raises(Refused) as none:
        sign(shown(), key=None)
    assert none.value.code == "no_key" and "interlock access key" in (none.value.hint or "")
    inline("access", "key", "ada", "--no-passphrase")
    assert sign(shown(), key=None)
    inline("access", "key", "bob", "--no-passphrase")
    assert issuer(sign(shown(), key=None)) == "ada"  # the one of them that may approve it
    with pytest.raises(BadUsage, match="ada, bob"):
        sign(shown(approvers=[]), key=None)
    inline("access", "key", own_name(), "--no-passphrase")
    assert issuer(sign(shown(), key=None)) == "ada"
    assert issuer(sign(shown(approvers=[]), key=None)) == own_name()
    with pytest.raises(Refused, match="there is no key carl in"):
        sign(shown(), key="carl")


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_damaged_key_file_is_named(public: str, interlock: Interlock, text: str) -> None:
    assert public
    path: Path = interlock.folder / ".config" / "interlock" / "keys" / "ada.key"
    path.write_text(text)
    with pytest.raises(Refused) as refused:
        sign(shown())
    assert refused.value.code == "key_unusable"
    assert "ada.key" in refused.value.message

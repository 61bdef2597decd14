"""Anchors: which forms of a key are read, what stops the start, and when a key set is fetched."""

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from interlock.access.key_sets import BACKOFF_S, FRESH_S, KEPT_S, UNKNOWN_KEY_S
from interlock.approvals.trust.anchors import FILE_BYTES_MAX, Anchors
from interlock.ax.protocol.registration.authority import KEY_UNKNOWN, Anchor, unverified_refusal
from interlock.config.plan import AnchorPlan
from interlock.core.part import AnchorInvalid
from interlock.crypto.jose import Jwk, thumbprint
from interlock.net.fetch import FetchFailed
from interlock.wire.refusal import UNAVAILABLE, Refusal

URL = "https://login.example.com/jwks"
ED25519 = Ed25519PrivateKey.generate()
PUBLIC = ED25519.public_key().public_bytes_raw()
X = base64.urlsafe_b64encode(PUBLIC).rstrip(b"=").decode()
JWK = {"kty": "OKP", "crv": "Ed25519", "x": X}


class SetClock:
    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_800_000_000.0 + self.time


class Server:
    """A key set that can be changed, and that can be away."""

    def __init__(self, *kids: str) -> None:
        self.kids = kids
        self.away = False
        self.asked = 0

    async def get(self, url: str) -> bytes:
        assert url == URL
        self.asked += 1
        if self.away:
            raise FetchFailed("HTTP status 503")
        return json.dumps({"keys": [{**JWK, "kid": kid} for kid in self.kids]}).encode()


def pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def knows(kid: str) -> Any:
    """A judge who wants a key of that name."""

    def judge(anchors: Sequence[Anchor]) -> str | Refusal:
        found = [anchor.name for anchor in anchors for key in anchor.keys if key.kid == kid]
        return found[0] if found else unverified_refusal(KEY_UNKNOWN, "no such key")

    return judge


async def keys(plan: AnchorPlan) -> tuple[Jwk, ...]:
    anchors = Anchors((plan,), SetClock())
    anchors.load()
    found = await anchors.judge_signature(lambda _: True, lambda all: all[0].keys)
    assert not isinstance(found, Refusal)
    return found


FORMS = {
    "ed25519": "ed25519:" + base64.b64encode(PUBLIC).decode(),
    "ed25519 without padding": "ed25519:" + base64.b64encode(PUBLIC).decode().rstrip("="),
    "jwk": json.dumps(JWK),
    "pem": pem(ED25519),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_one_key_is_the_same_in_every_form_and_from_a_file(form: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{form}\n")
    expected = (Jwk(kty="OKP", crv="Ed25519", x=X, kid=thumbprint(Jwk(kty="OKP", crv="Ed25519", x=X))),)
    assert await keys(AnchorPlan(name="a", key=form)) == expected
    assert await keys(AnchorPlan(name="a", key=file)) == expected


def test_a_thumbprint_is_that_of_the_rfc() -> None:
    """RFC 8037 A.3."""
    key = Jwk(kty="OKP", crv="Ed25519", x="11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
    assert thumbprint(key) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


async def test_p256_and_rsa_keys_are_read_from_pem_with_all_their_numbers() -> None:
    for private, kty in (
        (ec.generate_private_key(ec.SECP256R1()), "EC"),
        (rsa.generate_private_key(65537, 2048), "RSA"),
    ):
        (key,) = await keys(AnchorPlan(name="a", key=pem(private)))
        assert key.kty == kty and key.kid == thumbprint(key)


async def test_a_key_set_may_be_in_a_file_and_keys_of_unknown_kinds_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [{**JWK, "kid": "one"}, {"kty": "OKP", "crv": "X25519", "x": X}, {"kty": 7}]}))
    assert [key.kid for key in await keys(AnchorPlan(name="a", jwks=file))] == ["one"]


PRIVATE = ED25519.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
BAD = {
    "private pem": (PRIVATE, "private"),
    "private jwk": (json.dumps({**JWK, "d": X}), "private"),
    "private set": (json.dumps({"keys": [{**JWK, "d": X}]}), "private"),
    "secret": (json.dumps({"kty": "oct", "k": X}), "private"),
    "other curve": (pem(ec.generate_private_key(ec.SECP384R1())), "P-256"),
    "certificate": ("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----", "PUBLIC KEY"),
    "broken pem": ("-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----", "PEM"),
    "short": ("ed25519:AAAA", "32 bytes"),
    "no base64": ("ed25519:!!!", "base64"),
    "no key": ("hello", "neither"),
    "empty": ("", "neither"),
    "number": ("7", "neither"),
    "empty set": ('{"keys": []}', "Ed25519"),
    "deep": ("[" * 100_000, "neither"),
    "long": ("x" * (FILE_BYTES_MAX + 1), "larger"),
}


@pytest.mark.parametrize(("text", "says"), BAD.values(), ids=BAD)
def test_an_invalid_public_key_stops_the_start_and_is_not_repeated(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(AnchorInvalid, match="anchor plant") as refused:
        Anchors((AnchorPlan(name="plant", key=file),), SetClock()).load()
    assert says in str(refused.value)
    assert X not in str(refused.value) and PRIVATE.splitlines()[1] not in str(refused.value)


def test_a_file_that_is_missing_or_no_text_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(AnchorInvalid, match="No such file"):
        Anchors((AnchorPlan(name="plant", key=tmp_path / "none"),), SetClock()).load()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(AnchorInvalid, match="not text"):
        Anchors((AnchorPlan(name="plant", key=tmp_path / "bytes"),), SetClock()).load()


def test_a_passkey_approves_as_any_key_of_a_person() -> None:
    passkey = "ed25519:AbCd:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
    anchors = Anchors(
        (
            AnchorPlan(name="phone", passkey=passkey, approves=("files.*",)),
            AnchorPlan(name="me", key=FORMS["ed25519"], approves=("files.*", "mail.send")),
        ),
        SetClock(),
    )
    anchors.load()
    assert anchors.approver_names("files.delete") == ("phone", "me")
    assert anchors.approver_names("mail.send_all") == ()
    phone = anchors.known()[0]
    assert (phone.source, [key.kid for key in phone.keys]) == ("passkey", ["AbCd"])


async def test_an_enrolled_approver_keeps_its_keys_whatever_the_configuration_says_under_its_name() -> None:
    server, clock = Server("a"), SetClock()
    anchors = Anchors((AnchorPlan(name="operator", jwks=URL, approves=("*",)),), clock, server.get)
    anchors.load()
    own = AnchorPlan(name="operator", key=FORMS["ed25519"], approves=("*",))
    anchors.believe({anchors.identity(own): ("*",)}, [own])
    for _ in range(2):
        (known,) = anchors.known()
        assert (known.source, len(known.keys), known.approves) == ("key", 1, ("*",))
        assert isinstance(await anchors.judge_signature(lambda _: True, knows("a")), Refusal)
        await anchors.replan((AnchorPlan(name="operator", jwks=URL, approves=("*", "more")),))
    assert server.asked == 0


async def test_a_key_set_is_fetched_when_picked_and_kept_while_fresh() -> None:
    server, clock = Server("a"), SetClock()
    anchors = Anchors((AnchorPlan(name="corp", jwks=URL),), clock, server.get)
    anchors.load()
    assert server.asked == 0
    assert isinstance(await anchors.judge_signature(lambda _: False, knows("a")), Refusal)
    assert server.asked == 0
    for _ in range(3):
        assert await anchors.judge_signature(lambda _: True, knows("a")) == "corp"
    assert server.asked == 1
    clock.time += FRESH_S
    assert await anchors.judge_signature(lambda _: True, knows("a")) == "corp"
    assert server.asked == 2


async def test_a_new_key_is_found_and_made_up_keys_are_looked_for_once_a_second() -> None:
    server, clock = Server("a"), SetClock()
    anchors = Anchors((AnchorPlan(name="corp", jwks=URL),), clock, server.get)
    anchors.load()
    assert await anchors.judge_signature(lambda _: True, knows("a")) == "corp"
    server.kids = ("b",)
    assert await anchors.judge_signature(lambda _: True, knows("b")) == "corp"
    looked_for = [asyncio.create_task(anchors.judge_signature(lambda _: True, knows(kid))) for kid in ("d", "e", "c")]
    await asyncio.sleep(0.1)
    assert server.asked == 2
    clock.time += UNKNOWN_KEY_S
    server.kids = ("c",)
    *made_up, rotated = await asyncio.gather(*looked_for)
    assert all(isinstance(verdict, Refusal) for verdict in made_up)
    assert (rotated, server.asked) == ("corp", 3)


async def test_without_its_key_set_nothing_is_believed_and_the_refusal_says_to_try_again() -> None:
    server, clock = Server("a"), SetClock()
    server.away = True
    plans = (AnchorPlan(name="corp", jwks=URL), AnchorPlan(name="own", key=json.dumps({**JWK, "kid": "mine"})))
    anchors = Anchors(plans, clock, server.get)
    anchors.load()
    refused = await anchors.judge_signature(lambda _: True, knows("a"))
    assert isinstance(refused, Refusal) and refused.code == UNAVAILABLE
    assert (
        await anchors.judge_signature(lambda _: True, knows("mine")) == "own"
    )  # another anchor's word does not depend on it
    server.away = False
    clock.time += BACKOFF_S[-1]
    assert await anchors.judge_signature(lambda _: True, knows("a")) == "corp"
    server.away = True
    clock.time += KEPT_S
    refused = await anchors.judge_signature(lambda _: True, knows("a"))
    assert isinstance(refused, Refusal) and refused.code == UNAVAILABLE


async def test_anchors_can_be_changed_and_a_change_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    server, clock = Server("a"), SetClock()
    corp, own = AnchorPlan(name="corp", jwks=URL), AnchorPlan(name="own", key=json.dumps({**JWK, "kid": "mine"}))
    anchors = Anchors((corp,), clock, server.get)
    anchors.load()
    assert await anchors.judge_signature(lambda _: True, knows("a")) == "corp"
    with pytest.raises(AnchorInvalid, match="of anchor lost cannot be read: No such"):
        await anchors.replan((own, AnchorPlan(name="lost", key=tmp_path / "none")))
    assert await anchors.judge_signature(lambda _: True, knows("a")) == "corp"
    assert isinstance(await anchors.judge_signature(lambda _: True, knows("mine")), Refusal)
    await anchors.replan((own, corp))
    assert await anchors.judge_signature(lambda _: True, knows("mine")) == "own"
    assert await anchors.judge_signature(lambda _: True, knows("a")) == "corp"
    assert server.asked == 2  # once at first, once for the unknown key: the set was kept
    await anchors.replan((own,))
    assert isinstance(await anchors.judge_signature(lambda _: True, knows("a")), Refusal)

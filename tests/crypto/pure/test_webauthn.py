"""Passkeys as a browser shows them: is exactly what a verified person made on our own page taken, and nothing else?"""

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.authenticator import ATTESTED, EXTENDED, PRESENT, USUAL, VERIFIED, Authenticator, Kind, b64, cbor
from tests.servers.authenticator import unb64 as decoded

from interlock.crypto.jose import BadKey, encode
from interlock.crypto.jwt_verification import check_assertion_signature
from interlock.crypto.webauthn import (
    CLIENT_DATA_BYTES_MAX,
    Party,
    PasskeyRegistration,
    Wrong,
    check_assertion,
    find_challenge,
    find_relying_party,
    format_passkey,
    is_assertion,
    read_assertion_untrusted,
    read_passkey_untrusted,
    read_registration_untrusted,
)
from interlock.wire.cbor import CborError, read_item_untrusted

KINDS: tuple[Kind, ...] = ("es256", "ed25519", "rs256")
CHALLENGE = bytes(range(88))
PARTY = Party(id="localhost", origin="http://localhost:7412")
MADE = {kind: Authenticator(kind) for kind in KINDS}
ADA = MADE["es256"]


# The relying party


@pytest.mark.parametrize(
    ("url", "party", "origin"),
    [
        ("http://127.0.0.1:7412", "localhost", "http://localhost:7412"),
        ("http://[::1]:7412/", "localhost", "http://localhost:7412"),
        ("https://127.0.0.1:7412", "localhost", "https://localhost:7412"),
        ("http://localhost:80", "localhost", "http://localhost"),
        ("http://ops.localhost:7412", "ops.localhost", "http://ops.localhost:7412"),
        ("https://Operator.Example.com", "operator.example.com", "https://operator.example.com"),
        ("https://operator.example.com:443/path", "operator.example.com", "https://operator.example.com"),
        ("HTTPS://operator.example.com:8443", "operator.example.com", "https://operator.example.com:8443"),
    ],
)
def test_the_party_is_the_name_of_the_operator_endpoint(url: str, party: str, origin: str) -> None:
    found = find_relying_party(url)
    assert found == Party(id=party, origin=origin)
    assert found is not None and found.id_hash == hashlib.sha256(party.encode()).digest()


@pytest.mark.parametrize(
    "url",
    [
        "http://operator.example.com",  # no browser offers passkeys there
        "https://192.0.2.1",
        "https://[2001:db8::1]:7412",
        "http://127.0.0.2:7412",
        "http://notlocalhost:7412",
        "ftp://localhost",
        "https://a_b.example",
        "https://x:99999",
        "https://",
        "",
    ],
)
def test_where_browsers_use_no_passkeys_there_is_no_party(url: str) -> None:
    assert find_relying_party(url) is None


# As text in a configuration


@pytest.mark.parametrize("kind", KINDS)
def test_a_passkey_is_written_and_read_back(kind: Kind) -> None:
    key = read_passkey_untrusted(MADE[kind].text())
    assert key.kid == b64(MADE[kind].credential)
    assert format_passkey(key) == MADE[kind].text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begin with"),
        ("AbCd", "begin with"),
        ("es384:AbCd:AbCd", "begin with"),
        (f"es256::{b64(bytes(64))}", "credential"),
        (f"es256:A*:{b64(bytes(64))}", "credential"),
        (f"es256:{b64(bytes(1024))}:{b64(bytes(64))}", "credential"),
        ("es256:AbCd:!!", "second colon"),
        ("es256:AbCd", "no key"),
        (f"es256:AbCd:{b64(bytes(65))}", "no key"),
        (f"ed25519:AbCd:{b64(bytes(31))}", "no key"),
        (f"rs256:AbCd:{b64(bytes(256))}", "no key"),
        (f"rs256:AbCd:{b64(b'x' * 128)}", "no key"),
        (f"rs256:AbCd:{b64(b'x' * 4000)}", "begin with"),
    ],
)
def test_an_invalid_passkey_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(BadKey, match=why):
        read_passkey_untrusted(text)


# CBOR


@pytest.mark.parametrize(
    "value",
    [0, 23, 24, 255, 256, 65536, -1, -257, b"", b"x" * 300, "", "é", [], [1, [2]], {1: {-2: b"x"}}, True, False],
)
def test_cbor_items_are_read_and_the_remaining_bytes_returned(value: Any) -> None:
    assert read_item_untrusted(cbor(value) + b"rest", has_floats=False) == (value, b"rest")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x18",
        b"\x42a",
        b"\x5f\x41a\xff",  # a length that is not given
        b"\x1c",
        b"\xc0\x00",  # a tag
        b"\xf9\x00\x00",  # a float
        b"\xf7",
        b"\x61\xff",
        b"\xa2\x01\x00\x01\x00",  # a key twice
        b"\xa1\xf5\x00",
        b"\xa1\x41a\x00",
        b"\xa1\x80\x00",
        b"\x9a\xff\xff\xff\xff",
        b"\xba\xff\xff\xff\xff",
        b"\x5b" + b"\xff" * 8,
        b"\x81" * 5 + b"\x00",
        b"\x81" * 100_000,
    ],
)
def test_other_cbor_is_refused(data: bytes) -> None:
    with pytest.raises(CborError):
        read_item_untrusted(data, has_floats=False)


@given(st.binary(max_size=200))
def test_garbage_is_a_value_or_one_error(data: bytes) -> None:
    try:
        _, rest = read_item_untrusted(data, has_floats=False)
    except CborError:
        return
    assert data.endswith(rest)


# Making one


def registered(made: dict[str, str], challenge: bytes = CHALLENGE, party: Party = PARTY) -> PasskeyRegistration | Wrong:
    return read_registration_untrusted(
        decoded(made["client_data"]), decoded(made["attestation"]), challenge=challenge, party=party
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_passkey_that_was_made_on_the_page_is_known_by_its_key(kind: Kind) -> None:
    found = registered(MADE[kind].make(b64(CHALLENGE)))
    assert isinstance(found, PasskeyRegistration)
    assert format_passkey(found.key) == MADE[kind].text()


def test_the_attestation_statement_of_an_authenticator_is_ignored() -> None:
    made = ADA.make(b64(CHALLENGE))
    data = decoded(made["attestation"])
    packed = data.replace(
        cbor("none") + cbor("attStmt") + cbor({}), cbor("packed") + cbor("attStmt") + cbor({"x": [b"y"]})
    )
    assert packed != data
    assert isinstance(registered(made | {"attestation": b64(packed)}), PasskeyRegistration)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"challenge": b64(b"other")}, "challenge"),
        ({"type": "webauthn.get"}, "type"),
        ({"origin": "http://localhost:7413"}, "origin"),
        ({"origin": "http://127.0.0.1:7412"}, "origin"),
        ({"origin": None}, "origin"),
        ({"crossOrigin": True}, "origin"),
        ({"topOrigin": "https://evil.example"}, "origin"),
    ],
)
def test_a_passkey_made_elsewhere_is_refused(changes: dict[str, Any], reason: str) -> None:
    said = dict(changes)
    found = registered(ADA.make(said.pop("challenge", b64(CHALLENGE)), **said))
    assert isinstance(found, Wrong) and found.reason == reason


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (USUAL, "authenticator_data"),
        (ATTESTED | VERIFIED, "presence"),
        (ATTESTED | PRESENT, "verification"),
    ],
)
def test_a_passkey_made_by_nobody_is_refused(flags: int, reason: str) -> None:
    found = registered(ADA.make(b64(CHALLENGE), flags=flags))
    assert isinstance(found, Wrong) and found.reason == reason


def test_a_passkey_of_another_site_is_refused() -> None:
    found = registered(Authenticator(party="evil.example").make(b64(CHALLENGE)))
    assert isinstance(found, Wrong) and found.reason == "party"


@pytest.mark.parametrize(
    "cose",
    [
        {},
        {1: 2, 3: -35, -1: 2, -2: bytes(48), -3: bytes(48)},  # P-384
        {1: 2, 3: -7, -1: 1, -2: bytes(31), -3: bytes(33)},
        {1: 2, 3: -7, -1: 1, -2: bytes(32)},
        {1: 2, 3: -7, -1: 1, -2: bytes(32), -3: True},
        {1: 1, 3: -7, -1: 1, -2: bytes(32), -3: bytes(32)},
        {1: 1, 3: -8, -1: 6, -2: bytes(33)},
        {1: 3, 3: -257, -1: b"x" * 256, -2: b"\x03"},
        {1: 3, 3: -257, -1: b"x" * 128, -2: b"\x01\x00\x01"},
        {1: [], 3: [1], -1: {}},
        [1],
        7,
    ],
)
def test_a_key_of_another_kind_is_refused(cose: Any) -> None:
    strange = Authenticator()
    strange.cose = lambda: cose  # type: ignore[method-assign]
    found = registered(strange.make(b64(CHALLENGE)))
    assert isinstance(found, Wrong) and found.reason == "key"


@pytest.mark.parametrize("size", [0, 1024])
def test_a_credential_without_an_id_or_with_a_huge_id_is_refused(size: int) -> None:
    strange = Authenticator()
    strange.credential = bytes(size)
    assert isinstance(registered(strange.make(b64(CHALLENGE))), Wrong)


def test_an_attestation_that_is_cut_anywhere_is_refused() -> None:
    made = ADA.make(b64(CHALLENGE))
    whole = decoded(made["attestation"])
    for end in range(len(whole)):
        assert isinstance(registered(made | {"attestation": b64(whole[:end])}), Wrong)
    assert isinstance(registered(made | {"attestation": b64(whole + b"\0")}), Wrong)


# Using one


def checked(token: str, challenge: bytes = CHALLENGE, party: Party = PARTY) -> int | str:
    assertion = read_assertion_untrusted(token)
    if isinstance(assertion, Wrong):
        return assertion.reason
    counter = check_assertion(assertion, challenge=challenge, party=party)
    return counter.reason if isinstance(counter, Wrong) else counter


@pytest.mark.parametrize("kind", KINDS)
def test_an_assertion_of_the_page_holds_and_its_signature_is_of_this_key_alone(kind: Kind) -> None:
    token = MADE[kind].sign(b64(CHALLENGE), counter=7)
    assert checked(token) == 7
    assertion = read_assertion_untrusted(token)
    assert not isinstance(assertion, Wrong)
    parts = (assertion.client_data, assertion.authenticator_data, assertion.signature)
    assert ".".join((assertion.credential, *map(encode, parts))) == token
    assert is_assertion(token)
    assert find_challenge(assertion.client_data) == CHALLENGE
    assert check_assertion_signature(assertion, read_passkey_untrusted(MADE[kind].text())) is None
    for other in KINDS:
        stranger = read_passkey_untrusted(Authenticator(other).text())
        assert check_assertion_signature(assertion, stranger) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_no_byte_of_what_was_signed_can_be_changed(kind: Kind) -> None:
    made = read_assertion_untrusted(MADE[kind].sign(b64(CHALLENGE)))
    assert not isinstance(made, Wrong)
    key = read_passkey_untrusted(MADE[kind].text())
    for member in ("client_data", "authenticator_data", "signature"):
        whole: bytes = getattr(made, member)
        for at in range(0, len(whole), 7):
            changed = whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :]
            parts = {name: getattr(made, name) for name in made.__struct_fields__}
            assert check_assertion_signature(type(made)(**parts | {member: changed}), key) is not None


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (ADA.sign(b64(b"other")), "challenge"),
        (ADA.sign(b64(CHALLENGE) + "=="), "challenge"),
        (ADA.sign(b64(CHALLENGE), type="webauthn.create"), "type"),
        (ADA.sign(b64(CHALLENGE), type=None), "type"),
        (ADA.sign(b64(CHALLENGE), origin="https://evil.example"), "origin"),
        (ADA.sign(b64(CHALLENGE), origin="http://localhost:7412/"), "origin"),
        (ADA.sign(b64(CHALLENGE), origin="http://127.0.0.1:7412"), "origin"),
        (ADA.sign(b64(CHALLENGE), origin=["http://localhost:7412"]), "origin"),
        (ADA.sign(b64(CHALLENGE), crossOrigin=True), "origin"),
        (ADA.sign(b64(CHALLENGE), crossOrigin="false"), "origin"),
        (ADA.sign(b64(CHALLENGE), topOrigin="http://localhost:7412"), "origin"),
        (Authenticator(party="evil.example").sign(b64(CHALLENGE)), "party"),
        (ADA.sign(b64(CHALLENGE), flags=VERIFIED), "presence"),
        (ADA.sign(b64(CHALLENGE), flags=PRESENT), "verification"),
        (ADA.sign(b64(CHALLENGE), flags=0), "presence"),
        (ADA.sign(b64(CHALLENGE), flags=USUAL | ATTESTED), "authenticator_data"),
        (ADA.sign(b64(CHALLENGE), extra=b"\xa0"), "authenticator_data"),
        (ADA.signed(ADA.client_data("webauthn.get", b64(CHALLENGE)), bytes(36)), "authenticator_data"),
        (ADA.signed(b"", ADA.data(USUAL, 0)), "malformed"),
        (ADA.signed(b"[]", ADA.data(USUAL, 0)), "client_data"),
        (ADA.signed(b"{", ADA.data(USUAL, 0)), "client_data"),
        (ADA.signed(b"\xff", ADA.data(USUAL, 0)), "client_data"),
        (ADA.signed(b"[" * 4000, ADA.data(USUAL, 0)), "client_data"),
        (ADA.signed(b" " * (CLIENT_DATA_BYTES_MAX + 1), ADA.data(USUAL, 0)), "too_long"),
        (ADA.signed(b"{}", ADA.data(USUAL, 0), credential=bytes(1024)), "too_long"),
        ("", "malformed"),
        ("...", "malformed"),
        ("a.b.c", "malformed"),
        ("a.b.c.d.e", "malformed"),
        ("QQ.QQ.QQ.Q*", "malformed"),
        ("QQ.QQ.QQ.QR", "malformed"),  # another spelling of the same bytes
    ],
)
def test_every_other_assertion_is_refused_with_a_word(token: str, reason: str) -> None:
    assert checked(token) == reason


def test_a_duplicate_member_has_no_meaning() -> None:
    whole = ADA.client_data("webauthn.get", b64(CHALLENGE))
    twice = whole[:-1] + b', "origin": "https://evil.example"}'
    assert checked(ADA.signed(twice, ADA.data(USUAL, 0))) == "client_data"


def test_members_of_tomorrow_and_extensions_are_let_be() -> None:
    said: dict[str, Any] = {"other_keys_can_be_added_here": "do not compare", "tokenBinding": {"status": "supported"}}
    assert checked(ADA.sign(b64(CHALLENGE), crossOrigin=None, **said)) == 0
    assert checked(ADA.sign(b64(CHALLENGE), flags=USUAL | EXTENDED, extra=cbor({"uvm": [[2, 4, 2]]}))) == 0


def test_the_counter_is_four_bytes() -> None:
    assert checked(ADA.sign(b64(CHALLENGE), counter=2**32 - 1)) == struct.unpack(">I", b"\xff" * 4)[0]


@given(st.text(max_size=300))
def test_any_text_is_an_assertion_or_a_refusal(text: str) -> None:
    assert isinstance(checked(text), int | str)

"""WebAuthn Level 3: passkeys, and the two ceremonies that make and use them. Pure; the caller verifies signatures.

A passkey is written in a configuration as `ALGORITHM:CREDENTIAL:KEY`, which is everything a node must know to
verify it. None of it is secret.

    es256:CREDENTIAL:X Y        the 64 bytes of a point on P-256
    ed25519:CREDENTIAL:X        32 bytes
    rs256:CREDENTIAL:N          the modulus; the exponent is 65537

CREDENTIAL and KEY are base64url. In memory a passkey is a Jwk whose `kid` is the id of the credential.

`read_registration_untrusted` (7.1) turns the data of a browser into a key. `check_assertion` (7.2) decides whether an
assertion was made for a challenge, on the right page, by a person whom the authenticator verified. The caller checks
the signature over `Assertion.signed`. Every refusal is a `Wrong` with a code and a sentence. Attestations, which name
the make of an authenticator, are neither requested nor read.
"""

import hashlib
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.crypto.jose import Algorithm, BadKey, Jwk, decode_base64url, encode
from interlock.net.protocol.address_scope import LOCALHOST, LOOPBACK_ADDRESSES, is_localhost
from interlock.net.protocol.dns import find_dns_name
from interlock.wire.cbor import CborError, read_item_untrusted
from interlock.wire.jsontext.canonical import AmbiguousJson, read_untrusted

# The relying party of WebAuthn: the name passkeys are made for, and the one origin whose pages may use them.
#
# A browser makes and uses passkeys only for a name and never for an address, and only over https or on the machine
# itself. So a node at 127.0.0.1 is `localhost` to its passkeys, at the same port.

_PORTS: Final = {"https": 443, "http": 80}


class Party(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The relying party of WebAuthn: the domain that passkeys are created for, and the web origin that may use them."""

    id: str
    origin: str  # as a browser writes it

    @property
    def is_local(self) -> bool:
        """Return whether the origin is an http URL. Such an origin is always on this machine, and nothing proves which
        program answers there.
        """
        return self.origin.startswith("http://")

    @cached_property
    def id_hash(self) -> bytes:
        """Return the SHA-256 hash of the relying party's id, which authenticator data contains."""
        return hashlib.sha256(self.id.encode()).digest()


def find_relying_party(url: str) -> Party | None:
    """Return the relying party of the operator endpoint at this URL. Return None if browsers do not allow passkeys
    there.
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None
    name = LOCALHOST if host in LOOPBACK_ADDRESSES else find_dns_name(host)
    if name is None or scheme not in _PORTS:
        return None
    if scheme == "http" and not is_localhost(name):
        return None
    where = name if port in (None, _PORTS[scheme]) else f"{name}:{port}"
    return Party(id=name, origin=f"{scheme}://{where}")


CREDENTIAL_BYTES_MAX: Final = 1023  # WebAuthn 3, 4: credential id
EXPONENT: Final = encode((65537).to_bytes(3))
RSA_BYTES: Final = range(256, 1025)  # 2048 to 8192 bits
TEXT_CHARS_MAX: Final = 3000
_ALGORITHM_BY_NAME: Final[dict[str, Algorithm]] = {"es256": "ES256", "ed25519": "EdDSA", "rs256": "RS256"}
_POINT_BYTES: Final = 32
_NAME_BY_ALGORITHM: Final = {alg: name for name, alg in _ALGORITHM_BY_NAME.items()}


def read_passkey_untrusted(text: str) -> Jwk:
    """Read a passkey from its text form. Raise BadKey if the text does not have this form."""
    name, _, rest = text.strip().partition(":")
    credential, _, key_text = rest.partition(":")
    if name not in _ALGORITHM_BY_NAME or len(text) > TEXT_CHARS_MAX:
        raise BadKey(f"it does not begin with {', '.join(f'{algorithm}:' for algorithm in _ALGORITHM_BY_NAME)}")
    id_bytes, key = decode_base64url(credential), decode_base64url(key_text)
    if not id_bytes or len(id_bytes) > CREDENTIAL_BYTES_MAX:
        raise BadKey("the text before the second colon is not the id of a credential in base64url")
    if key is None:
        raise BadKey("the text after the second colon is not base64url")
    return passkey(_ALGORITHM_BY_NAME[name], credential, key)


def passkey(alg: Algorithm, credential: str, key: bytes) -> Jwk:
    """Build a passkey from the raw bytes of its public key. Raise BadKey if the number of bytes does not fit the
    algorithm. Whether the bytes are a valid key is checked when a signature is verified.
    """
    match alg:
        case "ES256" if len(key) == 2 * _POINT_BYTES:
            x, y = encode(key[:_POINT_BYTES]), encode(key[_POINT_BYTES:])
            return Jwk(kty="EC", crv="P-256", x=x, y=y, kid=credential, alg=alg)
        case "EdDSA" if len(key) == _POINT_BYTES:
            return Jwk(kty="OKP", crv="Ed25519", x=encode(key), kid=credential, alg=alg)
        case "RS256" if len(key) in RSA_BYTES and key[0] != 0:
            return Jwk(kty="RSA", n=encode(key), e=EXPONENT, kid=credential, alg=alg)
    raise BadKey(f"its key is no key of the kind {_NAME_BY_ALGORITHM.get(alg, alg)}: {len(key)} bytes")


def format_passkey(key: Jwk) -> str:
    """Return a passkey as text, in the form in which configuration files contain it."""
    point = (decode_base64url(key.x) or b"") + (decode_base64url(key.y) or b"")
    material = key.n if key.kty == "RSA" else encode(point)
    return f"{_NAME_BY_ALGORITHM[algorithm_of(key)]}:{key.kid}:{material}"


def algorithm_of(key: Jwk) -> Algorithm:
    """Return the algorithm with which a passkey signs."""
    return next(alg for alg in _NAME_BY_ALGORITHM if key.fits(alg))


# The ceremonies

CREATE: Final = "webauthn.create"
GET: Final = "webauthn.get"
OFFERED_ALGORITHMS: Final = (-8, -7, -257)  # EdDSA, ES256 (RFC 9053), RS256 (RFC 8812); the best first
CLIENT_DATA_BYTES_MAX: Final = 4096  # a challenge, an origin, and what browsers add
PARTS: Final = 4  # of an assertion as text
SIGNATURE_BYTES_MAX: Final = 1024  # RSA with 8192 bits

# Authenticator data, 6.1
_PRESENT, _VERIFIED, _CREDENTIAL, _EXTENSIONS = 0x01, 0x04, 0x40, 0x80
_FIXED_BYTES: Final = 37
_KEY_ID_AT: Final = 18  # of the attested credential data: AAGUID, length


class Wrong(msgspec.Struct, frozen=True):
    """The refusal of a passkey registration or a passkey assertion: a code, and a sentence for people."""

    reason: str
    why: str


class Assertion(msgspec.Struct, frozen=True, kw_only=True):
    """A proof that the owner of a passkey answered a challenge. Its signature has not been checked."""

    credential: str  # its id, in base64url
    client_data: bytes
    authenticator_data: bytes
    signature: bytes

    @property
    def signed(self) -> bytes:
        """Return the bytes that the authenticator signed."""
        return self.authenticator_data + hashlib.sha256(self.client_data).digest()


class PasskeyRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A new passkey, with its signature counter."""

    key: Jwk
    counter: int


class _Authenticator(msgspec.Struct, frozen=True):
    """Authenticator data (WebAuthn 6.1): the flags, the signature counter, and the bytes that follow the fixed
    fields.
    """

    flags: int
    counter: int
    attested: bytes


def is_assertion(token: str) -> bool:
    """Return whether a text has the form of a passkey assertion, which has four parts. A signed token has three (RFC
    7515 3.1).
    """
    return token.count(".") == PARTS - 1


def read_assertion_untrusted(token: str) -> Assertion | Wrong:
    """Parse an assertion without checking it. Return Wrong if it is malformed."""
    parts = token.split(".")
    decoded = [decode_base64url(part) for part in parts]
    if len(parts) != PARTS or not all(decoded):
        return Wrong("malformed", "the proof is not CREDENTIAL.CLIENT_DATA.AUTHENTICATOR_DATA.SIGNATURE in base64url")
    credential, client_data, authenticator_data, signature = (part or b"" for part in decoded)
    limits = (CREDENTIAL_BYTES_MAX, CLIENT_DATA_BYTES_MAX, SIGNATURE_BYTES_MAX)
    if any(len(part) > most for part, most in zip((credential, client_data, signature), limits, strict=True)):
        return Wrong("too_long", "a part of the proof is longer than any that authenticators make")
    texts = {"client_data": client_data, "authenticator_data": authenticator_data}
    return Assertion(credential=parts[0], **texts, signature=signature)


def find_challenge(client_data: bytes) -> bytes | None:
    """Return the challenge in the client data, without checking it. Return None if it is missing or unreadable."""
    fields = _read_client_data(client_data)
    text = fields.get("challenge") if fields is not None else None
    return decode_base64url(text) if isinstance(text, str) else None


def check_assertion(assertion: Assertion, *, challenge: bytes, party: Party) -> int | Wrong:
    """Check a passkey assertion, except for its signature. Return the signature counter of the authenticator, or Wrong
    if a check fails.

    The counter is meaningless until the signature is verified.
    """
    if (wrong := _check_client_data(assertion.client_data, GET, challenge, party)) is not None:
        return wrong
    read = _check_authenticator(assertion.authenticator_data, party)
    if isinstance(read, Wrong):
        return read
    if read.flags & _CREDENTIAL:
        return Wrong("authenticator_data", "the passkey answered as if it were being made")
    if read.attested and not read.flags & _EXTENSIONS:
        return _UNREADABLE
    return read.counter


def read_registration_untrusted(
    client_data: bytes, attestation: bytes, *, challenge: bytes, party: Party
) -> PasskeyRegistration | Wrong:
    """Check the data with which a browser answers the creation of a passkey. Return the new passkey, or Wrong if a
    check fails.
    """
    if (wrong := _check_client_data(client_data, CREATE, challenge, party)) is not None:
        return wrong
    try:
        attestation_object, rest = read_item_untrusted(attestation, has_floats=False)
    except CborError:
        attestation_object, rest = None, b""
    data = attestation_object.get("authData") if isinstance(attestation_object, dict) and not rest else None
    read = _check_authenticator(data, party) if isinstance(data, bytes) else _UNREADABLE
    if isinstance(read, Wrong):
        return read
    if not read.flags & _CREDENTIAL:
        return Wrong("authenticator_data", "no passkey was made")
    # The attested credential data: the length of the credential's id, the id, and the key (WebAuthn 6.5.1).
    length = int.from_bytes(read.attested[_KEY_ID_AT - 2 : _KEY_ID_AT])
    credential, rest = read.attested[_KEY_ID_AT : _KEY_ID_AT + length], read.attested[_KEY_ID_AT + length :]
    if not 0 < length <= CREDENTIAL_BYTES_MAX or len(credential) != length:
        return _UNREADABLE
    try:
        cose, _ = read_item_untrusted(rest, has_floats=False)
        return PasskeyRegistration(key=_key(encode(credential), cose), counter=read.counter)
    except (CborError, BadKey):
        return Wrong("key", "the passkey's key is none of Ed25519, P-256 and RSA with 2048 bits")


_UNREADABLE: Final = Wrong("authenticator_data", "what the authenticator wrote cannot be read")


def _read_client_data(client_data: bytes) -> dict[str, Any] | None:
    if len(client_data) > CLIENT_DATA_BYTES_MAX:
        return None
    try:
        fields = read_untrusted(client_data, exact=False)
    except AmbiguousJson:
        return None
    return fields if isinstance(fields, dict) else None


def _check_client_data(client_data: bytes, kind: str, challenge: bytes, party: Party) -> Wrong | None:
    if (fields := _read_client_data(client_data)) is None:
        return Wrong("client_data", "what the browser wrote cannot be read")
    if fields.get("type") != kind:
        return Wrong("type", f"what the browser wrote is not of the type {kind}")
    if fields.get("challenge") != encode(challenge):
        return Wrong("challenge", "the passkey answered to another challenge")
    if fields.get("origin") != party.origin:
        return Wrong("origin", f"the passkey was used on another page than those of {party.origin}")
    if fields.get("crossOrigin") not in (None, False) or "topOrigin" in fields:
        return Wrong("origin", "the passkey was used on a page inside another page")
    return None


def _check_authenticator(data: bytes, party: Party) -> _Authenticator | Wrong:
    """Read authenticator data. Return Wrong if it belongs to another relying party, or if the authenticator was not
    touched or did not verify its user.
    """
    if len(data) < _FIXED_BYTES:
        return _UNREADABLE
    if data[:32] != party.id_hash:
        return Wrong("party", f"the passkey is of another site than {party.id}")
    flags = data[32]
    if not flags & _PRESENT:
        return Wrong("presence", "the authenticator was not touched")
    if not flags & _VERIFIED:
        return Wrong("verification", "the authenticator did not verify who used it, by a PIN or otherwise")
    return _Authenticator(flags, int.from_bytes(data[33:_FIXED_BYTES]), data[_FIXED_BYTES:])


def _key(credential: str, cose: Any) -> Jwk:
    """Convert a COSE public key (RFC 9053 7) to a passkey. In a COSE key, label 3 is the algorithm, 1 the type of the
    key, -1 the curve, and -2 and -3 are its numbers.
    """
    members = [cose.get(label) for label in (3, 1, -1, -2, -3)] if isinstance(cose, dict) else []
    match members:
        case [-7, 2, 1, bytes(x), bytes(y)] if len(x) == len(y):
            return passkey("ES256", credential, x + y)
        case [-8, 1, 6, bytes(x), None]:
            return passkey("EdDSA", credential, x)
        case [-257, 3, bytes(n), bytes(e), None] if encode(e) == EXPONENT:
            return passkey("RS256", credential, n)
    raise BadKey("unknown")

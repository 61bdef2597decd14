"""A person's authenticator and browser in one, as a relying party sees them (WebAuthn 3). No code of the product.

`Authenticator.make` answers what a page asks to make a passkey, `.sign` what a page asks to use it. Whatever a test
wants to be wrong is changed by name.
"""

import base64
import hashlib
import json
import struct
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Kind = Literal["es256", "ed25519", "rs256"]
PRESENT, VERIFIED, ELIGIBLE, BACKED_UP, ATTESTED, EXTENDED = 0x01, 0x04, 0x08, 0x10, 0x40, 0x80
USUAL = PRESENT | VERIFIED | ELIGIBLE | BACKED_UP


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def cbor(value: Any) -> bytes:
    match value:
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int() if value >= 0:
            return _head(0, value)
        case int():
            return _head(1, -1 - value)
        case bytes():
            return _head(2, len(value)) + value
        case str():
            return _head(3, len(value.encode())) + value.encode()
        case list():
            return _head(4, len(value)) + b"".join(map(cbor, value))
        case dict():
            return _head(5, len(value)) + b"".join(cbor(key) + cbor(one) for key, one in value.items())
    raise TypeError(type(value))


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes((major << 5 | number,))
    size, low, form = next(row for row in ((1, 24, ">B"), (2, 25, ">H"), (4, 26, ">I")) if number < 1 << 8 * row[0])
    assert size
    return bytes((major << 5 | low,)) + struct.pack(form, number)


class Authenticator:
    def __init__(self, kind: Kind = "es256", origin: str = "http://localhost:7412", party: str = "localhost") -> None:
        self.kind, self.origin, self.party = kind, origin, party
        self.counter = 0  # as of one that does not count
        self.credential = hashlib.sha256(f"{kind}{id(self)}".encode()).digest()[:20]
        self._key: Any = _generate(kind)

    def make(self, challenge: str, *, flags: int = USUAL | ATTESTED, **said: Any) -> dict[str, str]:
        """What the page of an invitation sends."""
        client_data = self.client_data("webauthn.create", challenge, **said)
        attested = b"\0" * 16 + struct.pack(">H", len(self.credential)) + self.credential + cbor(self.cose())
        data = self.data(flags, self.counter) + attested
        attestation = cbor({"fmt": "none", "attStmt": {}, "authData": data})
        return {"client_data": b64(client_data), "attestation": b64(attestation)}

    def sign(
        self, challenge: str, *, flags: int = USUAL, counter: int | None = None, extra: bytes = b"", **said: Any
    ) -> str:
        """What the page of an approval sends. `said` changes the client data; None leaves a member out."""
        client_data = self.client_data("webauthn.get", challenge, **said)
        return self.signed(client_data, self.data(flags, self.counter if counter is None else counter) + extra)

    def signed(self, client_data: bytes, data: bytes, credential: bytes | None = None) -> str:
        signature = self._sign(data + hashlib.sha256(client_data).digest())
        return ".".join(map(b64, (credential or self.credential, client_data, data, signature)))

    def client_data(self, kind: str, challenge: str, **said: Any) -> bytes:
        members = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False} | said
        return json.dumps({name: value for name, value in members.items() if value is not None}).encode()

    def data(self, flags: int, counter: int, party: str | None = None) -> bytes:
        return hashlib.sha256((party or self.party).encode()).digest() + struct.pack(">BI", flags, counter)

    def cose(self) -> dict[int, Any]:
        public = self._key.public_key()
        if self.kind == "ed25519":
            return {1: 1, 3: -8, -1: 6, -2: public.public_bytes(Encoding.Raw, PublicFormat.Raw)}
        numbers = public.public_numbers()
        if self.kind == "es256":
            return {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32), -3: numbers.y.to_bytes(32)}
        return {1: 3, 3: -257, -1: numbers.n.to_bytes(256), -2: numbers.e.to_bytes(3)}

    def text(self) -> str:
        """As an [[anchor]] has it."""
        cose = self.cose()
        key = {"es256": lambda: cose[-2] + cose[-3], "ed25519": lambda: cose[-2], "rs256": lambda: cose[-1]}
        return f"{self.kind}:{b64(self.credential)}:{b64(key[self.kind]())}"

    def _sign(self, what: bytes) -> bytes:
        match self._key:
            case EllipticCurvePrivateKey():
                return bytes(self._key.sign(what, ECDSA(SHA256())))
            case Ed25519PrivateKey():
                return bytes(self._key.sign(what))
            case RSAPrivateKey():
                return bytes(self._key.sign(what, PKCS1v15(), SHA256()))
        raise TypeError(type(self._key))


def _generate(kind: Kind) -> Any:
    match kind:
        case "es256":
            return generate_ec(SECP256R1())
        case "ed25519":
            return Ed25519PrivateKey.generate()
        case "rs256":
            return generate_rsa(65537, 2048)

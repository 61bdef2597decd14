"""Access tokens with any defect: keys, their public form, and tokens put together by hand. No code of the product."""

import base64
import functools
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

Json = Mapping[str, Any]


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def number(value: int, size: int = 0) -> str:
    return b64(value.to_bytes(max(size, (value.bit_length() + 7) // 8)))


class SigningKey:
    """A private key; `alg` is what it signs with unless told otherwise."""

    def __init__(self, alg: str, kid: str, *, bits: int = 2048) -> None:
        self.alg, self.kid = alg, kid
        self.private: Any
        match alg:
            case "EdDSA":
                self.private = ed25519.Ed25519PrivateKey.generate()
            case "ES256":
                self.private = ec.generate_private_key(ec.SECP256R1())
            case "RS256" | "PS256":
                self.private = rsa.generate_private_key(65537, bits)
            case _:
                raise ValueError(alg)

    def jwk(self, **changes: Any) -> dict[str, Any]:
        """The public key as a key set has it. A change to None leaves the member out."""
        made: dict[str, Any] = {"kid": self.kid, "use": "sig", "alg": self.alg}
        public = self.private.public_key()
        if isinstance(public, ed25519.Ed25519PublicKey):
            raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
            made |= {"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}
        elif isinstance(public, ec.EllipticCurvePublicKey):
            point = public.public_numbers()
            made |= {"kty": "EC", "crv": "P-256", "x": number(point.x, 32), "y": number(point.y, 32)}
        else:
            numbers = public.public_numbers()
            made |= {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
        return {name: value for name, value in (made | changes).items() if value is not None}

    def pem(self) -> bytes:
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.private.public_key().public_bytes(serialization.Encoding.PEM, spki)

    def sign(self, data: bytes, alg: str | None = None) -> bytes:
        match alg or self.alg:
            case "EdDSA":
                return self.private.sign(data)
            case "ES256":
                r, s = decode_dss_signature(self.private.sign(data, ec.ECDSA(hashes.SHA256())))
                return r.to_bytes(32) + s.to_bytes(32)
            case "PS256":
                pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
                return self.private.sign(data, pss, hashes.SHA256())
            case _:
                return self.private.sign(data, padding.PKCS1v15(), hashes.SHA256())


@functools.cache
def key(alg: str, kid: str, bits: int = 2048) -> SigningKey:
    """Making one takes a moment, so equal ones are made once."""
    return SigningKey(alg, kid, bits=bits)


def join(header: Json | bytes, claims: Json | bytes) -> str:
    parts = (part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims))
    return ".".join(b64(part) for part in parts)


def mint(signer: SigningKey, claims: Json | bytes, **header: Any) -> str:
    """A signed token. Header members replace the usual ones; None leaves one out."""
    usual = {"alg": signer.alg, "typ": "at+jwt", "kid": signer.kid}
    head = {name: value for name, value in (usual | header).items() if value is not None}
    signed = join(head, claims)
    return f"{signed}.{b64(signer.sign(signed.encode()))}"


def unsigned(claims: Json, alg: str = "none") -> str:
    return join({"alg": alg, "typ": "at+jwt"}, claims) + "."


def confused(signer: SigningKey, claims: Json, secret: bytes) -> str:
    """HS256 with something public as its secret: the oldest trick there is."""
    signed = join({"alg": "HS256", "typ": "at+jwt", "kid": signer.kid}, claims)
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def tampered(token: str, **claims: Any) -> str:
    """The same token with other claims under the old signature."""
    header, payload, signature = token.split(".")
    changed = json.loads(unb64(payload)) | claims
    return f"{header}.{b64(json.dumps(changed).encode())}.{signature}"

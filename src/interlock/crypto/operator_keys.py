"""Files of operator keys: NAME.key (private, 0600) and NAME.pub beside it, in <config>/interlock/keys.

Pairs are created and found here; `crypto.signing` reads the private half.

A private key under a passphrase is PEM that other tools can read: PKCS #8 with PBES2, scrypt and AES-256.
`cryptography` reads this form but writes another one, whose 2048 rounds of PBKDF2 do not stop a thief who has the file.
So the few bytes around the ciphertext are assembled here (RFC 8018 6.2 and A.4, RFC 7914 7).
"""

import base64
import hashlib
import re
import secrets
import textwrap
from pathlib import Path
from typing import Final, Literal

from interlock.crypto.jose import format_key

KeyKind = Literal["ed25519", "es256"]

KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)  # as an [[anchor]] may be called
PUBLIC_BYTES_MAX: Final = 4096
PASSPHRASE_CHARS_MIN: Final = 8  # of a new key: a program that reads its file can try any number of them


class KeyExists(Exception):
    """A key is never written over another."""


def key_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.key")) if folder.is_dir() else []


def public_text(private: Path) -> str:
    """Read the public half of a key as an [[anchor]] contains it. Raise OSError or UnicodeDecodeError on failure."""
    return private.with_suffix(".pub").read_bytes()[:PUBLIC_BYTES_MAX].decode().strip()


def make_key(private: Path, kind: KeyKind, passphrase: bytes | None) -> str:
    """Create a key pair and return its public half. Raise KeyExists or OSError on failure."""
    from interlock.crypto.signing import jwk_of, write_once

    public, pem = _pair(kind, passphrase)
    text = format_key(jwk_of(public))
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if private.exists():
        raise KeyExists(private)
    write_once(private, pem)
    if private.read_bytes() != pem:  # another process was first
        raise KeyExists(private)
    beside = private.with_suffix(".pub")
    beside.unlink(missing_ok=True)  # of a private key that is gone
    write_once(beside, f"{text}\n".encode(), 0o644)
    return text


def _pair(kind: KeyKind, passphrase: bytes | None) -> tuple[object, bytes]:
    """Generate a key pair. Return the public key and the private key as PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate() if kind == "ed25519" else generate_private_key(SECP256R1())
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    if passphrase is None:
        return private.public_key(), private.private_bytes(serialization.Encoding.PEM, form, plain)
    der = private.private_bytes(serialization.Encoding.DER, form, plain)
    return private.public_key(), encrypt_pem(der, passphrase)


SCRYPT_N: Final = 2**17  # 128 MiB and about half a second, once per signature
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
SCRYPT_BYTES_MAX: Final = 256 * 1024 * 1024
KEY_BYTES: Final = 32
BLOCK_BYTES: Final = 16
LABEL: Final = "ENCRYPTED PRIVATE KEY"

_INTEGER, _OCTETS, _SEQUENCE = 0x02, 0x04, 0x30
_PBES2: Final = bytes.fromhex("06092a864886f70d01050d")
_SCRYPT: Final = bytes.fromhex("06092b06010401da47040b")
_AES_256_CBC: Final = bytes.fromhex("060960864801650304012a")


def encrypt_pem(pkcs8: bytes, passphrase: bytes) -> bytes:
    """Encrypt a private key, given as PKCS #8 in DER, under a passphrase."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import CBC

    salt, start = secrets.token_bytes(BLOCK_BYTES), secrets.token_bytes(BLOCK_BYTES)
    key = hashlib.scrypt(
        passphrase, salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, maxmem=SCRYPT_BYTES_MAX, dklen=KEY_BYTES
    )
    filling = BLOCK_BYTES - len(pkcs8) % BLOCK_BYTES  # RFC 8018 B.2.5: at least one, and each says how many
    writer = Cipher(AES256(key), CBC(start)).encryptor()
    secret = writer.update(pkcs8 + bytes([filling]) * filling) + writer.finalize()
    # One byte more than the digits may need: the first bit of a DER integer is its sign.
    numbers = b"".join(
        _tag(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1))
        for number in (SCRYPT_N, SCRYPT_R, SCRYPT_P, KEY_BYTES)
    )
    derivation = _tag(_SEQUENCE, _SCRYPT + _tag(_SEQUENCE, _tag(_OCTETS, salt) + numbers))
    cipher = _tag(_SEQUENCE, _AES_256_CBC + _tag(_OCTETS, start))
    scheme = _tag(_SEQUENCE, _PBES2 + _tag(_SEQUENCE, derivation + cipher))
    der = _tag(_SEQUENCE, scheme + _tag(_OCTETS, secret))
    lines = textwrap.wrap(base64.b64encode(der).decode("ascii"), 64)
    return "\n".join((f"-----BEGIN {LABEL}-----", *lines, f"-----END {LABEL}-----", "")).encode("ascii")


def is_sealed(pem: bytes) -> bool:
    return f"-----BEGIN {LABEL}-----".encode() in pem


def _tag(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(digits))) + digits + content

"""A private key under a passphrase, as PEM that everybody's tools read: PKCS #8 with PBES2, scrypt and AES-256.

`cryptography` reads this form and writes another, whose 2048 rounds of PBKDF2 stop no thief who has the file. So
the few bytes around the ciphertext are put together here (RFC 8018 6.2 and A.4, RFC 7914 7).
"""

import base64
import hashlib
import secrets
import textwrap
from typing import Final

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
    numbers = b"".join(_integer(number) for number in (SCRYPT_N, SCRYPT_R, SCRYPT_P, KEY_BYTES))
    derivation = _tag(_SEQUENCE, _SCRYPT + _tag(_SEQUENCE, _tag(_OCTETS, salt) + numbers))
    cipher = _tag(_SEQUENCE, _AES_256_CBC + _tag(_OCTETS, start))
    scheme = _tag(_SEQUENCE, _PBES2 + _tag(_SEQUENCE, derivation + cipher))
    return _pem(_tag(_SEQUENCE, scheme + _tag(_OCTETS, secret)))


def is_sealed(pem: bytes) -> bool:
    return f"-----BEGIN {LABEL}-----".encode() in pem


def _tag(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(digits))) + digits + content


def _integer(number: int) -> bytes:
    return _tag(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1))  # room for the sign


def _pem(der: bytes) -> bytes:
    lines = textwrap.wrap(base64.b64encode(der).decode("ascii"), 64)
    return "\n".join((f"-----BEGIN {LABEL}-----", *lines, f"-----END {LABEL}-----", "")).encode("ascii")

"""Files of operator keys: NAME.key (private, 0600) and NAME.pub beside it, in <config>/interlock/keys.

A pair is made and found here; `signing` reads the private half.
"""

import re
from pathlib import Path
from typing import Final, Literal

from interlock.crypto.jose import written

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
    from interlock.crypto.keys.signing import jwk_of, write_once

    public, pem = _pair(kind, passphrase)
    text = written(jwk_of(public))
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

    from interlock.crypto.keys.encrypted_pem import encrypt_pem

    private = Ed25519PrivateKey.generate() if kind == "ed25519" else generate_private_key(SECP256R1())
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    if passphrase is None:
        return private.public_key(), private.private_bytes(serialization.Encoding.PEM, form, plain)
    der = private.private_bytes(serialization.Encoding.DER, form, plain)
    return private.public_key(), encrypt_pem(der, passphrase)

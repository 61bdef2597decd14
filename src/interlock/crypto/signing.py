"""Private keys that sign, each in a PEM file with mode 0600: the key of an aggregator, a leaf or an operator.

`read_signing_key` turns a path, and a passphrase where the file has one, into a `SigningKey`, which signs JWS in
compact form (RFC 7515) and shows its public half as a Jwk. A file that cannot be used raises a `KeyFileError`.

Keys of operators are pairs of files in <config>/interlock/keys: NAME.key (private) and NAME.pub beside it. `make_key`
creates a pair. A private key under a passphrase is PEM that other tools can read: PKCS #8 with PBES2, scrypt and
AES-256. `cryptography` reads this form but writes another one, whose 2048 rounds of PBKDF2 do not stop a thief who has
the file. So the few bytes around the ciphertext are assembled here (RFC 8018 6.2 and A.4, RFC 7914 7).

`cryptography` takes 10 MiB of memory, so it is imported by the functions that need it, and not at the start.
"""

import base64
import contextlib
import hashlib
import os
import re
import secrets
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from interlock.ax.protocol.messages import AuthorityProof
from interlock.ax.protocol.registration.authority import audience_of, proof_claims
from interlock.crypto import jose

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


FILE_BYTES_MAX: Final = 64 * 1024
P256_BYTES: Final = 32
JTI_BYTES: Final = 16
OTHERS: Final = 0o077  # permissions of everybody but the owner
_ALGORITHMS: Final[dict[str, jose.Algorithm]] = {"OKP": "EdDSA", "EC": "ES256", "RSA": "RS256"}


class KeyFileError(Exception):
    """Error for a file of a key or certificate that cannot be used. The message names the file and says what to do, and
    repeats nothing of its content.

    KeyFileError
      FileUnusable     the file or its folder cannot be read or written
      FileDamaged      the file does not contain what its name says
      KeyExposed       the permissions of the file include other users
      PassphraseWrong  the passphrase is missing, wrong, or given for a file that is not encrypted
    """


class FileUnusable(KeyFileError):
    """Error for a file that cannot be read or written, or whose folder cannot."""


class FileDamaged(KeyFileError):
    """Error for a file that does not contain a key or certificate that Interlock can use."""


class KeyExposed(KeyFileError):
    """Error for a private key whose file gives any permission to other users of the machine."""


class PassphraseWrong(KeyFileError):
    """Error for a passphrase that is wrong or missing, or that was given for a key that is not encrypted."""


class SigningKey:
    """A private key for signing, with the matching public key."""

    def __init__(self, private: "PrivateKeyTypes", path: Path) -> None:
        """Wrap a private key that was read from `path`. Raise FileDamaged if Interlock cannot verify signatures of this
        type of key.
        """
        self._private = private
        try:
            self.public = jwk_of(private.public_key())
        except jose.BadKey as bad:
            raise FileDamaged(f"{path} holds a key of another kind: {bad}") from None
        self.alg = _ALGORITHMS[self.public.kty]

    def sign(self, typ: str, claims: Mapping[str, Any]) -> str:
        """Sign claims and return them as a JWS in compact form (RFC 7515). `typ` is the token type in its header."""
        header = {"alg": self.alg, "kid": self.public.kid, "typ": typ}
        signed = f"{jose.encode(msgspec.json.encode(header))}.{jose.encode(msgspec.json.encode(claims))}"
        return f"{signed}.{jose.encode(make_signature(self._private, self.alg, signed.encode()))}"

    def prove(self, authority: str, url: str, now: float) -> AuthorityProof:
        """Return a signed proof of `authority`, a DNS name. It is valid for one registration at the aggregator with
        this URL (MCP-AX 4.2).
        """
        claims = proof_claims(authority, audience_of(url), now=now, jti=secrets.token_urlsafe(JTI_BYTES))
        return AuthorityProof(type="jwt", token=self.sign("JWT", claims))


def make_signature(private: "PrivateKeyTypes", alg: jose.Algorithm, data: bytes) -> bytes:
    """Return the signature of `data` in the form that a JWS contains. The type of the key must fit the algorithm."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils
    from cryptography.hazmat.primitives.hashes import SHA256

    match private:
        case ed25519.Ed25519PrivateKey():
            return private.sign(data)
        case ec.EllipticCurvePrivateKey():
            r, s = utils.decode_dss_signature(private.sign(data, ec.ECDSA(SHA256())))
            return r.to_bytes(P256_BYTES) + s.to_bytes(P256_BYTES)  # RFC 7518 3.4: two numbers of fixed length
        case rsa.RSAPrivateKey():
            pss = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)  # RFC 7518 3.5
            return private.sign(data, pss if alg == "PS256" else padding.PKCS1v15(), SHA256())
        case _:
            raise TypeError("no key that signs")  # the caller has refused it


def read_signing_key(path: Path, passphrase: bytes | None = None) -> SigningKey:
    """Read a private key from a PEM file. Raise KeyFileError if the file is unreadable, damaged or accessible to other
    users, or if the passphrase does not open it.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key as load

    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise FileUnusable(f"the key {path} cannot be read: {error.strerror or error}") from None
    if mode & OTHERS:
        raise KeyExposed(f"others may read the key {path}; take it for known to them, or run: chmod 600 {path}")
    try:
        private = load(text[:FILE_BYTES_MAX], passphrase)
    except TypeError:  # one is given and not needed, or the other way round
        sealed = passphrase is None
        raise PassphraseWrong(f"the key {path} {'needs its' if sealed else 'has no'} passphrase") from None
    except ValueError:
        if passphrase is not None:
            raise PassphraseWrong(f"the key {path} cannot be opened with this passphrase") from None
        why = f"{path} does not hold a private key in PEM; restore it, or remove it and make another"
        raise FileDamaged(why) from None
    return SigningKey(private, path)


def make_signing_key(path: Path) -> SigningKey:
    """Return the Ed25519 key in this file, and create the key if the file does not exist. Raise KeyFileError if the
    file cannot be used.

    If two processes create the file at the same time, both return the key that was stored first.
    """
    if path.exists():
        return read_signing_key(path)
    pem, _ = _new_key("ed25519", None)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_once(path, pem)
    except OSError as error:
        raise FileUnusable(f"the key {path} cannot be written: {error.strerror or error}") from None
    return read_signing_key(path)


def write_once(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Create a file atomically. A file that already exists stays unchanged. Raise OSError if writing fails."""
    draft = write_draft(path, data, mode)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def write_draft(path: Path, data: bytes, mode: int) -> Path:
    """Write data to a temporary file in the folder of `path`, and return the path of the temporary file."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # 0600
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(handle, mode)
        os.fsync(handle)
    return Path(draft)


def jwk_of(public: object) -> jose.Jwk:
    """Convert a public key of the library `cryptography` into a Jwk. Raise BadKey if its type is not supported."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    match public:
        case ed25519.Ed25519PublicKey():
            return jose.ed25519_key(public.public_bytes_raw())
        case ec.EllipticCurvePublicKey() if isinstance(public.curve, ec.SECP256R1):
            at = public.public_numbers()
            x, y = (jose.encode(number.to_bytes(P256_BYTES)) for number in (at.x, at.y))
            return jose.named(jose.Jwk(kty="EC", crv="P-256", x=x, y=y))
        case rsa.RSAPublicKey():
            numbers = public.public_numbers()
            n, e = (jose.encode(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
            return jose.named(jose.Jwk(kty="RSA", n=n, e=e))
        case _:
            raise jose.BadKey(jose.UNFIT)


def read_pem_untrusted(text: str) -> jose.Jwk:
    """Read a public key in PEM. Raise BadKey if the text is not a supported key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    label = jose.find_pem_label(text) or ""
    if "PRIVATE" in label:
        raise jose.BadKey(jose.PRIVATE)
    if label not in ("PUBLIC KEY", "RSA PUBLIC KEY"):
        raise jose.BadKey(f"it is PEM with {label}, and PUBLIC KEY is needed")
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise jose.BadKey("its PEM block cannot be read") from None
    return jwk_of(key)


KeyKind = Literal["ed25519", "es256"]

KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)  # as an [[anchor]] may be called
PUBLIC_BYTES_MAX: Final = 4096
PASSPHRASE_CHARS_MIN: Final = 8  # of a new key: a program that reads its file can try any number of them


class KeyExists(Exception):
    """Error for creating a key under a name that already has one. Existing keys are never overwritten."""


def key_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.key")) if folder.is_dir() else []


def public_text(private: Path) -> str:
    """Return the public key that belongs to a private key file, in the form of an [[anchor]] in the configuration.
    Raise OSError or UnicodeDecodeError if the `.pub` file beside the private key cannot be read.
    """
    return private.with_suffix(".pub").read_bytes()[:PUBLIC_BYTES_MAX].decode().strip()


def make_key(private: Path, kind: KeyKind, passphrase: bytes | None) -> str:
    """Create the two files of a key pair, and return the public key as text. Raise KeyExists if the file of the private
    key exists, or OSError if writing fails.
    """
    pem, public = _new_key(kind, passphrase)
    text = jose.format_key(public)
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


def _new_key(kind: KeyKind, passphrase: bytes | None) -> tuple[bytes, jose.Jwk]:
    """Return a new private key in PEM, encrypted if there is a passphrase, and its public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    public = jwk_of(key.public_key())
    if passphrase is None:
        return key.private_bytes(serialization.Encoding.PEM, form, plain), public
    return encrypt_pem(key.private_bytes(serialization.Encoding.DER, form, plain), passphrase), public


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
    """Encrypt a private key with a passphrase and return it as PEM. `pkcs8` is the key in the format PKCS #8, encoded
    as DER.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import CBC

    salt, start = secrets.token_bytes(BLOCK_BYTES), secrets.token_bytes(BLOCK_BYTES)
    cost = {"n": SCRYPT_N, "r": SCRYPT_R, "p": SCRYPT_P, "maxmem": SCRYPT_BYTES_MAX}
    key = hashlib.scrypt(passphrase, salt=salt, **cost, dklen=KEY_BYTES)
    filling = BLOCK_BYTES - len(pkcs8) % BLOCK_BYTES  # RFC 8018 B.2.5: at least one, and each says how many
    writer = Cipher(AES256(key), CBC(start)).encryptor()
    secret = writer.update(pkcs8 + bytes([filling]) * filling) + writer.finalize()
    # One byte more than the digits may need: the first bit of a DER integer is its sign.
    costs = (SCRYPT_N, SCRYPT_R, SCRYPT_P, KEY_BYTES)
    numbers = b"".join(_tag(_INTEGER, cost.to_bytes(cost.bit_length() // 8 + 1)) for cost in costs)
    derivation = _tag(_SEQUENCE, _SCRYPT + _tag(_SEQUENCE, _tag(_OCTETS, salt) + numbers))
    cipher = _tag(_SEQUENCE, _AES_256_CBC + _tag(_OCTETS, start))
    scheme = _tag(_SEQUENCE, _PBES2 + _tag(_SEQUENCE, derivation + cipher))
    der = _tag(_SEQUENCE, scheme + _tag(_OCTETS, secret))
    lines = textwrap.wrap(base64.b64encode(der).decode("ascii"), 64)
    return "\n".join((f"-----BEGIN {LABEL}-----", *lines, f"-----END {LABEL}-----", "")).encode("ascii")


def is_sealed(pem: bytes) -> bool:
    """Return whether a private key in PEM is encrypted."""
    return f"-----BEGIN {LABEL}-----".encode() in pem


def _tag(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(digits))) + digits + content

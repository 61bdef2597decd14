"""A certificate authority for the nodes of one organisation: for development, and for trees without a PKI.

    ca.pem, ca.key          the authority, made with the first certificate; ca.key never leaves the folder
    NAME.pem, NAME.key      one node: for its endpoints (server) and for its links to parents (client)
    crl.pem                 the certificates that were revoked, once there are any

Keys are P-256 and their files have mode 0600. The time is an argument. Commands import this module when they need it,
because `cryptography` takes 10 MiB of memory.
"""

import datetime
import ipaddress
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from interlock.crypto.signing import FileDamaged, FileUnusable, KeyFileError, write_draft, write_once

CA_CERTIFICATE: Final = "ca.pem"
CA_KEY: Final = "ca.key"
CRL: Final = "crl.pem"
CA_DAYS: Final = 3650
CRL_DAYS: Final = 365  # nothing renews it by itself, and without a current one every client is refused
BACKDATED: Final = datetime.timedelta(minutes=5)  # what the clocks of two machines may differ by
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RESERVED: Final = frozenset(("ca", "crl"))

T = TypeVar("T")


class Issued(msgspec.Struct, frozen=True):
    """A certificate that the authority has issued: the paths of its files, and when it expires."""

    certificate: Path
    key: Path
    authority: Path  # the CA's certificate
    authority_made: bool  # with this certificate, because there was none
    expires_at: float


class NameTaken(KeyFileError):
    """Error for issuing a certificate under a name that already has one."""


class DevelopmentAuthority:
    """A certificate authority (CA) whose key and certificates are files in one folder. Every method raises KeyFileError
    if a file cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def issue(
        self, name: str, dns: Sequence[str], addresses: Sequence[str], *, now: float, days: int, renew: bool = False
    ) -> Issued:
        """Issue a certificate for a node. `dns` are its host names, `addresses` its IP addresses. Raise NameTaken if
        `name` already has a certificate and `renew` is not set, and KeyFileError if the name is not allowed.
        """
        if not NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise KeyFileError(f"{name!r} is no name for a certificate: letters, digits, . _ and -, and not ca or crl")
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        if certificate.exists() and not renew:
            raise NameTaken(f"{certificate} is there already")
        authority_made = self._make_authority(now)
        ca, ca_key = self._authority()
        private_key, at = generate_private_key(SECP256R1()), _at(now)
        ends = min(at + datetime.timedelta(days=days), ca.not_valid_after_utc)
        names = [*map(x509.DNSName, dns), *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses)]
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        serial, issuer_key = x509.random_serial_number(), ca_key.public_key()
        node_certificate = (
            _certificate(_common_name(name), ca.subject, private_key, serial, at, ends, is_authority=False)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
            .sign(ca_key, SHA256())
        )
        _replace(key, _private(private_key), 0o600)
        _replace(certificate, node_certificate.public_bytes(Encoding.PEM), 0o644)
        authority, expires_at = self._folder / CA_CERTIFICATE, node_certificate.not_valid_after_utc.timestamp()
        return Issued(certificate, key, authority, authority_made, expires_at)

    def names_of(self, name: str) -> tuple[list[str], list[str]]:
        """Return the DNS names and IP addresses in the existing certificate of `name`. Both lists are empty if it has
        none.
        """
        path = self._folder / f"{name}.pem"
        if not NAME.fullmatch(name) or not path.exists():
            return [], []
        try:
            extension = _read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return [], []
        names = extension.value
        return names.get_values_for_type(x509.DNSName), list(map(str, names.get_values_for_type(x509.IPAddress)))

    def revoke(self, name: str, *, now: float) -> Path:
        """Add the certificate of `name` to the revocation list. Return the path of the list."""
        ca, ca_key = self._authority()
        certificate = _read_certificate(self._folder / f"{name}.pem")
        path, at = self._folder / CRL, _at(now)
        content = "a revocation list in PEM; restore it from a backup"
        before = _read(path, x509.load_pem_x509_crl, content) if path.exists() else ()
        builder = x509.CertificateRevocationListBuilder().issuer_name(ca.subject)
        builder = builder.last_update(at - BACKDATED).next_update(at + datetime.timedelta(days=CRL_DAYS))
        for revoked in before:
            if revoked.serial_number != certificate.serial_number:
                builder = builder.add_revoked_certificate(revoked)
        entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(at).build()
        revocation_list = builder.add_revoked_certificate(entry).sign(ca_key, SHA256())
        _replace(path, revocation_list.public_bytes(Encoding.PEM), 0o644)
        return path

    def _make_authority(self, now: float) -> bool:
        """Create the key and the certificate of the CA if they do not exist. Return whether they were created.

        The key is written first, because the certificate is useless without it.
        """
        certificate, key = self._folder / CA_CERTIFICATE, self._folder / CA_KEY
        if certificate.exists():
            return False
        if key.exists():
            raise FileDamaged(f"{key} exists without {certificate}; restore the one, or remove the other to start over")
        private_key = generate_private_key(SECP256R1())
        at = _at(now)
        # The serial number is part of the name, so that the authorities of two organisations are never confused.
        serial = x509.random_serial_number()
        name = _common_name(f"Interlock nodes {serial % 16**8:08x}")
        ends = at + datetime.timedelta(days=CA_DAYS)
        builder = _certificate(name, name, private_key, serial, at, ends, is_authority=True)
        authority_certificate = builder.sign(private_key, SHA256())
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_once(key, _private(private_key))
            write_once(certificate, authority_certificate.public_bytes(Encoding.PEM), 0o644)
        except OSError as error:
            raise FileUnusable(f"{self._folder} cannot be written: {error.strerror or error}") from None
        return True

    def _authority(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        path = self._folder / CA_KEY
        certificate = _read_certificate(self._folder / CA_CERTIFICATE)
        content = "a private key in PEM without a passphrase"
        key = _read(path, lambda data: load_pem_private_key(data, None), content)
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise FileDamaged(f"{path} is not the key of {self._folder / CA_CERTIFICATE}")
        return certificate, key


def _read(path: Path, parse: Callable[[bytes], T], content: str) -> T:
    """Read a file and return what `parse` makes of it. `content` says in error messages what the file should
    contain.
    """
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise FileUnusable(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError):
        raise FileDamaged(f"{path} does not hold {content}") from None


def _read_certificate(path: Path) -> x509.Certificate:
    return _read(path, x509.load_pem_x509_certificate, "a certificate in PEM")


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Replace a file atomically, so that readers see either the old or the new content."""
    try:
        write_draft(path, data, mode).replace(path)
    except OSError as error:
        raise FileUnusable(f"{path} cannot be written: {error.strerror or error}") from None


def _at(now: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(now), datetime.UTC)


def _private(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    serial: int,
    at: datetime.datetime,
    ends: datetime.datetime,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    """Return a certificate builder with the fields that the certificates of authorities and nodes share (RFC 5280
    4.2.1).
    """
    public, others = key.public_key(), ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        **dict.fromkeys((*others, "encipher_only", "decipher_only"), False),
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(at - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )

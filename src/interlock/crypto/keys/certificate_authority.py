"""A certificate authority for the nodes of one organisation: for development, and for trees without a PKI.

    ca.pem, ca.key          the authority, made with the first certificate; ca.key never leaves the folder
    NAME.pem, NAME.key      one node: for its endpoints (server) and for its links to parents (client)
    crl.pem                 the certificates that were revoked, once there are any

Keys are P-256 and 0600. Like `store.tokens`, this module draws random numbers, and takes the time as an argument.
"""

import datetime
import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.crypto.keys.signing import write_once
from interlock.store.ports import Damaged, FolderUnusable, StoreRefused

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_CERTIFICATE: Final = "ca.pem"
CA_KEY: Final = "ca.key"
CRL: Final = "crl.pem"
CA_DAYS: Final = 3650
CRL_DAYS: Final = 365  # nothing renews it by itself, and without a current one every client is refused
BACKDATED: Final = datetime.timedelta(minutes=5)  # what the clocks of two machines may differ by
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RESERVED: Final = frozenset(("ca", "crl"))


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    certificate: Path
    key: Path
    authority: Path  # the CA's certificate
    authority_made: bool
    expires_at: float


class NameTaken(StoreRefused):
    """There is a certificate of that name."""


class DevelopmentAuthority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def issue(
        self, name: str, dns: Sequence[str], addresses: Sequence[str], *, now: float, days: int, renew: bool = False
    ) -> Issued:
        """Issue a certificate for a node. `dns` are normalized host names, `addresses` are IP addresses. Raise
        StoreError on failure.
        """
        if not NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise StoreRefused(f"{name!r} is no name for a certificate: letters, digits, . _ and -, and not ca or crl")
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        if certificate.exists() and not renew:
            raise NameTaken(f"{certificate} is there already")
        authority_made = self._make_authority(now)
        ca, ca_key = self._authority()
        private_key = _new_key()
        node_certificate = _node_certificate(name, dns, addresses, private_key, ca, ca_key, _at(now), days)
        self._write(key, _private(private_key))
        self._write(certificate, _pem(node_certificate), 0o644)
        return Issued(
            certificate=certificate,
            key=key,
            authority=self._folder / CA_CERTIFICATE,
            authority_made=authority_made,
            expires_at=node_certificate.not_valid_after_utc.timestamp(),
        )

    def names_of(self, name: str) -> tuple[list[str], list[str]]:
        """Return the DNS names and addresses of the existing certificate, or empty lists if there is none. Raise
        StoreError on failure.
        """
        from cryptography import x509

        path = self._folder / f"{name}.pem"
        if not NAME.fullmatch(name) or not path.exists():
            return [], []
        try:
            alternative_names = (
                self._certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            )
        except x509.ExtensionNotFound:
            return [], []
        return alternative_names.get_values_for_type(x509.DNSName), list(
            map(str, alternative_names.get_values_for_type(x509.IPAddress))
        )

    def revoke(self, name: str, *, now: float) -> Path:
        """Add a certificate to the revocation list and return the path of the list. Raise StoreError on failure."""
        from cryptography import x509
        from cryptography.hazmat.primitives.hashes import SHA256

        ca, ca_key = self._authority()
        certificate = self._certificate(self._folder / f"{name}.pem")
        before = self._revoked_certificates()
        at = _at(now)
        builder = x509.CertificateRevocationListBuilder().issuer_name(ca.subject)
        builder = builder.last_update(at - BACKDATED).next_update(at + datetime.timedelta(days=CRL_DAYS))
        for revoked in before:
            if revoked.serial_number != certificate.serial_number:
                builder = builder.add_revoked_certificate(revoked)
        entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(at).build()
        revocation_list = builder.add_revoked_certificate(entry).sign(ca_key, SHA256())
        from cryptography.hazmat.primitives.serialization import Encoding

        self._write(self._folder / CRL, revocation_list.public_bytes(Encoding.PEM), 0o644)
        return self._folder / CRL

    def _make_authority(self, now: float) -> bool:
        """Create the authority unless it exists, and return whether it was created. Its key is written first: the
        certificate is useless without it.
        """
        certificate, key = self._folder / CA_CERTIFICATE, self._folder / CA_KEY
        if certificate.exists():
            return False
        if key.exists():
            raise Damaged(f"{key} is there without {certificate}; restore the one, or remove the other to begin anew")
        private_key = _new_key()
        authority_certificate = _authority_certificate(private_key, _at(now))
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_once(key, _private(private_key))
            write_once(certificate, _pem(authority_certificate), 0o644)
        except OSError as error:
            raise FolderUnusable(f"{self._folder} cannot be written: {error.strerror or error}") from None
        return True

    def _authority(self) -> "tuple[x509.Certificate, EllipticCurvePrivateKey]":
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        path = self._folder / CA_KEY
        certificate = self._certificate(self._folder / CA_CERTIFICATE)
        try:
            key = load_pem_private_key(path.read_bytes(), None)
        except OSError as error:
            raise FolderUnusable(f"{path} cannot be read: {error.strerror or error}") from None
        except (ValueError, TypeError):
            raise Damaged(f"{path} does not hold a private key in PEM without a passphrase") from None
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise Damaged(f"{path} is not the key of {self._folder / CA_CERTIFICATE}")
        return certificate, key

    def _certificate(self, path: Path) -> "x509.Certificate":
        from cryptography import x509

        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except OSError as error:
            raise FolderUnusable(f"{path} cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise Damaged(f"{path} does not hold a certificate in PEM") from None

    def _revoked_certificates(self) -> "list[x509.RevokedCertificate]":
        from cryptography import x509

        path = self._folder / CRL
        try:
            return list(x509.load_pem_x509_crl(path.read_bytes()))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FolderUnusable(f"{path} cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise Damaged(f"{path} does not hold a revocation list in PEM; restore it from a backup") from None

    def _write(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        """Whole or not at all."""
        try:
            handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # 0600
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(handle, mode)
                os.fsync(handle)
            Path(draft).replace(path)
        except OSError as error:
            raise FolderUnusable(f"{path} cannot be written: {error.strerror or error}") from None


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _at(now: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(now), datetime.UTC)


def _private(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _authority_certificate(key: "EllipticCurvePrivateKey", at: datetime.datetime) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import NameOID

    # A name of its own, so that the authorities of two organisations are never taken for one.
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Interlock nodes {serial % 16**8:08x}")])
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(at - BACKDATED)
        .not_valid_after(at + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, SHA256())
    )


def _node_certificate(
    name: str,
    dns: Sequence[str],
    addresses: Sequence[str],
    key: "EllipticCurvePrivateKey",
    ca: "x509.Certificate",
    ca_key: "EllipticCurvePrivateKey",
    at: datetime.datetime,
    days: int,
) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    ends = min(at + datetime.timedelta(days=days), ca.not_valid_after_utc)
    names = [*map(x509.DNSName, dns), *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses)]
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(ca.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, SHA256())
    )


def _usage(*, certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )

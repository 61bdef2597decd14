"""Client certificates of subservers: the names they contain, and whether they are revoked (MCP-AX 4.2, 10.4).

In: a certificate as TLS verified it, or as a trusted proxy passed it on, which is verified here. Out: its DNS names, or
the refusal. The chain ends in node.client_ca. With node.crl, a certificate counts only while a current list of its own
issuer does not name it: a list that is missing, too old or unreadable admits none. The list is read again when its file
changes.
"""

import base64
import binascii
import datetime
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from interlock.approvals.trust.registrant import ClientCertificate
from interlock.ax.protocol.registration.authority import unverified_refusal
from interlock.core.clock import Clock
from interlock.core.part import CertificatesInvalid
from interlock.wire.refusal import Refusal

log = logging.getLogger("interlock.ax")

FILE_BYTES_MAX: Final = 16 * 1024 * 1024  # a list of a hundred thousand certificates takes 4 MiB
HEADER: Final = b"client-cert"  # RFC 9440 2.2
CHAIN_HEADER: Final = b"client-cert-chain"  # RFC 9440 2.3
CHAIN_MAX: Final = 8
CERTIFICATE_BYTES_MAX: Final = 32 * 1024
_BINARY: Final = re.compile(rb":([A-Za-z0-9+/=]*):")  # RFC 8941 3.3.5
_ESCAPED_PEM: Final = b"-----BEGIN%20CERTIFICATE-----"  # how nginx passes one on: $ssl_client_escaped_cert


class Certificates:
    def __init__(self, client_ca: Path, crl: Path | None, clock: Clock) -> None:
        """Read the CA certificates and the revocation lists. Raise CertificatesInvalid if they cannot be used."""
        self._clock = clock
        self._authorities = _authorities(client_ca)
        self._crl = crl
        # With the id of the CA that signed each.
        self._lists: tuple[tuple[bytes, x509.CertificateRevocationList], ...] = ()
        self._read_as: tuple[int, int] | None = None  # how the file looked when it was read
        self._trouble: str | None = None
        if crl is not None:
            self._read(crl)

    def of_link(self, der: bytes) -> ClientCertificate | Refusal:
        """Return the facts of a client certificate that TLS has verified, or a refusal if it is unreadable or not
        admitted.
        """
        try:
            certificate = x509.load_der_x509_certificate(der)
        except ValueError:
            return _MALFORMED
        return self._certificate_facts(certificate)

    def of_header(self, headers: Sequence[tuple[bytes, bytes]]) -> ClientCertificate | Refusal | None:
        """Return the facts of a client certificate that a trusted proxy forwarded, or None if it forwarded none. Return
        a refusal if the certificate is unreadable or not admitted.
        """
        values = [value for name, value in headers if name == HEADER and value]
        if not values:
            return None
        chain = b",".join(value for name, value in headers if name == CHAIN_HEADER)
        try:
            if len(values) > 1:
                raise ValueError("two certificates")
            if len(values[0]) > CERTIFICATE_BYTES_MAX:
                raise ValueError("too large")
            is_pem = values[0].startswith(_ESCAPED_PEM)
            leaf = x509.load_pem_x509_certificate(unquote_to_bytes(values[0])) if is_pem else _binary(values[0])
            above = [_binary(item) for item in chain.split(b",")] if chain.strip() else []
        except (ValueError, binascii.Error):
            return _MALFORMED
        if len(above) > CHAIN_MAX:
            return _MALFORMED
        policy = PolicyBuilder().store(Store(self._authorities)).time(self._now())
        try:
            policy.build_client_verifier().verify(leaf, above)
        except (VerificationError, ValueError, UnsupportedAlgorithm):
            return _UNTRUSTED
        return self._certificate_facts(leaf)

    def stands(self, shown: ClientCertificate) -> bool:
        """Return whether a link that began with this certificate may continue: the certificate has not expired, and is
        not known to be revoked.
        """
        return self._clock.wall() < shown.expires_at and self._revocation_refusal(shown) is not _REVOKED

    def _certificate_facts(self, certificate: x509.Certificate) -> ClientCertificate | Refusal:
        try:
            alternative_names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = tuple(alternative_names.get_values_for_type(x509.DNSName))
        except x509.ExtensionNotFound:
            names = ()
        except ValueError:
            return _MALFORMED
        expires_at, serial = certificate.not_valid_after_utc.timestamp(), certificate.serial_number
        # Two CAs may have the same name, and the list of one says nothing about certificates of the other.
        issuers = (_authority_id(authority) for authority in self._authorities if _is_issued_by(certificate, authority))
        issuer = next(issuers, certificate.issuer.public_bytes())
        shown = ClientCertificate(names=names, issuer=issuer, serial=serial, expires_at=expires_at)
        return self._revocation_refusal(shown) or shown

    def _revocation_refusal(self, shown: ClientCertificate) -> Refusal | None:
        if self._crl is None:
            return None
        try:
            self._read(self._crl)
        except CertificatesInvalid as invalid:
            return self._cannot_tell(str(invalid))
        now = self._now()
        of_issuer = [revocations for issuer, revocations in self._lists if issuer == shown.issuer]
        if any(revocations.get_revoked_certificate_by_serial_number(shown.serial) for revocations in of_issuer):
            return _REVOKED
        ends = [revocations.next_update_utc for revocations in of_issuer]
        if not any(end is not None and end > now for end in ends):
            why = "is too old" if of_issuer else "has nothing of the issuer of a certificate that was shown"
            return self._cannot_tell(f"{self._crl} (node.crl) {why}")
        self._trouble = None
        return None

    def _cannot_tell(self, why: str) -> Refusal:
        """Return the refusal of a certificate whose revocation status is unknown. Log each cause only once, because
        open links are checked every second.
        """
        if why != self._trouble:
            self._trouble = why
            log.warning("%s; until that is corrected, no client certificate counts", why)
        return _UNKNOWN

    def _read(self, crl: Path) -> None:
        """Read the revocation lists again if the file changed."""
        try:
            status = crl.stat()
            looks = (status.st_mtime_ns, status.st_size)
            if looks == self._read_as:
                return
            self._read_as, self._lists = None, ()
            lists = []
            for revocations in _lists(_text(crl), crl):
                issuers = [authority for authority in self._authorities if authority.subject == revocations.issuer]
                signer = next((authority for authority in issuers if _is_signed_by(revocations, authority)), None)
                if signer is None:
                    raise CertificatesInvalid(f"{crl} (node.crl) holds a list that no CA of node.client_ca has signed")
                lists.append((_authority_id(signer), revocations))
            self._lists = tuple(lists)
        except OSError as error:
            self._read_as = None
            raise CertificatesInvalid(f"{crl} (node.crl) cannot be read: {error.strerror or error}") from None
        self._read_as = looks

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._clock.wall(), datetime.UTC)


_MALFORMED: Final = unverified_refusal("certificate", "the client certificate cannot be read")
_UNTRUSTED: Final = unverified_refusal(
    "certificate_untrusted",
    "the client certificate is not in date, not for clients, without a name, or of a CA that is not trusted here",
)
_REVOKED: Final = unverified_refusal("certificate_revoked", "the client certificate was revoked")
_UNKNOWN: Final = unverified_refusal(
    "revocation_unknown", "whether the client certificate was revoked cannot be told now"
)


def _is_signed_by(revocations: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return revocations.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, UnsupportedAlgorithm):  # a kind of key that signs no lists
        return False


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _authority_id(authority: x509.Certificate) -> bytes:
    """Return the name and the key of a CA, which stay the same when its own certificate is renewed."""
    key = authority.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return authority.subject.public_bytes() + key


def _authorities(path: Path) -> list[x509.Certificate]:
    try:
        certificates = x509.load_pem_x509_certificates(_text(path))
    except OSError as error:
        raise CertificatesInvalid(f"{path} (node.client_ca) cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise CertificatesInvalid(f"{path} (node.client_ca) holds no certificates in PEM") from None
    for certificate in certificates:
        try:
            constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        except (x509.ExtensionNotFound, ValueError):
            constraints = None
        if constraints is None or not constraints.ca:
            raise CertificatesInvalid(f"{path} (node.client_ca) holds a certificate that is no CA's; give the CA's")
    return certificates


def _lists(text: bytes, path: Path) -> list[x509.CertificateRevocationList]:
    end = b"-----END X509 CRL-----"
    blocks = [block + end for block in text.split(end)[:-1]]
    try:
        lists = [x509.load_pem_x509_crl(block) for block in blocks]
    except ValueError:
        lists = []
    if not lists:
        raise CertificatesInvalid(f"{path} (node.crl) holds no revocation list in PEM")
    return lists


def _text(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise CertificatesInvalid(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return text


def _binary(value: bytes) -> x509.Certificate:
    match = _BINARY.fullmatch(value.strip())
    if match is None:
        raise ValueError("no byte sequence")
    return x509.load_der_x509_certificate(base64.b64decode(match[1], validate=True))

"""Client certificates with any defect, made without code of the product."""

import base64
import datetime
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Certificate:
    def __init__(self, path: Path, made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.made, self.private = made, key
        self.der = made.public_bytes(serialization.Encoding.DER)
        self.pem, self.key = path.with_suffix(".pem"), path.with_suffix(".key")
        self.pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    @property
    def header(self) -> str:
        """RFC 9440."""
        return f":{base64.b64encode(self.der).decode()}:"

    @property
    def escaped(self) -> str:
        """As nginx passes one on."""
        return urllib.parse.quote(self.pem.read_text(), safe="/+=-")


class Issuer:
    """A CA, or (with `above`) a certificate that pretends to be one or is one."""

    def __init__(self, folder: Path, name: str = "house", above: "Issuer | None" = None, *, ca: bool = True) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=ca, path_length=None)
        signs = above or self
        self.certificate = Certificate(
            folder / f"issuer-{name}",
            _built(self.name, self._key, signs.name, signs._key, [(basic, True), (_usage(ca), True)], 30 * DAY),
            self._key,
        )
        self.pem = self.certificate.pem

    def issue(
        self,
        name: str,
        dns: Sequence[str] = (),
        *,
        others: Sequence[x509.GeneralName] = (),
        starts: datetime.timedelta = -DAY,
        lasts: datetime.timedelta = 2 * DAY,
        usage: Sequence[x509.ObjectIdentifier] = BOTH,
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        extensions: list[tuple[Any, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(False), True),
            (x509.ExtendedKeyUsage(list(usage)), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ]
        if dns or others:
            names = [*(x509.DNSName(one) for one in dns), *others]
            extensions.append((x509.SubjectAlternativeName(names), False))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        made = _built(subject, key, self.name, self._key, extensions, lasts, starts)
        return Certificate(self.folder / f"leaf-{len(list(self.folder.iterdir()))}", made, key)

    def revoke(self, path: Path, *revoked: Certificate, ends: datetime.timedelta = DAY) -> None:
        """Write the list that says so."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(_now() - 2 * DAY).next_update(_now() + ends)
        for one in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(one.made.serial_number).revocation_date(_now())
            builder = builder.add_revoked_certificate(entry.build())
        made = builder.sign(self._key, hashes.SHA256())
        draft = path.with_suffix(".draft")
        draft.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        draft.replace(path)


def _built(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    extensions: Sequence[tuple[Any, bool]],
    lasts: datetime.timedelta,
    starts: datetime.timedelta = -DAY,
) -> x509.Certificate:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(_now() + starts).not_valid_after(_now() + starts + lasts)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, hashes.SHA256())


def _usage(ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(not ca, False, False, False, False, ca, ca, False, False)

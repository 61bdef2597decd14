"""A certificate authority that lives as long as one test run, and contexts for servers on 127.0.0.1."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        self.trusted = folder / "authority.pem"
        own = self._signed(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        self.trusted.write_bytes(own)
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.certificate.write_bytes(self._signed(x509.Name([]), key.public_key(), names))
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def context(self, newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        context.maximum_version = newest
        return context

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().issuer_name(self._name).subject_name(subject).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY)
        signed = builder.add_extension(extension, critical=True).sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

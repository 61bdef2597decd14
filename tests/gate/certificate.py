"""A certificate for one name, signed by itself."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


def certify(folder: Path, name: str) -> tuple[Path, Path]:
    """The certificate's file, and its key's."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "certificate.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return files

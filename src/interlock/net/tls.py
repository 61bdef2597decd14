"""How certificates are checked: of other nodes, and of servers that are dialled."""

import ssl
from pathlib import Path


def tls_1_3(ca_file: str | None = None) -> ssl.SSLContext:
    """Certificates and names are checked; nothing older than TLS 1.3 (AX-10.4-1)."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def trusting_context(ca_file: Path) -> ssl.SSLContext:
    """What the system trusts, and these authorities besides. Blocking. Raises OSError (ssl.SSLError is one)."""
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return context

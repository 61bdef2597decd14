"""How certificates are checked: of other nodes, and of servers that are dialled."""

import ssl
from pathlib import Path


def tls_1_3(ca_file: str | None = None) -> ssl.SSLContext:
    """Return a context that checks certificates and names and accepts nothing older than TLS 1.3 (AX-10.4-1)."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def trusting_context(ca_file: Path) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities and those in `ca_file`. This blocks. Raise OSError on
    failure.
    """
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return context

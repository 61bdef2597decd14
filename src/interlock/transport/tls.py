"""How a link between nodes is encrypted."""

import ssl


def tls_1_3(ca_file: str | None = None) -> ssl.SSLContext:
    """Certificates and names are checked; nothing older than TLS 1.3 (AX-10.4-1)."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context

"""TLS contexts for endpoints, for links to parents and for servers that are dialled.

Certificates, their keys, and the CAs of parents are read here once before anything listens or dials. A file that cannot
be used raises `TlsInvalid`, which names it and stops the start, so that no node runs with half of its protection. Links
to parents accept nothing older than TLS 1.3 (AX-10.4-1).
"""

import ssl
from pathlib import Path
from typing import Any

from interlock.config.plan import NodePlan, ParentPlan, Plan
from interlock.core.part import TlsInvalid


def listener_options(node: NodePlan, *, public: bool) -> dict[str, Any]:
    """Return uvicorn's TLS options for an endpoint. The public endpoint accepts client certificates.

    Raise TlsInvalid if the certificate or its key cannot be used. The file of `client_ca` is not checked here.
    """
    if node.tls_cert is None or node.tls_key is None:
        return {}
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), node.tls_cert, node.tls_key, "node")
    options: dict[str, Any] = {"ssl_certfile": node.tls_cert, "ssl_keyfile": node.tls_key}
    if public and node.client_ca is not None:  # a client may show a certificate and need not
        options |= {"ssl_ca_certs": node.client_ca, "ssl_cert_reqs": ssl.CERT_OPTIONAL}
    return options


def parent_context(parent: ParentPlan) -> ssl.SSLContext:
    """Return the TLS context for the link to a parent, with the CAs and the certificate configured for that parent.

    Raise TlsInvalid if one of these files cannot be used.
    """

    try:
        context = tls_1_3(str(parent.ca_file) if parent.ca_file is not None else None)
    except ssl.SSLError:
        raise TlsInvalid(f"{parent.ca_file} (ca_file of {parent.url}) holds no CA certificates in PEM") from None
    except OSError as error:
        why = error.strerror or error
        raise TlsInvalid(f"{parent.ca_file} (ca_file of {parent.url}) cannot be read: {why}") from None
    if parent.tls_cert is not None and parent.tls_key is not None:
        _load(context, parent.tls_cert, parent.tls_key, f"parent {parent.url}")
    return context


def check_parents(plan: Plan) -> None:
    """Check the TLS files of all parents. Raise TlsInvalid if one cannot be used."""
    for parent in plan.ax.parents:
        if parent.url.startswith("wss:"):
            parent_context(parent)


def _load(context: ssl.SSLContext, certificate: Path, key: Path, whose: str) -> None:
    """Load a certificate and its key into `context`. Raise TlsInvalid if they cannot be used.

    `whose` describes the purpose of the certificate in the error message.
    """
    for path in (certificate, key):
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise TlsInvalid(f"{path} of {whose} cannot be read: {error.strerror or error}") from None
    try:
        # Without an empty passphrase OpenSSL would prompt at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError):
        raise TlsInvalid(
            f"{certificate} and {key} of {whose} are not a certificate and its own key in PEM, without a passphrase"
        ) from None


def tls_1_3(ca_file: str | None = None) -> ssl.SSLContext:
    """Return a context that checks certificates and names and accepts nothing older than TLS 1.3 (AX-10.4-1)."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def trusting_context(ca_file: Path) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities and those in `ca_file`. This call blocks.

    Raise OSError if the file cannot be read or used.
    """
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return context

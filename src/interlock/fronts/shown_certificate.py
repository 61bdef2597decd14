"""The client certificate that a request shows: to this node itself, or to a proxy that the node trusts."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from interlock.approvals.trust.registrant import ClientCertificate
from interlock.fronts.exchange import Head
from interlock.fronts.trusted_proxies import TrustedProxies, address_of
from interlock.wire.refusal import Refusal

if TYPE_CHECKING:
    from interlock.approvals.trust.client_certificates import Certificates


def maybe_shown(
    certificates: "Certificates | None", proxies: TrustedProxies, scope: MutableMapping[str, Any], head: Head
) -> ClientCertificate | Refusal | None:
    """Return the client's certificate, why it is refused, or None if the client presented none.

    The certificate of a proxy is not that of its client, and a header counts only if a trusted proxy wrote it.
    """
    if certificates is None:
        return None
    peer = address_of(scope["client"][0] if scope["client"] else None)
    if proxies.trusts(peer):
        return certificates.of_header(head.raw_headers)
    der = scope.get("state", {}).get("certificate")
    return certificates.of_link(der) if der is not None else None

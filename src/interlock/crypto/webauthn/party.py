"""The relying party of WebAuthn: the name passkeys are made for, and the one origin whose pages may use them.

A browser makes and uses passkeys only for a name and never for an address, and only over https or on the machine
itself. So a node at 127.0.0.1 is `localhost` to its passkeys, at the same port.
"""

import hashlib
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.net.protocol.address_scope import LOCALHOST, LOOPBACK_ADDRESSES, is_localhost
from interlock.net.protocol.dns_name import maybe_dns_name

_PORTS: Final = {"https": 443, "http": 80}


class Party(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    id: str
    origin: str  # as a browser writes it

    @property
    def is_local(self) -> bool:
        """Reached by a name that means this machine, without anything that proves which program answers."""
        return self.origin.startswith("http://")

    @cached_property
    def id_hash(self) -> bytes:
        return hashlib.sha256(self.id.encode()).digest()


def find_relying_party(url: str) -> Party | None:
    """Return the relying party of the operator endpoint at this URL, or None if browsers do not use passkeys there."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None
    name = LOCALHOST if host in LOOPBACK_ADDRESSES else maybe_dns_name(host)
    if name is None or scheme not in _PORTS:
        return None
    if scheme == "http" and not is_localhost(name):
        return None
    where = name if port in (None, _PORTS[scheme]) else f"{name}:{port}"
    return Party(id=name, origin=f"{scheme}://{where}")

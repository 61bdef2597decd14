"""DNS names as peers write them."""

import re
from typing import Final

NAME_OCTETS_MAX: Final = 253  # RFC 1035 2.3.4, without the root
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")  # as the last label it makes the name an IPv4 address


def maybe_dns_name(text: str) -> str | None:
    """Return the normalized host name, or None for wildcards, addresses, underscores and non-ASCII names."""
    name = text.removesuffix(".")
    if not name.isascii() or not 0 < len(name) <= NAME_OCTETS_MAX:
        return None
    labels = (name := name.lower()).split(".")
    if not all(map(_LABEL.fullmatch, labels)) or _NUMBER.fullmatch(labels[-1]):
        return None
    return name

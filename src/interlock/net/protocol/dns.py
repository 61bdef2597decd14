"""DNS names as peers write them, and queries for the address of a host with their answers (RFC 1035, 4.1).

Nothing is looked up here. A query comes in as one datagram with one question; its answer is a datagram that repeats the
question. The name server inside a sandbox is the user of these (`net.egress_proxy`).
"""

import ipaddress
import re
import struct
from typing import Final

import msgspec

QUERY_BYTES_MAX: Final = 512  # RFC 1035, 4.2.1
ADDRESS: Final = 1  # A
ADDRESS_6: Final = 28  # AAAA
TTL_S: Final = 30

_HEAD: Final = struct.Struct(">6H")
_INTERNET: Final = 1
_IS_ANSWER: Final = 0x8000
_OPCODE: Final = 0x7800
_WANTS_RECURSION: Final = 0x0100
_HAS_RECURSION: Final = 0x0080
_NO_SUCH_NAME: Final = 3
_SAME_NAME: Final = 0xC00C  # the name at offset 12, where the question begins
_LABEL: Final = re.compile(rb"[a-z0-9_](?:[a-z0-9_-]{0,62})", re.ASCII)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    flags: int
    name: str  # in small letters, without the last dot
    kind: int
    question: bytes  # as it was asked; the answer repeats it

    @property
    def wants_address(self) -> bool:
        return self.kind in (ADDRESS, ADDRESS_6)


def read_query_untrusted(data: bytes) -> Query | None:
    """Parse a DNS query, or return None if it is not a plain question about a host name."""
    if not _HEAD.size < len(data) <= QUERY_BYTES_MAX:
        return None
    number, flags, questions, *_ = _HEAD.unpack_from(data)
    if flags & (_IS_ANSWER | _OPCODE) or questions != 1:
        return None
    labels, at = [], _HEAD.size
    while at < len(data) and (size := data[at]):
        label = data[at + 1 : at + 1 + size].lower()
        if len(label) != size or not _LABEL.fullmatch(label):  # a size above 63 is a pointer, which no question needs
            return None
        labels.append(label)
        at += 1 + size
    end = at + 5
    if not labels or len(data) < end:
        return None
    kind, class_ = struct.unpack_from(">2H", data, at + 1)
    if class_ != _INTERNET:
        return None
    name = b".".join(labels).decode("ascii")
    return Query(id=number, flags=flags, name=name, kind=kind, question=data[_HEAD.size : end])


def answer_query(query: Query, address: str | None) -> bytes:
    """Build the answer to a query. `address` is the IPv4 address of the name; None answers that the name does not
    exist.
    """
    record = b""
    if address is not None and query.kind == ADDRESS:
        packed = ipaddress.IPv4Address(address).packed
        record = struct.pack(">3HIH", _SAME_NAME, ADDRESS, _INTERNET, TTL_S, len(packed)) + packed
    flags = _IS_ANSWER | _HAS_RECURSION | (query.flags & _WANTS_RECURSION) | (0 if address else _NO_SUCH_NAME)
    return _HEAD.pack(query.id, flags, 1, bool(record), 0, 0) + query.question + record


NAME_OCTETS_MAX: Final = 253  # RFC 1035 2.3.4, without the root
_HOST_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMERIC_LABEL: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")  # as the last label it makes the name an IPv4 address


def find_dns_name(text: str) -> str | None:
    """Return the normalized host name, or None for wildcards, addresses, underscores and non-ASCII names."""
    name = text.removesuffix(".")
    if not name.isascii() or not 0 < len(name) <= NAME_OCTETS_MAX:
        return None
    labels = (name := name.lower()).split(".")
    if not all(map(_HOST_LABEL.fullmatch, labels)) or _NUMERIC_LABEL.fullmatch(labels[-1]):
        return None
    return name

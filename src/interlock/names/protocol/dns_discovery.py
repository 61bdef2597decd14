"""MCP servers of a domain as its DNS records name them: the TXT records at `_mcp.<domain>` (REG-7.1-4).

Several proposals share the label and the version tag. Each is read and named; a client can only connect to records with
an https address of a server. A record proves neither who runs the server nor who may change a registered name.
"""

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.net.protocol.dns import find_dns_name

LABEL: Final = "_mcp"
VERSION: Final = "mcp1"
RECORD_BYTES_MAX: Final = 2048
FIELDS_MAX: Final = 32
URL_CHARS_MAX: Final = 1024

# Which field has the address, and what the record is then called. The first is the draft's own.
_DIALECTS: Final = {
    "url": "draft-morrison-mcp-dns-discovery",
    "src": "draft-serra-mcp-discovery-uri",
    "endpoint": "MCPLookup",
    "registry": "registry pointer",
    "mcp": "alter SDK",
}


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A DNS record that names an MCP server. `problem` says why no client can connect to the server; it is empty if
    clients can.
    """

    dialect: str
    url: str | None = None
    fields: Mapping[str, str] = {}
    problem: str = ""


def record_name(domain: str) -> str | None:
    """Return the DNS name at which a domain's records are stored. Return None if the text is not a domain name with at
    least two labels.
    """
    name = domain.strip().rstrip(".").lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    dns_name = find_dns_name(name)
    return f"{LABEL}.{dns_name}" if dns_name is not None and "." in dns_name else None


def read_records_untrusted(records: Iterable[bytes]) -> tuple[ServerRecord, ...]:
    """Read the TXT records of a domain that name MCP servers. Each item has the joined strings of one record. Records
    of other services are skipped.
    """

    def priority(record: ServerRecord) -> tuple[bool, int]:
        text = record.fields.get("priority", "")
        return bool(record.problem), int(text) if text.isdecimal() and len(text) < 6 else 0

    return tuple(sorted(filter(None, map(_read, records)), key=priority))


def _read(record: bytes) -> ServerRecord | None:
    """Read one DNS record. Return None if it is not about MCP."""
    if len(record) > RECORD_BYTES_MAX:
        return ServerRecord(dialect="unknown", problem=f"it has more than {RECORD_BYTES_MAX} bytes")
    try:
        text = record.decode("utf-8")
    except UnicodeDecodeError:
        return ServerRecord(dialect="unknown", problem="it is no UTF-8 text")
    if not text.isprintable():
        return ServerRecord(dialect="unknown", problem="it has control characters")
    fields = _fields(text)
    if fields is None:
        return ServerRecord(dialect="unknown", problem=f"it has a field twice, or more than {FIELDS_MAX}")
    has_version = fields.get("v") == VERSION
    member = next((each for each in _DIALECTS if each in fields and (has_version or each == "mcp")), None)
    if member is None:
        if not has_version:
            return None
        return ServerRecord(dialect="unknown", fields=fields, problem="it names no address")
    url = fields[member]
    problem = "it leads to a registry, not to a server" if member == "registry" else _url_problem(url)
    return ServerRecord(dialect=_DIALECTS[member], url=url, fields=fields, problem=problem)


def _fields(text: str) -> dict[str, str] | None:
    """Split a record into its fields. They are separated by semicolons, or in one dialect by spaces. Each field is
    split at its first `=`. Return None if a field is there twice, or if there are more than FIELDS_MAX.
    """
    parts = text.split(";") if ";" in text else text.split()
    fields: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.strip().partition("=")
        if not equals:
            continue
        name = name.strip().lower()
        if name in fields or len(fields) >= FIELDS_MAX:
            return None
        fields[name] = value.strip()
    return fields


def _url_problem(url: str) -> str:
    """Return why a client should not connect to a URL, or an empty text if it may."""
    if len(url) > URL_CHARS_MAX:
        return f"its address has more than {URL_CHARS_MAX} characters"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises ValueError for a port that is no number)
    except ValueError:
        return "its address is no URL"
    if parts.scheme != "https":
        return "its address is not https"
    if "@" in parts.netloc:
        return "its address has a name or a password in it"
    if not parts.hostname:
        return "its address has no host"
    if parts.fragment:
        return "its address has a fragment"
    return ""

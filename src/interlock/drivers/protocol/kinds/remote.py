"""Servers of kind remote: a server at an address, which the node dials and never installs or starts."""

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.files.schemas.universal import STRING_MAP, STRINGS, closed_object
from interlock.drivers.protocol.kinds.server import TEXT, Confinement, JsonObject, Server, Transport, refuse_plaintext
from interlock.drivers.protocol.problems import FileFindings
from interlock.net.protocol.address_scope import is_loopback

_URL = re.compile(r"[!-~]+")
_AUTH = {
    **closed_object(
        ["type"],
        type={"enum": ["none", "bearer", "header", "oauth", "mtls"]},
        secret=TEXT,
        header=TEXT,
        scopes=STRINGS,
        client_id=TEXT,
    ),
    "allOf": [
        {
            "if": {"properties": {"type": {"enum": ["bearer", "header"]}}, "required": ["type"]},
            "then": {"required": ["secret"]},
        },
        {
            "if": {"properties": {"type": {"const": "header"}}, "required": ["type"]},
            "then": {"required": ["header"]},
        },
    ],
}


class RemoteAuth(msgspec.Struct, frozen=True, kw_only=True):
    """The block server.auth: how the node proves to a remote server that it may use it."""

    type: Literal["none", "bearer", "header", "oauth", "mtls"]
    secret: str | None = None
    header: str | None = None
    scopes: tuple[str, ...] = ()
    client_id: str | None = None


class Remote(Server, frozen=True, kw_only=True, tag="remote"):
    kind: ClassVar[str] = "remote"
    keys: ClassVar[tuple[str, ...]] = ("url", "headers", "query", "auth")
    transports: ClassVar[tuple[Transport, ...]] = ("http", "sse")
    confinement: ClassVar[Confinement] = "elsewhere"
    schema: ClassVar[dict[str, Any]] = {"headers": STRING_MAP, "query": STRING_MAP, "auth": _AUTH}

    url: str
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    auth: RemoteAuth | None = None

    @classmethod
    def read(
        cls, block: JsonObject, transport: str, findings: FileFindings, insecure_hosts: Collection[str]
    ) -> Self | None:
        url: str = block["url"]
        try:
            parts = urlsplit(url)
            host, has_credentials = parts.hostname, "@" in parts.netloc
            # Reading the port raises ValueError if it is not one.
            _ = parts.port
        except ValueError:
            host, has_credentials = None, False
            parts = urlsplit("")
        if has_credentials:  # AIP-server-7
            refuse_plaintext(findings, "/server/url", "url")
        elif parts.scheme not in {"http", "https"} or not host or not _URL.fullmatch(url) or "#" in url:  # AIP-server-7
            findings.say(
                "/server/url",
                "url_invalid",
                "this is not the address of a server",
                "write https://host/path, without a fragment",
            )
        elif parts.scheme == "http" and not is_loopback(host):  # AIP-security-10
            findings.say(
                "/server/url",
                "insecure_url",
                "this address is not encrypted",
                "write https://, or let the operator name the host in drivers.insecure_hosts",
                "warning" if host in insecure_hosts else "error",
            )
        return msgspec.convert(block, cls)

    @property
    def address(self) -> str | None:
        return self.url

    @property
    def source(self) -> str | None:
        return urlsplit(self.url).hostname

    @property
    def accepts_oauth(self) -> bool:
        return self.auth is None or self.auth.type in {"oauth", "none"}

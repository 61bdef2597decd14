"""Kinds of configuration values that name a place on a network, or a key: addresses, URLs, origins, passkeys.

Each class reads one kind of value (`value_types.ParsedText`) and refuses with a message that says what to write
instead. Values are put into the form in which they are compared later: hosts in lower case, origins as a browser sends
them, NATS servers with their port. An issuer is kept to the letter, because issuers are compared as strings. A message
never repeats a URL, which may hold a secret.
"""

import ipaddress
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.ax.protocol.registration.authority import maybe_authority
from interlock.config.problems import WRONG, At, WrongValue, quoted_word
from interlock.config.value_types import UNSET, ParsedText, Text, ValueType, expand, read_text, resolve
from interlock.credentials.protocol.resource import find_url_parts, is_protected
from interlock.crypto.jose import PRIVATE, BadKey, find_pem_label, is_key_text, read_key_untrusted
from interlock.crypto.webauthn import read_passkey_untrusted
from interlock.net.protocol.address_scope import UNSPECIFIED_HOSTS, is_loopback
from interlock.net.protocol.dns import find_dns_name

_ADDRESS = re.compile(r"(?:\[([0-9A-Za-z:.%_-]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})", re.ASCII)
_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.ASCII | re.IGNORECASE)
_ORIGIN = r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s]+"
UNSET_URL: Final = f"https://{UNSET}.invalid/"  # of a server that is not started
_URL = r"[hH][tT][tT][pP][sS]?://[!-~]+"
_NATS_URL = r"(?:nats|tls)://[!-~]+"
NATS_PORT: Final = 4222
_VISIBLE: Final = r"[!-~]+"
_SOCKET_URL: Final = r"wss?://[!-~]+"
_PORT_MAX: Final = 65535
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_FORMS: Final = "write ed25519:BASE64, a JWK, a PEM block with PUBLIC KEY, or the name of a file with one of them"
_EXAMPLE: Final = 'write "127.0.0.1:7411"'


class Address(msgspec.Struct, frozen=True):
    """A host and a port at which the node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def collide(first: Address, second: Address) -> bool:
    """Return whether two addresses to listen at would use the same port of the same host.

    Port 0 never collides, because the system chooses a free port.
    """
    if first.port != second.port or first.port == 0:
        return False
    hosts = {first.host, second.host}
    return len(hosts) == 1 or bool(hosts & UNSPECIFIED_HOSTS) or all(map(is_loopback, hosts))


class Listen(ValueType, frozen=True):
    """A kind of configuration value: an address to listen at, as "HOST:PORT" or "[IPV6]:PORT"."""

    def read(self, value: object, at: At) -> Address | WrongValue:
        if not isinstance(value, str):
            return at.must_be("a host and a port", value, _EXAMPLE)
        match = _ADDRESS.fullmatch(value)
        if match is None:
            if "://" in value:
                hint = f"without the scheme: {_EXAMPLE}"
            elif value.count(":") > 1:
                hint = 'put an IPv6 address in brackets: "[::1]:7411"'
            elif value.isdecimal() or value.startswith(":"):
                hint = f"say who may connect: {_EXAMPLE} for this machine only"
            else:
                hint = _EXAMPLE
            return at.wrong(f"{at.name} must be a host and a port", hint)
        six, name, port = match.groups()
        if int(port) > _PORT_MAX:
            return at.wrong(f"{at.name} has a port above {_PORT_MAX}")
        host = _find_host(six, name)
        if host is None:
            return at.wrong(f"{at.name} has {quoted_word(six or name)} where a host belongs", _EXAMPLE)
        return Address(host, int(port))

    def to_toml(self, value: Any) -> str:
        return str(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{_ADDRESS.pattern}$"}


def _find_host(six: str | None, name: str | None) -> str | None:
    """Return the host of an address in a normalised form, or None if it is malformed. The host is either `six`, an IPv6
    address, or `name`, a host name or IPv4 address.
    """
    try:
        if six is not None:
            return str(ipaddress.IPv6Address(six))
        assert name is not None  # noqa: S101  (one of the two groups matched)
        if name.replace(".", "").isdecimal():
            return str(ipaddress.IPv4Address(name))
    except ValueError:
        return None
    return name.lower() if _HOST_NAME.fullmatch(name) else None


class Url(ParsedText, frozen=True):
    """A kind of configuration value: an http or https URL without credentials."""

    called = "a URL"
    outward: bool = False  # an address that the node dials: a query is allowed, and ${env:NAME} is replaced

    def parse(self, text: str, at: At) -> str | WrongValue:
        if self.outward:
            expanded = expand(text, at)
            if isinstance(expanded, WrongValue):
                return WRONG
            if at.unset:
                return UNSET_URL
            text = expanded
        # From here on the text may hold a secret: no message repeats it.
        if not re.fullmatch(_URL, text):
            return at.wrong(f"{at.name} must be an http:// or https:// URL, in ASCII and without spaces")
        parts = find_url_parts(text)
        if parts is None or not parts.hostname:
            return at.wrong(f"{at.name} is not a valid URL", "check its host and port")
        if parts.username is not None or parts.password is not None:
            hint = 'use headers, for instance headers = { Authorization = "Bearer ${env:TOKEN}" }'
            return at.wrong(f"{at.name} must not hold credentials", hint if self.outward else None)
        if parts.fragment or "#" in text:
            return at.wrong(f"{at.name} must not have a fragment (#...)")
        if not self.outward:
            if "?" in text:
                return at.wrong(f"{at.name} must not have a query (?...)")
            return text.rstrip("/")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1} if self.outward else {"type": "string", "pattern": f"^{_URL}$"}


class Origin(ParsedText, frozen=True):
    """A kind of configuration value: the origin of a web page as a browser sends it, in lower case and without the
    default port.
    """

    called = "an origin"
    form = f"^{_ORIGIN}/*$"

    def parse(self, text: str, at: At) -> str | WrongValue:
        if text == "*":
            return at.wrong(f"{at.name} would let every web page call this node", "list each origin")
        bare = text.rstrip("/")
        parts = find_url_parts(bare) if re.fullmatch(_ORIGIN, bare) else None
        if parts is None or not parts.hostname:
            return at.wrong(f"{at.name} must be an origin", 'write "https://app.example.com", without a path')
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        default = _DEFAULT_PORTS.get(parts.scheme) == parts.port
        return f"{parts.scheme}://{host}" + ("" if parts.port is None or default else f":{parts.port}")


class Network(ParsedText, frozen=True):
    """A kind of configuration value: an IP address, or a network such as 10.0.0.0/8."""

    called = "an IP address or network"
    form = "^[0-9A-Fa-f:.]+(?:%[0-9A-Za-z]+)?(?:/[0-9.]+)?$"

    def parse(self, text: str, at: At) -> str | WrongValue:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            return at.wrong(f"{at.name} must be an IP address or network", 'for instance "10.0.0.0/8"')
        return str(network.network_address) if network.num_addresses == 1 else str(network)


class NatsUrls(ValueType, frozen=True):
    """A kind of configuration value: the servers of one NATS cluster, as a list of URLs or as one string with commas
    between them.
    """

    bare = "either"

    def read(self, value: object, at: At) -> tuple[str, ...] | WrongValue:
        url = _NatsUrl()
        if isinstance(value, list):
            read = tuple(url.read(each, at.inside(index)) for index, each in enumerate(value))
        else:
            text = read_text(value, at, "a URL or a list of them")
            if isinstance(text, WrongValue):
                return WRONG
            read = tuple(url.read(each.strip(), at) for each in text.split(","))
        return WRONG if WRONG in read else read

    def schema(self) -> dict[str, Any]:
        url = _NatsUrl().schema()
        return {"anyOf": [url, {"type": "array", "items": url}]}


class _NatsUrl(ParsedText, frozen=True):
    """A kind of configuration value: the URL of one NATS server. The usual port is added if it has none."""

    called = "a URL"

    def parse(self, text: str, at: At) -> str | WrongValue:
        parts = find_url_parts(text) if re.fullmatch(_NATS_URL, text) else None
        if parts is None or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
            return at.wrong(
                f"{at.name} must be nats://HOST:PORT or tls://HOST:PORT", 'for instance "nats://127.0.0.1:4222"'
            )
        if parts.username is not None or parts.password is not None:
            hint = 'put them in nats_secret, for instance nats_secret = "${secrets.nats}"'
            return at.wrong(f"{at.name} must not hold credentials", hint)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port or NATS_PORT}"


class MailServer(Text, frozen=True):
    """A kind of configuration value: the URL of a mail server, smtp:// or smtps://. It may contain credentials."""

    def read(self, value: object, at: At) -> str | WrongValue:
        text = super().read(value, at)
        if isinstance(text, WrongValue):
            return text
        parts = find_url_parts(text)
        if parts is None or parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.port == 0:
            return at.wrong(
                f"{at.name} must be smtp://HOST or smtps://HOST, with USER:PASSWORD@ where it asks for them"
            )
        return text


class Protected(ParsedText, frozen=True):
    """A kind of configuration value: an https URL, or an http URL that leads to this machine.

    It is kept exactly as written, as issuers are compared as strings.
    """

    called = "a URL"
    form = f"^{_VISIBLE}$"

    def parse(self, text: str, at: At) -> str | WrongValue:
        if not re.fullmatch(_VISIBLE, text) or not is_protected(text):
            hint = "plain http is only for this machine, such as http://127.0.0.1:9000"
            return at.wrong(f"{at.name} must be an https:// URL without credentials and fragment", hint)
        return text


class SocketUrl(ParsedText, frozen=True):
    """A kind of configuration value: the WebSocket URL at which a parent aggregator accepts registrations."""

    called = "a URL"
    form = f"^{_SOCKET_URL}$"

    def parse(self, text: str, at: At) -> str | WrongValue:
        try:
            parts = urlsplit(text)
            host = parts.hostname
        except ValueError:
            host = None
        if not re.fullmatch(_SOCKET_URL, text) or not host:
            return at.wrong(f"{at.name} must begin with wss:// or ws://", 'for instance "wss://hub.example.com/ax"')
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            return at.wrong(f"{at.name} must have no credentials, query or fragment", "give the token as 'secret'")
        return text


class PublicKey(ParsedText, frozen=True):
    """A kind of configuration value: a public key as text, or the path of a file that contains one.

    A private key is refused and never repeated in messages.
    """

    called = "a public key or a file"

    def parse(self, text: str, at: At) -> str | Path | WrongValue:
        if not is_key_text(text):
            return resolve(text, at)
        label = find_pem_label(text)
        try:
            if label is None:
                read_key_untrusted(text)
            elif "PRIVATE" in label:
                raise BadKey(PRIVATE)
        except BadKey as bad:
            return at.wrong(f"{at.name} is not a public key: {bad}", _FORMS)
        return text


class Passkey(ParsedText, frozen=True):
    """A kind of configuration value: a person's passkey, in the form in which `interlock access passkey` prints it."""

    called = "a passkey"
    form = r"^(?:es256|ed25519|rs256):[A-Za-z0-9_-]+:[A-Za-z0-9_-]+$"

    def parse(self, text: str, at: At) -> str | WrongValue:
        try:
            read_passkey_untrusted(text)
        except BadKey as bad:
            return at.wrong(f"{at.name} is not a passkey: {bad}", "interlock access passkey NAME prints the line")
        return text


class KeySet(ParsedText, frozen=True):
    """A kind of configuration value: the public keys of somebody who signs (JWKS), as an https URL or as the path of a
    file.
    """

    called = "a URL or a file"

    def parse(self, text: str, at: At) -> str | Path | WrongValue:
        return Protected().parse(text, at) if "://" in text else resolve(text, at)


class DnsName(ParsedText, frozen=True):
    """A kind of configuration value: a host name, with or without the prefix "dns:"."""

    called = "a DNS name"
    form = r"^(?:[Dd][Nn][Ss]:)?[A-Za-z0-9.-]{1,254}$"

    def parse(self, text: str, at: At) -> str | WrongValue:
        name = maybe_authority(text) or find_dns_name(text)
        if name is None:
            hint = 'for instance "edge01.example.com"; no wildcard, no address, and each name by itself'
            return at.wrong(f"{at.name} must be a DNS name", hint)
        return name

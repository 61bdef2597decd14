"""Value types that are tables with fields of their own: issuers, OAuth of a server, parents, children, budgets."""

import re
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from interlock.ax.protocol.budget import KEYS, LIMIT_MAX, Limits
from interlock.config.location import WRONG, At, WrongValue
from interlock.config.plan import ChildPlan, IssuerPlan, OAuthPlan, ParentPlan, Scope, UnitsPlan
from interlock.config.sections import choices_of
from interlock.config.value_types import (
    Choice,
    Command,
    FilePath,
    Many,
    Record,
    Segment,
    Table,
    Text,
    ValueType,
    Whole,
    read_text,
)
from interlock.credentials.protocol.resource import is_protected
from interlock.net.protocol.address_scope import is_loopback


class Protected(ValueType, frozen=True, kw_only=True):
    """A URL whose answers cannot be changed on the way, kept to the letter: an issuer is compared as a string."""

    def read(self, value: object, at: At) -> str | WrongValue:
        text = read_text(value, at, "a URL")
        if isinstance(text, WrongValue):
            return WRONG
        if not re.fullmatch(_VISIBLE, text) or not is_protected(text):
            hint = "plain http is only for this machine, such as http://127.0.0.1:9000"
            return at.wrong(f"{at.name} must be an https:// URL without credentials and fragment", hint)
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{_VISIBLE}$"}


_VISIBLE: Final = r"[!-~]+"
OAUTH_SCOPE: Final = r"[\x21\x23-\x5b\x5d-\x7e]+"  # RFC 6749 3.3
_NAME: Final = Text(pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", what="1 to 63 of the characters A-Z a-z 0-9 . _ -")
_FIELDS: Final[dict[str, ValueType]] = {
    "name": _NAME,
    "url": Protected(),
    "audience": Text(),
    "jwks_url": Protected(),
    "introspection_url": Protected(),
    "client_id": Text(references=True),
    "client_secret": Text(references=True),
    "scopes": Table(names=OAUTH_SCOPE, names_are="an OAuth scope", item=Choice(values=get_args(Scope))),
}
ISSUER: Final = Record(
    what="an issuer",
    where="[[auth.issuers]]",
    fields=_FIELDS,
    beside={
        "introspection_url": ("client_id", "client_secret"),
        "client_id": ("introspection_url",),
        "client_secret": ("introspection_url",),
    },
    make=IssuerPlan,
)


_AUTH_FIELDS: Final[dict[str, ValueType]] = {
    "grant": choices_of(OAuthPlan, "grant"),
    "issuer": Protected(),
    "client_id": Text(references=True),
    "client_secret": Text(references=True, stored=True),
    "private_key": FilePath(),
    "scopes": Many(item=Text(pattern=OAUTH_SCOPE, what="an OAuth scope")),
    "per": choices_of(OAuthPlan, "per"),
}


class _ServerAuth(Record, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> OAuthPlan | WrongValue:
        plan: OAuthPlan | WrongValue = super().read(value, at)
        return WRONG if isinstance(plan, WrongValue) or _misfits(plan, at) else plan


def _misfits(plan: OAuthPlan, at: At) -> bool:
    proven = plan.client_secret is not None or plan.private_key is not None
    if plan.client_secret is not None and plan.private_key is not None:
        at.wrong(f"{at.name} has client_secret and private_key", "keep one of them")
    elif plan.grant == "client_credentials" and (plan.client_id is None or not proven):
        hint = "client_secret, or private_key, is what the node proves itself with"
        at.wrong(f"{at.name} with client_credentials needs 'client_id' and a proof", hint)
    elif plan.grant == "client_credentials" and plan.per == "user":
        at.inside("per").wrong(f"{at.name} with client_credentials belongs to no single user", "leave 'per' out")
    else:
        return False
    return True


SERVER_AUTH: Final = _ServerAuth(
    what="'auth'",
    where="[servers.SEGMENT.auth]",
    fields=_AUTH_FIELDS,
    beside={"client_secret": ("client_id",), "private_key": ("client_id",)},
    make=OAuthPlan,
)


AMOUNT: Final = Whole(low=0, high=LIMIT_MAX)
BUDGET: Final = Record(
    what="a budget",
    example="budget = { max_calls_per_minute = 60 }",
    fields=dict.fromkeys(KEYS, AMOUNT),
    make=Limits,
)
UNITS: Final = Record(
    what="the units of a call",
    example="units = { expensive = 50 }",
    fields=dict.fromkeys(UnitsPlan.__struct_fields__, AMOUNT),
    make=UnitsPlan,
)


TREE: Final = Text(pattern=r"[a-z0-9][a-z0-9._-]{0,62}", what="1 to 63 of the characters a-z 0-9 . _ -")
_SOCKET_URL: Final = r"wss?://[!-~]+"
ENVIRONMENT: Final = Table(  # of a program that the node starts
    names=r"[^=\x00]+",
    names_are="a name an environment variable can have",
    item=Text(references=True, empty=True, stored=True),
    reserved="INTERLOCK_",  # a node started as a server would take them for its own settings
)
AUTHORITY: Final = Text(
    pattern=r"dns:(?=.{1,253}$)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?",
    what='a DNS name after "dns:"',
    hint='for instance "dns:edge01.example.com"',
)


class SocketUrl(ValueType, frozen=True, kw_only=True):
    """Where a parent takes registrations: /ax of its public endpoint."""

    def read(self, value: object, at: At) -> str | WrongValue:
        text = read_text(value, at, "a URL")
        if isinstance(text, WrongValue):
            return WRONG
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

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{_SOCKET_URL}$"}


class _Parent(Record, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> Any:
        read = super().read(value, at)
        if isinstance(read, ParentPlan):
            parts = urlsplit(read.url)
            if parts.scheme == "ws" and not is_loopback(parts.hostname or "") and read.secure_by is None:
                hint = 'dial wss://, or say secure_by = "why it is secure" if something else protects the way'
                return at.wrong(f"{at.name} is beyond this machine without TLS", hint)
            if parts.scheme == "ws" and (read.ca_file is not None or read.tls_cert is not None):
                return at.wrong(f"{at.name} has certificates and dials without TLS", "dial wss://, or leave them out")
        return read


PARENT: Final = _Parent(
    what="a parent",
    where="[[ax.parents]]",
    fields={
        "url": SocketUrl(),
        "segment": Segment(),
        "tree": TREE,
        "secret": Text(references=True),
        "authority": AUTHORITY,
        "secure_by": Text(),
        "ca_file": FilePath(),
        "tls_cert": FilePath(),
        "tls_key": FilePath(),
    },
    beside={"tls_cert": ("tls_key",), "tls_key": ("tls_cert",)},
    make=ParentPlan,
)
CHILD: Final = Record(
    what="a child",
    where="[[ax.children]]",
    fields={"command": Command(), "segment": Segment(), "env": ENVIRONMENT},
    make=ChildPlan,
)
GLOB_URLS: Final = Many(
    item=Text(pattern=r"https?://[!-~]+", what="an http:// or https:// URL, * standing for any part")
)

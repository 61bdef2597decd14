"""The kind of value that names an authorization server: which one, and how its tokens are looked at."""

import re
from typing import Any, Final

from interlock.config.location import WRONG, At, Wrong
from interlock.config.plan import IssuerPlan
from interlock.config.table_type import Record
from interlock.config.value_types import Choice, Kind, Table, Text, read_text
from interlock.protocol.oauth.resource import is_protected


class Protected(Kind, frozen=True, kw_only=True):
    """A URL whose answers nobody on the way can change, kept to the letter: an issuer is compared as a string."""

    def read(self, value: object, at: At) -> str | Wrong:
        text = read_text(value, at, "a URL")
        if isinstance(text, Wrong):
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
_FIELDS: Final[dict[str, Kind]] = {
    "name": _NAME,
    "url": Protected(),
    "audience": Text(),
    "jwks_url": Protected(),
    "introspection_url": Protected(),
    "client_id": Text(references=True),
    "client_secret": Text(references=True),
    "scopes": Table(names=OAUTH_SCOPE, names_are="an OAuth scope", item=Choice(values=("read", "write", "admin"))),
}
ISSUER: Final = Record(
    what="an issuer",
    where="[[auth.issuers]]",
    fields=_FIELDS,
    needed=("name", "url"),
    beside={
        "introspection_url": ("client_id", "client_secret"),
        "client_id": ("introspection_url",),
        "client_secret": ("introspection_url",),
    },
    make=IssuerPlan,
)

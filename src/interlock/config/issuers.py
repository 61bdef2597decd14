"""The kind of value that names an authorization server: which one, and how its tokens are looked at."""

import re
from typing import Any, Final

from interlock.config.kinds import Choice, Kind, Table, Text, read_text
from interlock.config.nearest import nearest
from interlock.config.place import WRONG, At, Wrong
from interlock.config.plan import IssuerPlan
from interlock.config.problems import shown
from interlock.protocol.oauth.resource import is_protected


class _Protected(Kind, frozen=True, kw_only=True):
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
_OAUTH_SCOPE: Final = r"[\x21\x23-\x5b\x5d-\x7e]+"  # RFC 6749 3.3
_NAME: Final = Text(pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", what="1 to 63 of the characters A-Z a-z 0-9 . _ -")
_FIELDS: Final[dict[str, Kind]] = {
    "name": _NAME,
    "url": _Protected(),
    "audience": Text(),
    "jwks_url": _Protected(),
    "introspection_url": _Protected(),
    "client_id": Text(references=True),
    "client_secret": Text(references=True),
    "scopes": Table(names=_OAUTH_SCOPE, names_are="an OAuth scope", item=Choice(values=("read", "write", "admin"))),
}
_NEEDED: Final = ("name", "url")
_BESIDE: Final = {  # a key -> those it is of no use without
    "introspection_url": ("client_id", "client_secret"),
    "client_id": ("introspection_url",),
    "client_secret": ("introspection_url",),
}


class Issuer(Kind, frozen=True, kw_only=True):
    bare = "toml"

    def read(self, value: object, at: At) -> IssuerPlan | Wrong:
        if not isinstance(value, dict):
            return at.must_be("a table", value, "write [[auth.issuers]] above each one")
        read = {name: self._field(name, each, at.inside(name)) for name, each in value.items()}
        for name in _NEEDED:
            if name not in value:
                read[name] = at.wrong(f"{at.name} needs '{name}'")
        for name, others in _BESIDE.items():
            for other in others:
                if name in value and other not in value:
                    read[other] = at.inside(name).wrong(f"'{name}' of {at.name} needs '{other}'")
        if any(isinstance(each, Wrong) for each in read.values()):
            return WRONG
        return IssuerPlan(**read)

    def _field(self, name: str, value: object, at: At) -> Any:
        kind = _FIELDS.get(name)
        if kind is not None:
            return kind.read(value, at)
        like = nearest(name, _FIELDS)
        hint = f"did you mean '{like}'?" if like else f"known here: {', '.join(_FIELDS)}"
        return at.wrong(f"unknown key {shown(name)} of an issuer", hint)

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: kind.schema() for name, kind in _FIELDS.items()},
            "required": list(_NEEDED),
            "dependentRequired": {name: list(others) for name, others in _BESIDE.items()},
            "additionalProperties": False,
        }

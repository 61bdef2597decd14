"""The kind of value that holds HTTP headers to send: only what a header can carry, none that the link writes itself."""

import re
from typing import Any, Final

from interlock.config.location import WRONG, At, Wrong
from interlock.config.value_types import Kind, Text

_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 5.6.2
HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?", re.ASCII)
# They frame a message, or repeat what is in it.
_OF_THE_LINK: Final = re.compile(
    "accept|connection|content-(?:encoding|length|type)|expect|host|keep-alive|last-event-id|te|trailer"
    "|transfer-encoding|upgrade|mcp-(?:method|name|protocol-version|session-id|param-.*)"
)


class Headers(Kind, frozen=True, kw_only=True):
    bare = "toml"

    def read(self, value: object, at: At) -> dict[str, str] | Wrong:
        if not isinstance(value, dict):
            return at.must_be("a table", value, "write { NAME = value }")
        seen: set[str] = set()
        read: dict[str, str] = {}
        for name, text in value.items():
            header = self._header(name, text, at.inside(name), again=name.lower() in seen)
            seen.add(name.lower())
            if not isinstance(header, Wrong):
                read[name] = header
        return read if len(read) == len(value) else WRONG

    def _header(self, name: str, text: object, at: At, *, again: bool) -> str | Wrong:
        if not re.fullmatch(_NAME, name):
            return at.wrong(f"{at.name} is not a name a header can have")
        if _OF_THE_LINK.fullmatch(name.lower()):
            return at.wrong(f"{at.name} is a header Interlock writes itself", "leave it out")
        if again:
            return at.wrong(f"{at.name} is there twice", "upper and lower case are the same header")
        value = Text(references=True, empty=True, stored=True).read(text, at)
        if isinstance(value, Wrong) or HEADER_VALUE.fullmatch(value):
            return value
        return at.wrong(
            f"{at.name} is not a value a header can carry", "no line breaks, only ASCII, no space at its ends"
        )

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^{_NAME}$"},
            "additionalProperties": {"type": "string"},
        }

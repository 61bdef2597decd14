"""Values of secrets in what a server says, replaced by `[secret:<slug>]` (AIP-19.plain-1).

Exact values of at least eight characters, as they are and as JSON writes them; of one with several lines each line,
because what is read is often read by lines. A value that a server changes is not recognised.
"""

import json
from collections.abc import Mapping
from typing import Final

CHARS_MIN: Final = 8  # AIP-19.plain-1: shorter ones would be found everywhere


class Redactor:
    __slots__ = ("_needles",)

    def __init__(self, values: Mapping[str, str]) -> None:
        """`values`: by slug."""
        found: dict[bytes, bytes] = {}
        for slug, value in values.items():
            mark = f"[secret:{slug}]".encode()
            for text in (value, *value.splitlines()):
                if len(text.strip()) >= CHARS_MIN:  # AIP-19.plain-1
                    found |= dict.fromkeys(_spellings(text.strip() if text != value else text), mark)
        self._needles = sorted(found.items(), key=lambda each: -len(each[0]))  # the longest first: one may hold another

    def __bool__(self) -> bool:
        return bool(self._needles)

    def is_in(self, data: bytes) -> bool:
        return any(needle in data for needle, _ in self._needles)

    def redacted(self, data: bytes) -> bytes:
        for needle, mark in self._needles:
            data = data.replace(needle, mark)  # AIP-19.plain-1
        return data

    def cut(self, data: bytes) -> bytes:
        """The same of a text that may end in the midst of a value: its beginning goes as well."""
        data = self.redacted(data)
        for needle, mark in self._needles:
            for length in range(min(len(needle) - 1, len(data)), CHARS_MIN - 1, -1):
                if data.endswith(needle[:length]):
                    return data[:-length] + mark
        return data

    def text(self, text: str) -> str:
        return self.redacted(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


NOTHING: Final = Redactor({})


def _spellings(text: str) -> tuple[bytes, ...]:
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    ascii_alone = json.dumps(text)[1:-1]
    forms = (text, plain, ascii_alone, plain.replace("/", "\\/"), ascii_alone.replace("/", "\\/"))
    return tuple(form.encode("utf-8", "surrogatepass") for form in dict.fromkeys(forms))

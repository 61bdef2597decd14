"""Reading around half a surrogate pair.

`"\\ud83d"` is legal JSON (RFC 8259 8.2) and what JavaScript writes for a text that was cut inside an emoji, but it is
no text, so the parser refuses the whole message. `hide` turns each half into a harmless escape of the same length and
`Hidden.show` turns it back, in bytes that need not be understood here.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

HALVES_MAX: Final = 1000  # cut texts have a few; a message of nothing else costs time

# An escape after another backslash is left alone: then it is mostly text, and at worst the message is refused.
_ALONE: Final = rb"(?<!\\\\u.)(?=[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u.)[c-fC-F])"
_LOWER: Final = re.compile(rb"\\ud" + _ALONE, re.DOTALL)
_UPPER: Final = re.compile(rb"\\uD" + _ALONE, re.DOTALL)


class Hidden(msgspec.Struct, frozen=True):
    data: bytes
    digit: bytes  # what stands for the d of \ud800 to \udfff; before, no escape of the message began with it

    def show(self, raw: Raw) -> Raw:
        shown = re.sub(rb"\\u%b(?=[89a-fA-F])" % self.digit, rb"\\ud", bytes(raw))
        return Raw(re.sub(rb"\\u%b(?=[89a-fA-F])" % self.digit.upper(), rb"\\uD", shown))

    def may_be_in(self, text: str) -> bool:
        """Whether a decoded text could hold a half that was hidden."""
        first = int(self.digit, 16) << 12
        return any(first + 0x800 <= ord(one) < first + 0x1000 for one in text)


def hide(data: bytes) -> Hidden | None:
    """None when there is nothing to hide, or no way to."""
    for digit in (b"e", b"c", b"b", b"a"):
        if re.search(rb"\\u[%b%b][89a-fA-F]" % (digit, digit.upper()), data) is None:
            hidden, lower = _LOWER.subn(rb"\\u%b" % digit, data, HALVES_MAX + 1)
            hidden, upper = _UPPER.subn(rb"\\u%b" % digit.upper(), hidden, HALVES_MAX + 1)
            return Hidden(hidden, digit) if 0 < lower + upper <= HALVES_MAX else None
    return None

"""JSON from elsewhere as a person reads it before deciding: laid out, and not one character other than it is.

Numbers keep their digits, strings their escapes. What could make a line read differently from what it holds (control
and direction marks, other spaces, what no font shows) stands as its escape. What is too long for this is folded
(`folding`), never dropped.
"""

import difflib
import unicodedata
from itertools import islice
from typing import Final

INDENT: Final = "  "
INDENTS_MAX: Final = 20  # deeper is set no further to the right
COMPARED_MAX: Final = 500  # lines; comparing takes the square of it
_HIDING: Final = frozenset(("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"))
# Letters and marks that no font shows: Default_Ignorable_Code_Point of Unicode as far as the categories above do not
# have them, and the empty braille pattern.
_BLANK: Final = frozenset(
    (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, *range(0xFE00, 0xFE10), 0xFFA0)
) | frozenset(range(0xE0100, 0xE01F0))


def plain(untrusted: str) -> str:
    """One line of text in which everything can be seen."""
    if untrusted.isascii() and untrusted.isprintable():
        return untrusted
    return "".join(one if one == " " or _is_plain(one) else _escape(one) for one in untrusted)


def layout_lines(raw: bytes) -> list[str]:
    """The lines of a JSON text; what is not JSON comes out as it stands, in one line or a few."""
    text = raw.decode("utf-8", "backslashreplace")
    lines: list[str] = []
    line: list[str] = []
    depth, in_string, escaped = 0, False, False

    def close() -> None:
        lines.append(INDENT * min(depth, INDENTS_MAX) + plain("".join(line)))
        line.clear()

    for position, sign in enumerate(text):
        if in_string:
            line.append(sign)
            in_string = escaped or sign != '"'
            escaped = sign == "\\" and not escaped
        elif sign in " \t\r\n":
            continue
        elif sign in "{[" and _closes_at_once(text, position):
            line.append(sign)
        elif sign in "{[":
            line.append(sign)
            close()
            depth += 1
        elif sign in "}]":
            if not line or line[-1] not in "{[":
                if line:
                    close()
                depth = max(0, depth - 1)
            line.append(sign)
        elif sign == ",":
            line.append(sign)
            close()
        elif sign == ":":
            line.append(": ")
        else:
            line.append(sign)
            in_string = sign == '"'
    if line:
        close()
    return lines


def differences(before: bytes, after: bytes) -> list[str]:
    """What was and what is, line by line: "- " gone, "+ " new, "  " around them."""
    old, new = layout_lines(before), layout_lines(after)
    if max(len(old), len(new)) > COMPARED_MAX:
        return [*(f"- {line}" for line in old), *(f"+ {line}" for line in new)]
    told = islice(difflib.unified_diff(old, new, lineterm="", n=2), 3, None)  # two heads, and where the first part is
    return [f"{line[0]} {line[1:]}" if line[0] in "+- " else "..." for line in told]


def _closes_at_once(text: str, position: int) -> bool:
    position += 1
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position < len(text) and text[position] in "}]"


def _is_plain(sign: str) -> bool:
    category = unicodedata.category(sign)
    return category not in _HIDING and category != "Zs" and ord(sign) not in _BLANK


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

"""JSON texts for fuzzing: any value, written in any of the ways JSON can be written, and texts damaged on purpose."""

import json
import random
from typing import Any

from hypothesis import strategies as st

TEXTS = st.text(max_size=8) | st.sampled_from(["_meta", "a" * 300, "é\0\u2028", "\ud83d", "\\ud83d", "\U0001f600"])
NUMBERS = st.integers() | st.integers(2**63, 2**90) | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
STYLES: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 1}, {"separators": (" ,\t", "\r\n:")}]


@st.composite
def json_text(draw: st.DrawFn, values: st.SearchStrategy[Any] = VALUES) -> bytes:
    """A value as JSON, in some style; never a lone surrogate as raw UTF-8, which is no text."""
    value, style = draw(values), draw(st.sampled_from(STYLES))
    plain = json.dumps(value, ensure_ascii=False, **style)
    if draw(st.booleans()):
        try:
            return plain.encode()
        except UnicodeEncodeError:
            pass
    return json.dumps(value, ensure_ascii=True, **style).encode()


PIECES = [b"", b"\0", b"\xff", b'"', b"\\", b"\\u", b"\\ud800", b"{", b"}", b"[", b"]", b",", b":", b"null", b"-", b"."]
PIECES += [b"e9", b"0", b'"id":', b'"id":null,', b'"method":"x",', b'"error":{},', b'"result":1,', b"\xef\xbb\xbf"]


def damaged_text(text: bytes, chance: random.Random) -> bytes:
    """The text after one to four small accidents."""
    for _ in range(chance.randint(1, 4)):
        at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        to = min(to, at + chance.randint(0, 6))
        match chance.randrange(4):
            case 0:
                text = text[:at] + chance.choice(PIECES) + text[to:]
            case 1:
                text = text[:at] + text[at:to] * 2 + text[to:]
            case 2:
                text = text[:at] + bytes(chance.randrange(256) for _ in range(to - at)) + text[to:]
            case _:
                text = text[to:] + text[:at] if chance.random() < 0.1 else text[:at] + text[to:]
    return text

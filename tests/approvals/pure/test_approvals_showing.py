"""What a person reads before deciding is what there is: every character seen, none that plays tricks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.approvals.protocol.digests import shown_digest
from interlock.wire.jsontext.display import COMPARED_MAX, differences, layout_lines, plain

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_json_is_laid_out_without_changing_its_words() -> None:
    raw = b'{ "a":1.10,"b":[ ],"c":{"d":[1,{"e":"x, y: {z}"}]},"f":{},"g":123456789012345678901,"h":"\\"\\\\" }'
    assert layout_lines(raw) == [
        "{",
        '  "a": 1.10,',
        '  "b": [],',
        '  "c": {',
        '    "d": [',
        "      1,",
        "      {",
        '        "e": "x, y: {z}"',
        "      }",
        "    ]",
        "  },",
        '  "f": {},',
        '  "g": 123456789012345678901,',
        '  "h": "\\"\\\\"',
        "}",
    ]


@given(JSON)
def test_layout_keeps_the_meaning_of_json(value: object) -> None:
    raw = json.dumps(value).encode()
    assert json.loads("\n".join(layout_lines(raw))) == value


@given(st.text())
def test_nothing_that_hides_or_moves_is_left_and_nothing_is_lost(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable() or not shown
    assert all(character in shown for character in text if character.isprintable() and character.isascii())
    assert len(shown) >= len(text)


@pytest.mark.parametrize(
    "hiding",
    [
        *("\u202e", "\u2066", "\u200b", "\u00ad", "\ufeff", "\x1b", "\x7f", "\u2028", "\ue000", "\u00a0"),
        *(
            "\u3164",
            "\u115f",
            "\uffa0",
            "\u2800",
            "\u034f",
            "\ufe0f",
            "\U000e0100",
        ),  # letters and marks, all of them blank
    ],
)
def test_text_that_hides_or_turns_around_is_shown_as_its_escape(hiding: str) -> None:
    (line,) = layout_lines(json.dumps(f"a{hiding}b", ensure_ascii=False).encode())
    assert hiding not in line
    assert f"{ord(hiding):04x}" in line


@pytest.mark.parametrize("raw", [b"", b"{", b"[[[[", b'"', b'{"a":', b"}}}]", b"\xff\xfe", b'"\\', b"[" * 5000])
def test_text_that_is_not_json_is_shown_unchanged(raw: bytes) -> None:
    shown = "".join(layout_lines(raw)).replace(" ", "")
    assert len(shown) >= len(raw.strip())


def test_differences_show_what_is_gone_and_what_is_new() -> None:
    before, after = b'{"a":1,"b":2,"c":3}', b'{"a":1,"b":4,"c":3}'
    assert differences(before, after) == ["  {", '    "a": 1,', '-   "b": 2,', '+   "b": 4,', '    "c": 3', "  }"]
    assert differences(before, before) == []
    assert differences(b"null", b'{"a":1}') == ["- null", "+ {", '+   "a": 1', "+ }"]


@pytest.mark.parametrize("sly", ["--a", "++b", "@@-1+1@@", "--", "++"])
def test_no_line_is_hidden_because_it_looks_like_the_frame_of_a_diff(sly: str) -> None:
    before, after = json.dumps({"a": "x"}).encode(), sly.encode()
    assert any(sly in line for line in differences(before, after))
    assert any(sly in line for line in differences(after, before))


def test_very_long_texts_are_shown_one_after_the_other() -> None:
    before = json.dumps(list(range(COMPARED_MAX + 1))).encode()
    shown = differences(before, b"[1]")
    assert sum(line.startswith("- ") for line in shown) == len(layout_lines(before))
    assert shown[-3:] == ["+ [", "+   1", "+ ]"]


@pytest.mark.parametrize(
    "params", [b"null", b"{}", b'{"definition":7}', b'{"definition":{}}', b"[", b'{"after":{"name":1}}']
)
def test_params_without_a_definition_have_no_digest_to_sign(params: bytes) -> None:
    assert shown_digest(params) is None

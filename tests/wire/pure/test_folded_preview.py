"""Does a preview that folds what is long still show every key and every size?"""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scale import quick_or

from interlock.approvals.protocol.approval import shown_params
from interlock.wire.jsontext.display import WHOLE_CHARS_MAX, fold, fold_differences, layout_lines

KEYS = st.text(min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12).map(lambda text: text * 50),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(KEYS, inner, max_size=8),
    max_leaves=60,
)


def folded(value: object) -> list[str]:
    shown = fold(json.dumps(value, ensure_ascii=False).encode(), lines_max=3, chars_max=WHOLE_CHARS_MAX)
    assert shown.is_folded
    return shown.lines


def keys_in(value: object) -> set[str]:
    if isinstance(value, dict):
        return {json.dumps(key) for key in value}.union(*(keys_in(one) for one in value.values()))
    return set().union(*(keys_in(one) for one in value)) if isinstance(value, list) else set()


def test_short_texts_are_shown_unchanged() -> None:
    raw = b'{"a":[1,2],"b":{"c":"d"}}'
    shown = fold(raw, lines_max=20, chars_max=1000)
    assert (shown.lines, shown.is_folded) == (layout_lines(raw), False)


def test_the_last_key_behind_much_else_is_shown_with_its_value() -> None:
    lines = folded({"note": "x" * 5000, "rows": [{"n": one} for one in range(2000)], "recursive": True})
    assert lines == [
        "<object, 29931 characters>",
        f'  "note": <text, 5002 characters> begins "{"x" * 79}',
        '  "rows": <list, 24890 characters>',
        "    each: <2000 x object, 20890 characters>",
        '      "n": <2000 x other value, 6890 characters> the first 0',
        '  "recursive": true',
    ]


def test_a_key_that_one_of_a_thousand_items_has_is_shown() -> None:
    rows: list[object] = [{"path": f"/a/{one}"} for one in range(1000)]
    rows[617] = {"path": "/etc", "mode": "delete", "deep": [[{"er": 1}]]}
    shown = "\n".join(folded({"rows": rows}))
    for key in ('"path"', '"mode": "delete"', '"deep"', '"er": 1'):
        assert key in shown


def test_values_of_several_kinds_at_one_place_are_all_counted() -> None:
    lines = folded({"list": ["x" * 300, 7, None, {"k": 1}, ["y" * 300], [2]] * 2})
    assert '  "list": <list' in lines[1]
    assert "each: <2 x text, 4 x other value, 2 x object, 4 x list," in lines[2]
    assert any('"k": <2 x other value, 2 characters> the first 1' in line for line in lines)
    assert any("each: <2 x text, 2 x other value, 606 characters>" in line for line in lines)


def test_nothing_that_is_written_into_a_value_looks_like_a_line_of_its_own() -> None:
    lines = folded({"a": 'x\n  "safe": <list, 2 characters>\u202e' + "y" * 900, "b\n\x1b": 1})
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_a_key_that_is_there_twice_is_counted_twice() -> None:
    raw = b'{"a":1,"pad":"%b","a":2}' % (b"x" * 900)
    assert '  "a": <2 x other value, 2 characters> the first 1' in fold(raw, lines_max=1, chars_max=1).lines


@given(JSON)
def test_no_key_is_ever_left_out(value: object) -> None:
    raw = json.dumps(value).encode()
    shown = "\n".join(fold(raw, lines_max=1, chars_max=1).lines)
    assert all(key in shown for key in keys_in(value))


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":', b'"\\', b"[" * 5000, b"\xff\xfe"])
def test_text_that_is_not_json_is_shown_whole(raw: bytes) -> None:
    shown = fold(raw, lines_max=0, chars_max=0)
    assert (shown.lines, shown.is_folded) == (layout_lines(raw), False)


def test_a_long_change_shows_every_key_of_both_sides() -> None:
    before = {"description": "d", "inputSchema": {"properties": {f"p{one}": {} for one in range(100)}}}
    after = before | {"annotations": {"readOnlyHint": True}}
    sides = (json.dumps(before).encode(), json.dumps(after).encode())
    assert not fold_differences(*sides, lines_max=500, chars_max=50_000).is_folded
    shown = fold_differences(*sides, lines_max=2, chars_max=100)
    assert shown.is_folded
    assert any(line.startswith("- ") and '"p99"' in line for line in shown.lines)
    assert any(line.startswith("+ ") and '"readOnlyHint": true' in line for line in shown.lines)
    params = json.dumps({"before": before, "after": after}).encode()
    assert shown_params(params, "definition", lines_max=2, chars_max=100) == shown
    assert shown_params(params, "call", lines_max=2, chars_max=100) != shown


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b"[" + b"1," * n + b"1]",
        lambda n: json.dumps({f"k{one}": one for one in range(n)}).encode(),
        lambda n: json.dumps([{"a": {"b": [one]}} for one in range(n)]).encode(),
        lambda n: b'{"a":"' + b'\\"' * n + b'"}',
        lambda n: b'"' + b'\\"' * n,
    ],
)
def test_four_times_the_text_takes_about_four_times_as_long(make: object) -> None:
    def seconds(n: int) -> float:
        raw = make(n)  # type: ignore[operator]
        times = []
        for _ in range(3):
            begun = time.process_time()
            fold(raw, lines_max=1, chars_max=1)
            times.append(time.process_time() - begun)
        return min(times)

    count = quick_or(2_000, 5_000)
    assert seconds(4 * count) < 12 * seconds(count) + 0.02

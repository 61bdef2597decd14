"""Are a client's roots held to the folders that an operator allows, however they are written?"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.mcp.meta import (
    ROOTS_MAX,
    STEPS_MAX,
    URI_CHARS_MAX,
    encode_roots,
    hold_answers_untrusted,
    hold_roots_untrusted,
)
from interlock.net.protocol.uri import file_uri


def same(path: str) -> str:
    return os.path.normpath(path)


def held(answer: Any, *allowed: str) -> tuple[Any, Any]:
    raw, roots = hold_roots_untrusted(Raw(json.dumps(answer).encode()), allowed or ("/srv/shop",), same)
    return json.loads(bytes(raw)), roots


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("file:///srv/shop", "file:///srv/shop"),
        ("file:///srv/shop/", "file:///srv/shop"),
        ("FILE:/srv/shop/a", "file:///srv/shop/a"),
        ("file:///srv/shop/a%20b/é", "file:///srv/shop/a%20b/%C3%A9"),
        ("file:///srv/./shop/x/../y", "file:///srv/shop/y"),
    ],
)
def test_roots_inside_the_allowed_folders_pass_in_their_normal_form(uri: str, told: str) -> None:
    answer, roots = held({"x": 1, "roots": [{"uri": uri, "name": "n", "_meta": {"k": 1}}]})
    assert answer == {"x": 1, "roots": [{"uri": told, "name": "n", "_meta": {"k": 1}}]}
    assert (roots.passed, roots.withheld) == ((told,), ())


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc",
        "file:///",
        "file:///srv",
        "file:///srv/shopping",
        "file:///srv/shop/../../etc",
        "file:///srv/shop/%2e%2e/%2e%2e/etc",
        "file:///srv/shop/%252e%252e/x",
        "file://host/srv/shop",
        "file:////srv/shop",
        "file:srv/shop",
        "file:///srv/shop?x",
        "file:///srv/shop#x",
        "file:///srv/shop\\..\\x",
        "file:///srv/shop%00",
        "file:///srv/shop%ff",
        "/srv/shop",
        "http://localhost/srv/shop",
        " file:///srv/shop",
        "",
        "file:///srv/shop/" + "a" * URI_CHARS_MAX,
    ],
)
def test_everything_else_is_withheld(uri: str) -> None:
    answer, roots = held({"roots": [{"uri": uri}]})
    assert answer == {"roots": []}
    assert roots.passed == ()
    assert len(roots.withheld) == 1


@pytest.mark.parametrize("roots", [None, {}, "x", [None], [[]], [{}], [{"uri": 1}], [{"uri": ["file:///srv/shop"]}]])
def test_an_invalid_list_of_roots_names_none(roots: Any) -> None:
    answer, _ = held({"roots": roots})
    assert answer == {"roots": []}


@pytest.mark.parametrize("answer", ["{}", '{ "action":"accept","content":{"roots":[1]} }', "[]", "null"])
def test_another_answer_keeps_its_bytes(answer: str) -> None:
    raw, roots = hold_roots_untrusted(Raw(answer.encode()), ("/srv",), same)
    assert bytes(raw) == answer.encode()
    assert not roots


def test_a_link_that_leads_out_is_withheld_and_an_inner_link_is_reported_by_its_path(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    (allowed / "in").mkdir(parents=True)
    (allowed / "out").symlink_to("/etc")
    (allowed / "to").symlink_to(allowed / "in")
    (tmp_path / "to").symlink_to(allowed)
    uris = [file_uri(str(path)) for path in (allowed / "out", allowed / "to", tmp_path / "to" / "in")]
    uris.append(f"{file_uri(str(allowed))}/out/../in")  # which of the two it means, the server decides
    raw = Raw(json.dumps({"roots": [{"uri": uri} for uri in uris]}).encode())
    _, roots = hold_roots_untrusted(raw, (os.path.realpath(allowed),), os.path.realpath)
    inside = file_uri(os.path.realpath(allowed / "in"))
    assert roots.passed == (inside, inside)
    assert roots.withheld == (uris[0], uris[3])


def test_no_folder_is_allowed_where_none_is_named() -> None:
    raw = Raw(b'{"roots":[{"uri":"file:///srv/shop"}]}')
    assert hold_roots_untrusted(raw, (), same)[1].withheld == ("file:///srv/shop",)


def test_more_roots_than_anybody_has_are_not_looked_up() -> None:
    looked: list[str] = []

    def resolve(path: str) -> str:
        looked.append(path)
        return path

    many = Raw(json.dumps({"roots": [{"uri": "file:///srv/shop"}] * 10_000}).encode())
    _, roots = hold_roots_untrusted(many, ("/srv/shop",), resolve)
    assert (len(roots.passed), len(roots.withheld)) == (ROOTS_MAX, 1)
    assert len(looked) == 2 * ROOTS_MAX


@pytest.mark.parametrize("uri", ["file:///srv/shop", "file:///etc"])
@pytest.mark.parametrize("answers", [1, 100])
def test_no_message_has_more_roots_looked_up_than_one_answer_may(uri: str, answers: int) -> None:
    looked: list[str] = []

    def resolve(path: str) -> str:
        looked.append(path)
        return path

    given = {str(number): {"roots": [{"uri": uri}] * 100} for number in range(answers)}
    raw, roots = hold_answers_untrusted(Raw(json.dumps(given).encode()), ("/srv/shop",), resolve)
    assert len(looked) <= 2 * ROOTS_MAX
    assert bytes(raw).count(b"file:") == len(roots.passed) <= ROOTS_MAX
    assert 0 < len(roots.withheld) <= ROOTS_MAX + 1
    assert list(json.loads(bytes(raw))) == list(given)


def test_a_path_of_more_steps_than_anybody_has_is_not_looked_up() -> None:
    raw = Raw(json.dumps({"roots": [{"uri": "file:///srv/shop" + "/a" * STEPS_MAX}]}).encode())
    assert hold_roots_untrusted(raw, ("/srv/shop",), pytest.fail)[1].passed == ()


@pytest.mark.parametrize(
    "responses",
    [
        '{"a":{"roots":[{"uri":"file:///etc"}]}}',
        '{"a":{"\\u0072oots":[{"uri":"file:///etc"}]}}',
        '{"a":{"roots":[{"uri":"file:///etc"}],"roots":[]}}',
        '{"a":{"roots":[{"uri":"file:///etc"}]},"a":{}}',
        '{"a":{"roots":[{"uri":"file:///etc","uri":"file:///srv/shop"}]}}',
        '{"a":{"roots":[{"uri":"file:///etc"}]}',
        '[{"roots":[{"uri":"file:///etc"}]}]',
        '{"\\ud800":{"roots":[{"uri":"file:///etc"}]}}',
    ],
)
def test_no_spelling_of_answers_brings_a_root_past(responses: str) -> None:
    answers, _ = hold_answers_untrusted(Raw(responses.encode()), ("/srv/shop",), same)
    assert b"etc" not in bytes(answers)


def test_answers_without_roots_keep_their_bytes() -> None:
    text = b'{ "a": {"action":"accept","content":{"n":18446744073709551616}} }'
    answers, roots = hold_answers_untrusted(Raw(text), (), same)
    assert (bytes(answers), bool(roots)) == (text, False)


def test_the_operators_folders_are_written_as_roots() -> None:
    assert json.loads(encode_roots(("/srv/a b", "/"))) == {
        "roots": [{"uri": "file:///srv/a%20b", "name": "a b"}, {"uri": "file:///", "name": "/"}]
    }

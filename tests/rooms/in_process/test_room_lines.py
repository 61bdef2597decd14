"""What a participant writes cannot harm the terminal of who reads it, and what is approved is what is shown."""

from datetime import UTC, datetime

import pytest

from interlock.rooms.cli.client import find_line, find_reading_problem, proposal_details
from interlock.rooms.protocol.envelope import Envelope
from interlock.sdk.rooms import Heard, Proposal

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def heard(kind: str, payload: bytes, sender: str = "eve") -> Heard:
    return Heard(envelope=Envelope(id="1", kind=kind, payload=payload, sender=sender, to=("me",)))


def line(kind: str, payload: bytes, sender: str = "eve") -> str:
    result = find_line(heard(kind, payload, sender), "me")
    return "" if result is None else result.plain


@pytest.mark.parametrize(
    "payload",
    [
        b'{"method":7,"id":1,"params":[1]}',
        b'{"method":"tools/call","id":1,"params":{"name":{"a":1},"arguments":"\\ud800"}}',
        b'{"id":1,"result":{"content":[{"text":9},{"text":null}],"isError":true}}',
        b'{"id":1,"result":{"content":[7]}}',
        b'{"id":1,"result":%b}' % (b"9" * 5000),
        b'{"id":1,"error":"no object"}',
        b'{"id":1,"error":{"message":{"a":[]}}}',
        b"{}",
    ],
)
@pytest.mark.parametrize("kind", ["mcp", "mcp/proposal", "mcp/odd\x1b[2J"])
def test_any_payload_is_a_line_without_control_characters(kind: str, payload: bytes) -> None:
    shown = line(kind, payload, sender="ev\x1b[31me")
    assert shown and "\x1b" not in shown and "ev\\x1b[31me" in shown


@pytest.mark.req("X-4.3-2")
@pytest.mark.parametrize("more", ["", ',"format":"plain"', ',"format":"markdown"'])
def test_messages_are_shown_as_written_in_every_format(more: str) -> None:
    text = "<img src=http://x/y.png> **bold** [red]x[/red] ![a](http://x/y.png)"
    result = find_line(heard("chat", f'{{"text":"{text}"{more}}}'.encode()), "me")
    assert result is not None and result.plain == f" eve → me {text}"
    assert not [span for span in result.spans if span.end > len(" eve → me ")]  # no style of what was said


def test_messages_cannot_move_the_cursor_or_turn_the_line() -> None:
    assert line("chat", b'{"text":"a\\u001b[2Jb\\u202ec"}') == " eve → me a\\x1b[2Jb\\u202ec"
    assert line("presence", b'{"event":"heartbeat"}', "system:gateway") == ""


def proposed(params: bytes) -> Proposal:
    return Proposal(id="p", proposer="eve", target="t", method="tools/call", params=params, reason="r\x1b[m")


def test_a_proposal_is_shown_whole_as_it_was_written() -> None:
    shown = proposal_details(proposed(b'{"name":"x","arguments":{"n":1.50,"t":"a\\u200bb"},"_meta":{"k":1e3}}'), NOW)
    for part in ('"n": 1.50', '"_meta"', '"k": 1e3', "because r\\x1b[m"):
        assert part in shown.plain
    assert "\u200b" not in shown.plain and find_reading_problem(proposed(b'{"name":"x"}')) is None


def test_an_ambiguous_or_unreadable_proposal_is_not_approved_here() -> None:
    twice = proposed(b'{"name":"x","arguments":{"bed":1,"bed":2}}')
    assert "two ways" in str(find_reading_problem(twice)) and "two ways" in proposal_details(twice, NOW).plain
    assert "too many" in str(find_reading_problem(proposed(b'{"name":"%b"}' % (b"x" * 70_000))))

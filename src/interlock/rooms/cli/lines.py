"""What is heard in a room, as lines for a terminal. Pure.

Everything that a participant wrote is made unable to move the cursor or to recolour the screen.
"""

from datetime import datetime
from typing import Any, Final

import msgspec
from rich.text import Text

from interlock.cli.terminal.text import duration, local_time, moment, one_line, printable
from interlock.sdk.rooms import Heard, Proposal
from interlock.wire.jsontext.display import layout_lines
from interlock.wire.jsontext.unambiguous import AmbiguousJson, read_untrusted

READABLE_BYTES_MAX: Final = 64 * 1024  # of the parameters of a proposal
SHOWN_MAX: Final = 400  # characters of one message of others' programs
COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


def maybe_line(heard: Heard, own: str) -> Text | None:
    """None for what only programs need."""
    at = Text(local_time(heard.ts, "%H:%M:%S") if heard.ts else "", style="dim")
    try:
        body = _body(heard, own)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        # A payload is what its sender likes; a room goes on.
        body = Text.assemble(name(heard.sender), f" sent {one_line(heard.kind)} that cannot be shown", style="dim")
    if body is None:
        return None
    line = Text.assemble(at, " ", body)
    if heard.is_old:
        line.stylize("dim")
    return line


def _body(heard: Heard, own: str) -> Text | None:
    payload = heard.payload
    match heard.kind:
        case "chat":
            return Text.assemble(name(heard.sender), _recipients(heard), " ", printable(heard.text))
        case "mcp/proposal":
            asked = _request(payload)
            why = f" because {one_line(payload['reason'])}" if payload.get("reason") else ""
            return Text.assemble(name(heard.sender), " proposes", _recipients(heard), ": ", asked, why, style="yellow")
        case "mcp":
            return _mcp(heard, payload, own)
        case "presence" if payload.get("event") in ("join", "leave"):
            did = "joined" if payload["event"] == "join" else "left"
            who = payload.get("participant", {})
            told = f" ({who.get('privilege')})" if did == "joined" else ""
            return Text.assemble(name(str(who.get("id", ""))), f" {did}{told}", style="dim")
        case "system":
            return _event(payload)
        case "presence":
            return None
        case _:
            return Text.assemble(name(heard.sender), f" {one_line(heard.kind)} ", _short(payload), style="dim")


def _mcp(heard: Heard, payload: Any, own: str) -> Text | None:
    if heard.sender == "system:gateway":
        return Text.assemble("refused: ", _short(payload.get("error", {}).get("message", "")), style="red")
    if "method" in payload:
        if "id" not in payload or payload["method"] == "initialize":
            return None
        return Text.assemble(name(heard.sender), _recipients(heard), ": ", _request(payload), style="dim")
    if "error" in payload:
        why = payload["error"]
        said = why.get("message", "") if isinstance(why, dict) else why
        return Text.assemble(name(heard.sender), _recipients(heard), ": error ", _short(said), style="red")
    result = payload.get("result")
    if isinstance(result, dict) and ("protocolVersion" in result or "tools" in result):
        return None
    is_ours = own in heard.to
    said = Text.assemble(name(heard.sender), _recipients(heard), ": ", _result(result))
    return said if is_ours else Text.assemble(said, style="dim")


def _event(payload: Any) -> Text | None:
    match payload.get("event"):
        case "error":
            return Text.assemble("refused: ", one_line(str(payload.get("message", ""))), style="red")
        case "privilege_changed":
            who = payload.get("participant", {})
            said = f" is now {who.get('privilege')}, by {one_line(str(payload.get('by', '')))}"
            return Text.assemble(name(str(who.get("id", ""))), said, style="bold")
        case "recipient_absent":
            absent = ", ".join(map(str, payload.get("absent", [])))
            return Text(f"not in the room: {one_line(absent)}", style="red")
        case "recipient_cannot_answer":
            mute = ", ".join(map(str, payload.get("participants", [])))
            return Text(f"restricted, and cannot answer: {one_line(mute)}", style="red")
        case str(event) if event.startswith("proposal_"):
            by = f" by {one_line(str(payload['by']))}" if payload.get("by") else ""
            why = f": {one_line(str(payload['reason']))}" if payload.get("reason") else ""
            return Text(f"a proposal {_became(event)}{by}{why}", style="yellow")
        case "history_gap":
            return Text("some older messages are no longer kept", style="red")
        case _:
            return None


def _became(event: str) -> str:
    status = event.removeprefix("proposal_")
    return {"expired": "has expired"}.get(status, f"was {one_line(status)}")


def name(participant: str) -> Text:
    """In a colour of its own, the same for everyone who looks."""
    colour = COLOURS[sum(participant.encode()) % len(COLOURS)]
    return Text(one_line(participant), style=f"bold {colour}")


def _recipients(heard: Heard) -> Text:
    return Text.assemble(" → ", Text(", ").join(name(one) for one in heard.to)) if heard.to else Text()


def _request(payload: Any) -> Text:
    method, params = str(payload.get("method", "")), payload.get("params") or {}
    if method == "tools/call" and isinstance(params, dict):
        return Text.assemble(one_line(str(params.get("name", ""))), " ", _short(params.get("arguments", {})))
    return Text.assemble(one_line(method), " ", _short(params) if params else "")


def _result(result: Any) -> Text:
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list) and all(isinstance(one, dict) and "text" in one for one in content):
        failed = result.get("isError") is True
        text = printable("\n".join(str(one["text"]) for one in content))
        return Text(_cut(text) or "done", style="red" if failed else "")
    return _short(result)


def _short(value: Any) -> Text:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return Text(_cut(one_line(text)))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]} … ({len(text) - SHOWN_MAX:,} more characters)"


def proposal_title(proposal: Proposal) -> Text:
    """One line of the list."""
    target = name(proposal.target) if proposal.target is not None else Text("no one named", style="red")
    what = proposal.tool or proposal.method
    return Text.assemble(name(proposal.proposer), " → ", target, " ", Text(one_line(what), style="bold"))


def proposal_details(proposal: Proposal, now: datetime) -> Text:
    """Everything that would be sent, as it was written: nothing of it is cut. And why, and how long there is."""
    why_not = maybe_unreadable(proposal)
    lines = [Text(why_not, style="red")] if why_not is not None else []
    if len(proposal.params) <= READABLE_BYTES_MAX:
        lines += [Text(line) for line in layout_lines(proposal.params)]
    if proposal.reason:
        lines.append(Text.assemble(("because ", "dim"), printable(proposal.reason)))
    ends = moment(proposal.expires_at)
    if ends is not None:
        lines.append(Text(f"{duration((ends - now).total_seconds())} left", style="dim"))
    return Text("\n").join(lines)


def maybe_unreadable(proposal: Proposal) -> str | None:
    """Why it should not be approved from what a terminal shows."""
    if len(proposal.params) > READABLE_BYTES_MAX:
        return f"{len(proposal.params):,} bytes are too many to read here: decide in the console"
    try:
        read_untrusted(proposal.params, exact=False)
    except AmbiguousJson as ambiguous:
        return f"its parameters can be read in two ways: {ambiguous}"
    return None

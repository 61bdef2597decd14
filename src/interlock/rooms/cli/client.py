"""The terminal application of a room: messages above, participants beside them, waiting proposals below.

It uses a participant of the library and nothing else. Keys that decide act on the highlighted proposal, but not within
a moment after the highlight moved by itself: a person decides about the proposal that they have read.
"""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import msgspec
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Footer, Input, OptionList, RichLog, Static
from textual.widgets.option_list import Option

from interlock.cli.terminal.text import duration, local_time, moment, one_line, safe_drawing
from interlock.sdk.rooms import Heard, Listener, Participant, Proposal, RoomError, RoomInvalid
from interlock.wire.jsontext.canonical import AmbiguousJson, read_untrusted
from interlock.wire.jsontext.display import layout_lines

READABLE_BYTES_MAX: Final = 64 * 1024  # of the parameters of a proposal
SHOWN_MAX: Final = 400  # characters of one message of others' programs
COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


def find_line(heard: Heard, own: str) -> Text | None:
    """Return the line that shows an envelope in the terminal, or None if only programs need the envelope."""
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
    return safe_drawing(line)


def _body(heard: Heard, own: str) -> Text | None:
    """Return the text that shows an envelope, depending on its kind. Return None if only programs need the envelope."""
    payload = heard.payload
    match heard.kind:
        case "chat":
            return Text.assemble(name(heard.sender), _recipients(heard), " ", heard.text)
        case "mcp/proposal":
            request = _request(payload)
            why = f" because {one_line(payload['reason'])}" if payload.get("reason") else ""
            parts = (name(heard.sender), " proposes", _recipients(heard), ": ", request, why)
            return Text.assemble(*parts, style="yellow")
        case "mcp":
            return _mcp(heard, payload, own)
        case "presence" if payload.get("event") in ("join", "leave"):
            who = payload.get("participant", {})
            deed = f" joined ({who.get('privilege')})" if payload["event"] == "join" else " left"
            return Text.assemble(name(str(who.get("id", ""))), deed, style="dim")
        case "system":
            return _event(payload)
        case "presence":
            return None
        case _:
            return Text.assemble(name(heard.sender), f" {one_line(heard.kind)} ", _short(payload), style="dim")


def _mcp(heard: Heard, payload: Any, own: str) -> Text | None:
    """Return the text that shows an MCP request, a reply or a refusal. Return None for notifications, handshakes and
    lists of tools, which are not shown.
    """
    if heard.sender == "system:gateway":
        return Text.assemble("refused: ", _short(payload.get("error", {}).get("message", "")), style="red")
    if "method" in payload:
        if "id" not in payload or payload["method"] == "initialize":
            return None
        return Text.assemble(name(heard.sender), _recipients(heard), ": ", _request(payload), style="dim")
    if "error" in payload:
        why = payload["error"]
        line = why.get("message", "") if isinstance(why, dict) else why
        return Text.assemble(name(heard.sender), _recipients(heard), ": error ", _short(line), style="red")
    result = payload.get("result")
    if isinstance(result, dict) and ("protocolVersion" in result or "tools" in result):
        return None
    is_ours = own in heard.to
    line = Text.assemble(name(heard.sender), _recipients(heard), ": ", _result(result))
    return line if is_ours else Text.assemble(line, style="dim")


def _event(payload: Any) -> Text | None:
    """Return the text that displays an event of the gateway, or None if the event is not displayed."""
    match payload.get("event"):
        case "error":
            return Text.assemble("refused: ", one_line(str(payload.get("message", ""))), style="red")
        case "privilege_changed":
            who = payload.get("participant", {})
            change = f" is now {who.get('privilege')}, by {one_line(str(payload.get('by', '')))}"
            return Text.assemble(name(str(who.get("id", ""))), change, style="bold")
        case "recipient_absent":
            absent = ", ".join(map(str, payload.get("absent", [])))
            return Text(f"not in the room: {one_line(absent)}", style="red")
        case "recipient_cannot_answer":
            mute = ", ".join(map(str, payload.get("participants", [])))
            return Text(f"restricted, and cannot answer: {one_line(mute)}", style="red")
        case str(event) if event.startswith("proposal_"):
            by = f" by {one_line(str(payload['by']))}" if payload.get("by") else ""
            why = f": {one_line(str(payload['reason']))}" if payload.get("reason") else ""
            status = event.removeprefix("proposal_")
            end = "has expired" if status == "expired" else f"was {one_line(status)}"
            return Text(f"a proposal {end}{by}{why}", style="yellow")
        case "history_gap":
            return Text("some older messages are no longer kept", style="red")
        case _:
            return None


def name(participant: str) -> Text:
    """Return a participant's name in its color. The color depends on the name only, so that all terminals show the same
    one.
    """
    colour = COLOURS[sum(participant.encode()) % len(COLOURS)]
    return Text(one_line(participant), style=f"bold {colour}")


def _recipients(heard: Heard) -> Text:
    return Text.assemble(" → ", Text(", ").join(name(recipient) for recipient in heard.to)) if heard.to else Text()


def _request(payload: Any) -> Text:
    method, params = str(payload.get("method", "")), payload.get("params") or {}
    if method == "tools/call" and isinstance(params, dict):
        return Text.assemble(one_line(str(params.get("name", ""))), " ", _short(params.get("arguments", {})))
    return Text.assemble(one_line(method), " ", _short(params) if params else "")


def _result(result: Any) -> Text:
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list) and all(isinstance(block, dict) and "text" in block for block in content):
        failed = result.get("isError") is True
        text = "\n".join(str(block["text"]) for block in content)
        return Text(_cut(text) or "done", style="red" if failed else "")
    return _short(result)


def _short(value: Any) -> Text:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return Text(_cut(one_line(text)))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]} … ({len(text) - SHOWN_MAX:,} more characters)"


def proposal_title(proposal: Proposal) -> Text:
    """Return the line that represents a proposal in the list."""
    target = name(proposal.target) if proposal.target is not None else Text("no one named", style="red")
    what = proposal.tool or proposal.method
    return Text.assemble(name(proposal.proposer), " → ", target, " ", Text(one_line(what), style="bold"))


def proposal_details(proposal: Proposal, now: datetime) -> Text:
    """Return the details of a proposal: the params that an approval would send, the reason, and the remaining time.
    Params of more than READABLE_BYTES_MAX are left out.
    """
    why_not = find_reading_problem(proposal)
    lines = [Text(why_not, style="red")] if why_not is not None else []
    if len(proposal.params) <= READABLE_BYTES_MAX:
        lines += [Text(line) for line in layout_lines(proposal.params)]
    if proposal.reason:
        lines.append(Text.assemble(("because ", "dim"), proposal.reason))
    if (ends := moment(proposal.expires_at)) is not None:
        lines.append(Text(f"{duration((ends - now).total_seconds())} left", style="dim"))
    return safe_drawing(Text("\n").join(lines))


def find_reading_problem(proposal: Proposal) -> str | None:
    """Return why a person cannot judge the proposal from what a terminal shows, or None if they can."""
    if len(proposal.params) > READABLE_BYTES_MAX:
        return f"{len(proposal.params):,} bytes are too many to read here: decide in the console"
    try:
        read_untrusted(proposal.params, exact=False)
    except AmbiguousJson as ambiguous:
        return f"its parameters can be read in two ways: {ambiguous}"
    return None


SETTLE_S: Final = 0.7  # after the highlight moved by itself
LOOK_S: Final = 0.5  # how often the state of the connection is shown
LINES_MAX: Final = 5000
HELP: Final = """\
What you type is said to everyone in the room. Besides:
  /call WHO TOOL {JSON}      call a tool of a participant; where you are restricted it is proposed
  /propose WHO TOOL {JSON}   propose it, whatever you are
  /tools WHO                 what a participant offers
  /quit                      leave
Keys: ^y approves and ^n denies the highlighted proposal, also a and d in the list; Tab moves on."""


class RoomApp(App[int]):
    """The terminal application for one room. Its exit code is 1 if the room was lost permanently, otherwise 0."""

    CSS: ClassVar[str] = """
    #head { height: 1; background: $boost; padding: 0 1; }
    #said { padding: 0 1; }
    #who { width: 22; border-left: solid $surface-lighten-2; padding: 0 1; }
    #decide { height: auto; max-height: 14; border-top: solid yellow; display: none; }
    #decide.waiting { display: block; }
    #proposals { height: auto; max-height: 4; border: none; padding: 0; }
    #details { height: auto; max-height: 8; padding: 0 1; }
    #entry { border: none; height: 1; padding: 0 1; }
    .narrow #who { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+y", "decide(True)", "Approve", priority=True),
        Binding("ctrl+n", "decide(False)", "Deny", priority=True),
        Binding("f1", "help", "Help"),
        Binding("ctrl+c,ctrl+q", "leave", "Leave", priority=True),
    ]
    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False

    def __init__(self, participant: Participant, heard: Listener) -> None:
        """Create the application. Open the listener `heard` before the participant joins, so that nothing is missed."""
        super().__init__()
        self._room = participant
        self._heard = heard
        self._moved_at = 0.0
        self._deciding: set[str] = set()
        self.lost: RoomError | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Horizontal():
            yield RichLog(id="said", wrap=True, max_lines=LINES_MAX, min_width=20)
            yield VerticalScroll(Static(id="names"), id="who")
        with Vertical(id="decide"):
            yield ProposalList(id="proposals")
            yield VerticalScroll(Static(id="what"), id="details")
        yield Input(id="entry", placeholder=f"Everyone in {self._room.topic} sees what you say")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.set_interval(LOOK_S, self._show_state)
        self._show_state()
        self._listen()
        self._read_proposals()

    def on_resize(self) -> None:
        self.set_class(self.size.width < 60, "narrow")

    # What is heard

    @work
    async def _listen(self) -> None:
        """Show each envelope when it arrives. End the application if the room is lost permanently."""
        try:
            async for heard in self._heard:
                if (line := find_line(heard, self._room.id)) is not None:
                    self._write(line)
                self._show_state()
                self._show_proposals()
                if heard.kind == "mcp/proposal" and not heard.is_old:
                    self._read_proposals()
        except RoomError as lost:
            self.lost = lost
            self.exit(1)

    def _write(self, line: Text) -> None:
        for messages in self.query(RichLog):  # there is none when the application ends
            messages.write(safe_drawing(line))

    @property
    def _is_drawn(self) -> bool:
        """Return whether the screen still exists. Timers and workers may still run while the application ends."""
        return bool(self.query(ProposalList)) and bool(self.query("#names")) and bool(self.query("#what"))

    def _show_state(self) -> None:
        """Draw the header line and the list of participants."""
        if not self._is_drawn:
            return
        room = self._room
        state = ("connected", "green") if room.is_connected else ("connecting again …", "bold red")
        privilege = (room.privilege, "green" if room.privilege == "full" else "yellow")
        self._show_details()
        head = Text.assemble((room.topic, "bold"), " · ", name(room.id), " ", privilege, " · ", state)
        self.query_one("#head", Static).update(head)
        rows = [Text("in the room", style="dim"), Text.assemble(name(room.id), ("  you", "dim"))]
        for peer in room.who():
            rows.append(Text.assemble(name(peer.id), ("  restricted" if peer.privilege != "full" else "", "yellow")))
        self.query_one("#names", Static).update(Text("\n").join(rows))

    # Proposals

    def _show_proposals(self) -> None:
        """Update the list of proposals. New ones are appended, so that the highlight stays on the proposal that the
        user is reading.
        """
        if not self._is_drawn:
            return
        listed = self.query_one(ProposalList)
        pending = {proposal.id: proposal for proposal in self._room.proposals if proposal.id not in self._deciding}
        shown = [listed.get_option_at_index(index).id for index in range(listed.option_count)]
        gone = [id for id in shown if id is not None and id not in pending]
        highlighted = self._find_selected_id()
        for id in gone:
            listed.remove_option(id)
        for id, proposal in pending.items():
            if id not in shown:
                listed.add_option(Option(proposal_title(proposal), id=id))
        if listed.option_count and (listed.highlighted is None or highlighted in gone):
            listed.action_first()
            self._moved_at = time.monotonic()
        self.query_one("#decide").set_class(bool(pending), "waiting")
        self._show_details()

    @work(exclusive=True, group="proposals")
    async def _read_proposals(self) -> None:
        """Fetch the proposals from the gateway, which knows when each expires and how older ones ended."""
        if await self._try(self._room.read_proposals()) is not None:
            self._show_proposals()

    def _find_selected_id(self) -> str | None:
        listed = self.query_one(ProposalList)
        if listed.highlighted is None or not listed.option_count:
            return None
        return listed.get_option_at_index(listed.highlighted).id

    def _find_selected(self) -> Proposal | None:
        id = self._find_selected_id()
        return next((proposal for proposal in self._room.proposals if proposal.id == id), None)

    @on(OptionList.OptionHighlighted)
    def _show_details(self) -> None:
        if not self._is_drawn:
            return
        proposal = self._find_selected()
        details = "" if proposal is None else proposal_details(proposal, datetime.now(UTC))
        self.query_one("#what", Static).update(details)

    def action_decide(self, is_approved: bool) -> None:
        """Approve or deny the highlighted proposal, or show why that is not possible."""
        if (proposal := self._find_selected()) is None:
            self.bell()
        elif time.monotonic() - self._moved_at < SETTLE_S:
            self.notify("another proposal has moved up: look again, then press the key", severity="warning")
        elif self._room.privilege != "full":
            self.notify("you are restricted here: others decide", severity="warning")
        elif proposal.proposer == self._room.id:
            self.notify("this is your own proposal: others decide", severity="warning")
        elif is_approved and (why := find_reading_problem(proposal)) is not None:
            self.notify(why, severity="error")
        else:
            self._deciding.add(proposal.id)
            self._show_proposals()
            self._send_decision(proposal, is_approved=is_approved)

    @work
    async def _send_decision(self, proposal: Proposal, *, is_approved: bool) -> None:
        """Send a decision to the gateway. The proposal is hidden from the list until the gateway answers."""
        decide = self._room.fulfil if is_approved else self._room.reject
        try:
            await self._try(decide(proposal.id))
        finally:
            self._deciding.discard(proposal.id)
            self._show_proposals()

    # What is typed

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        event.input.clear()
        if text:
            self._perform(text)

    @work
    async def _perform(self, text: str) -> None:
        """Publish the typed text, or run it as a command if it begins with a slash. A text that begins with two slashes
        is published with one.
        """
        if not text.startswith("/") or text.startswith("//"):
            await self._try(self._room.say(text.removeprefix("/")))
            return
        word, *rest = text[1:].split(maxsplit=3)
        match (word, *rest):
            case ("quit" | "leave", *_):
                await self.action_leave()
            case ("tools", peer):
                tools = await self._try(self._room.tools(peer))
                for tool in tools or ():
                    description = one_line(tool.get("description", ""))
                    self._write(Text.assemble("  ", (one_line(tool["name"]), "bold"), "  ", description))
            case ("call" | "propose", peer, tool, *arguments):
                try:
                    decoded = msgspec.json.decode(arguments[0] if arguments else "{}", type=dict[str, Any])
                except msgspec.DecodeError as error:
                    self._write(Text(f"the arguments are no JSON object: {error}", style="red"))
                    return
                request = self._room.propose if word == "propose" else self._room.call
                await self._try(request(peer, tool, decoded))
            case _:
                self.action_help()

    async def _try(self, deed: Any) -> Any:
        """Await a request and return its result. Show the error and return None if it fails."""
        try:
            return await deed
        except (RoomError, RoomInvalid) as failed:
            self._write(Text(one_line(str(failed)), style="red"))
            return None

    def action_help(self) -> None:
        self._write(Text(HELP, style="dim"))

    async def action_leave(self) -> None:
        self.exit(0)


class ProposalList(OptionList):
    """The list of pending proposals. It adds keys to approve and deny the highlighted one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "app.decide(True)", "Approve", show=False),
        Binding("d", "app.decide(False)", "Deny", show=False),
    ]


async def join(participant: Participant, *, headless: bool = False) -> int:
    """Join the room, run the terminal application, then leave. Return the exit code. Raise RoomError if joining fails
    or the room is lost permanently.
    """
    app = RoomApp(participant, participant.listen())
    async with participant:
        try:
            code = await app.run_async(headless=headless)
        finally:
            await asyncio.sleep(0)
    if app.lost is not None:
        raise app.lost
    return code or 0

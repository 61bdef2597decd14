"""Commands about rooms."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, Unreachable
from interlock.cli.terminal.text import local_time
from interlock.rooms import api
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.sdk.rooms import Participant

app = verb_app(
    "See rooms, make them, take part, and decide who may act in them.",
    examples="""
    interlock rooms create yard
    interlock access token --for room --name ann --topic yard --participant ann
    interlock rooms show yard
    interlock rooms join yard
    interlock rooms promote ann --reason "a week without a fault"
    """,
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The room.")]
ParticipantId = Annotated[str, typer.Argument(metavar="PARTICIPANT", help="Its id in the room.")]
InRoom = Annotated[str | None, option("--topic", "The room, if the participant is in several.", "TOPIC")]
Reason = Annotated[str, option("--reason", "Why; it is recorded.", "TEXT")]


@verb(app, "list")
def list_rooms(invocation: Invocation) -> None:
    """List rooms, and how many are in each.

    Examples:
        interlock rooms list
        interlock rooms list --json | jq -r '.rooms[].topic'
    """
    if (answer := invocation.call_or_print(api.LIST_ROOMS)) is None:
        return
    if not answer.rooms:
        invocation.out.remark("there are no rooms; interlock rooms create TOPIC makes one")
        return
    rows = [
        (
            (room.topic, "bold"),
            (room.mode, "red" if room.mode == "open" else ""),
            str(room.participants),
            str(room.envelopes),
            ("" if room.is_configured else "created", "dim"),
        )
        for room in answer.rooms
    ]
    invocation.out.draw_table("ROOM|MODE|PRESENT|ENVELOPES|", rows, {0: 12})


@verb(app, "create")
def create(invocation: Invocation, topic: Topic) -> None:
    """Make a room. It keeps its history while it is empty.

    Examples:
        interlock rooms create garden
    """
    if invocation.call_or_print(api.CREATE_ROOM, api.CreateRoom(topic=topic)) is not None:
        out = invocation.out
        out.line(f"made: {topic}")
        out.remark(f"interlock access token --for room --topic {topic} --participant ID --name NAME lets somebody in")


@verb(app, "show")
def show(invocation: Invocation, topic: Topic) -> None:
    """Show who is connected to a room, and what they may do.

    Examples:
        interlock rooms show garden
    """
    if (shown := invocation.call_or_print(api.LIST_CONNECTIONS, topic=topic)) is None:
        return
    out, connections = invocation.out, shown.connections
    for gone in shown.removed:
        out.line(f"removed: {gone.participantId} (by {gone.by}, {local_time(gone.at)})")
    if not connections:
        out.remark("no participant is connected")
        return
    # The last column is left out while no connection is elsewhere.
    elsewhere = "AT" if any(connection.isElsewhere for connection in connections) else ""
    rows = [
        (
            (connection.participantId, "bold"),
            connection.privilege,
            connection.source,
            local_time(connection.connectedAt, "%H:%M:%S"),
            connection.protocol,
            connection.principal,
            ("elsewhere" if connection.isElsewhere else "", "dim"),
        )
        for connection in connections
    ]
    out.draw_table(f"PARTICIPANT|PRIVILEGE|BY|SINCE|SPEAKS|IS|{elsewhere}", rows, {0: 12, 5: 12})


HISTORY = 50  # messages that a person sees on coming in
TOKEN_DAYS = 1
EXTRA = "interlock[rooms]"


@verb(app, "join")
def join(
    invocation: Invocation,
    topic: Topic,
    *,
    name: Annotated[str | None, typer.Option("--as", metavar="PARTICIPANT")] = None,
    restricted: Annotated[bool, option("--restricted")] = False,
) -> None:
    """Take part in a room: read, speak, and decide on proposals.

    At this machine's node an operator comes in with a token for a day that ends with the visit. At another one, --url
    is its public URL and the token in INTERLOCK_TOKEN is one for the room, or of a client that is a member.

    Options:
        name: Your id in the room; by default your login name.
        restricted: Come in without the right to decide.

    Examples:
        interlock rooms join garden
        interlock rooms join garden --as ann
        INTERLOCK_TOKEN=… interlock rooms join garden --url https://node.example.com
    """
    if invocation.out.as_json:
        raise BadUsage("usage", "join is for people; programs use interlock.rooms, or the history over HTTP")
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise BadUsage("no_terminal", "join needs a terminal; interlock rooms show TOPIC needs none")
    try:
        import textual  # noqa: F401
    except ImportError:
        hint = f"{sys.executable} -m pip install '{EXTRA}'"
        raise Refused("not_installed", "the terminal client of rooms is not installed", hint=hint) from None
    import getpass
    import re

    from interlock.access.api import ISSUE_TOKEN, REVOKE_TOKEN, IssuedToken, IssueToken, TokenRoom
    from interlock.operator.api import GET_STATUS, Status
    from interlock.sdk.rooms import Participant, RoomInvalid

    if invocation.remote_url is not None:
        address, token = _address(invocation.remote_url), os.environ.get("INTERLOCK_TOKEN")
        try:
            participant = Participant(address, topic, token=token, history=HISTORY, kind="human")
        except RoomInvalid as wrong:
            raise BadUsage("usage", str(wrong)) from None
        _run(participant)
        return
    try:
        user = name or re.sub(r"[^A-Za-z0-9._-]", "-", getpass.getuser())[:64]
    except (KeyError, OSError):  # this user of the machine has no name
        user = ""
    who = user or "operator"
    room = TokenRoom(topic=topic, participant=who, privilege="restricted" if restricted else "full")
    wanted = IssueToken(name=f"join-{who}", audience="room", days=TOKEN_DAYS, room=room)
    address = _address(invocation.node.call(GET_STATUS).as_(Status).node.url)
    issued = invocation.node.call(ISSUE_TOKEN, body=wanted).as_(IssuedToken)
    try:
        _run(Participant(address, topic, token=issued.token, history=HISTORY, kind="human"))
    finally:
        invocation.node.call(REVOKE_TOKEN, ref=issued.id)


def _run(participant: "Participant") -> None:
    import asyncio

    from interlock.rooms.cli.client import join as run
    from interlock.sdk.rooms import RoomRefused, RoomUnreachable

    try:
        code = asyncio.run(run(participant))
    except RoomRefused as refused:
        raise Refused(refused.code, refused.message) from None
    except RoomUnreachable as away:
        raise Unreachable("unreachable", f"no room: {away}") from None
    if code:
        raise typer.Exit(code)


def _address(url: str) -> str:
    """Return the scheme and the host of a URL, without its path."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


@verb(app, "promote")
def promote(invocation: Invocation, participant: ParticipantId, *, topic: InRoom = None, reason: Reason = "") -> None:
    """Let a participant send MCP messages, from its next one on.

    Examples:
        interlock rooms promote planner --reason "a week without a fault"
        interlock rooms promote planner --topic garden
    """
    body = api.ChangePrivilege(reason=reason)
    if invocation.call_or_print(api.PROMOTE, body, id=participant, topic=topic) is not None:
        invocation.out.line(f"{participant} is now full")


@verb(app, "demote")
def demote(invocation: Invocation, participant: ParticipantId, *, topic: InRoom = None, reason: Reason = "") -> None:
    """Let a participant only propose, from its next message on.

    Examples:
        interlock rooms demote planner
    """
    body = api.ChangePrivilege(reason=reason)
    if invocation.call_or_print(api.DEMOTE, body, id=participant, topic=topic) is not None:
        invocation.out.line(f"{participant} is now restricted")


@verb(app, "disconnect")
def disconnect(invocation: Invocation, participant: ParticipantId, *, topic: InRoom = None) -> None:
    """Remove a participant from a room.

    Its connections are closed, and it may come back when it is promoted or demoted.

    Examples:
        interlock rooms disconnect planner
    """
    if (removal := invocation.call_or_print(api.DISCONNECT, id=participant, topic=topic)) is not None:
        out = invocation.out
        out.line(f"removed: {participant}" + ("" if removal.closedConnections else " (it had no connection)"))
        out.remark(f"interlock rooms demote {participant} lets it in again, restricted; promote, full")


@verb(app, "migrate")
def migrate(
    invocation: Invocation,
    topic: Topic,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Only show it. This is the default.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Make those participants full.")] = False,
) -> None:
    """Show who would be refused something in mode "mixed".

    A room with mode = "observe" refuses nothing and records what it would. --apply makes the participants that it
    names full, so that the mode can be changed to "mixed" without stopping them.

    Examples:
        interlock rooms migrate garden
        interlock rooms migrate garden --apply
    """
    if plan and apply:
        raise BadUsage("usage", "--plan shows and --apply changes: give one of them")
    out, observed = invocation.out, invocation.call_or_print(api.MIGRATE if apply else api.SHOW_OBSERVED, topic=topic)
    if observed is None:
        return
    if not observed.participants:
        out.remark(f"nothing was observed in {topic} that a mixed room would refuse (its mode is {observed.mode})")
        return
    for participant in observed.participants:
        first, last = (local_time(at, "%m-%d %H:%M") for at in (participant.first, participant.last))
        out.line(
            f"{participant.participant} ({participant.principal}): {participant.envelopes} of kind "
            f"{', '.join(participant.kinds)} would be refused, {first} to {last}"
        )
        remedy = f"keeps working with: {participant.remedy}"
        out.line("  is full by an admin's grant" if participant.is_full else f"  {remedy}")
    if apply and not all(participant.is_full for participant in observed.participants):
        out.remark("participants that an admin demoted or removed stay so")
    if apply:
        out.remark(f'now mode = "mixed" for {topic} in interlock.toml refuses nothing of those who are full')
    else:
        out.remark(f"interlock rooms migrate {topic} --apply makes them full")

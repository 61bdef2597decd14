"""interlock rooms join TOPIC"""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli.command import Invocation, verb
from interlock.cli.terminal.errors import BadUsage, Refused, Unreachable

if TYPE_CHECKING:
    from interlock.sdk.rooms import Participant

HISTORY = 50  # messages that a person sees on coming in
TOKEN_DAYS = 1
EXTRA = "interlock[rooms]"


def register(app: typer.Typer) -> None:
    verb(
        app,
        "join",
        examples="""
        interlock rooms join garden
        interlock rooms join garden --as ann
        INTERLOCK_TOKEN=… interlock rooms join garden --url https://node.example.com
        """,
    )(join)


def join(
    invocation: Invocation,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The room.")],
    *,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="PARTICIPANT", help="Your id in the room; by default your login name."),
    ] = None,
    restricted: Annotated[
        bool, typer.Option("--restricted", help="Come in without the right to decide.", show_default=False)
    ] = False,
) -> None:
    """Take part in a room: read, speak, and decide on proposals.

    At this machine's node an operator comes in with a token for a day that ends with the visit. At another one, --url
    is its public URL and the token in INTERLOCK_TOKEN is one for the room, or of a client that is a member.
    """
    if invocation.out.as_json:
        raise BadUsage("usage", "join is for people; programs use interlock.rooms, or the history over HTTP")
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise BadUsage("no_terminal", "join needs a terminal; interlock rooms show TOPIC needs none")
    try:
        import textual  # noqa: F401
    except ImportError:
        raise Refused(
            "not_installed",
            "the terminal client of rooms is not installed",
            hint=f"{sys.executable} -m pip install '{EXTRA}'",
        ) from None
    if invocation.remote_url is not None:
        _run(_remote(invocation.remote_url, topic))
        return
    from interlock.access.api import IssuedToken, IssueToken, TokenRoom
    from interlock.operator.api import Status
    from interlock.sdk.rooms import Participant

    who = name or _login_name()
    room = TokenRoom(topic=topic, participant=who, privilege="restricted" if restricted else "full")
    wanted = IssueToken(name=f"join-{who}", audience="room", days=TOKEN_DAYS, room=room)
    address = _address(invocation.node.get("status").as_(Status).node.url)
    issued = invocation.node.post("tokens", body=wanted).as_(IssuedToken)
    try:
        _run(Participant(address, topic, token=issued.token, history=HISTORY, kind="human"))
    finally:
        invocation.node.delete("tokens", issued.id)


def _remote(url: str, topic: str) -> "Participant":
    from interlock.sdk.rooms import Participant, RoomInvalid

    try:
        return Participant(_address(url), topic, token=os.environ.get("INTERLOCK_TOKEN"), history=HISTORY, kind="human")
    except RoomInvalid as wrong:
        raise BadUsage("usage", str(wrong)) from None


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
    """The node's, without a path."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _login_name() -> str:
    import getpass
    import re

    try:
        found = getpass.getuser()
    except OSError:
        found = ""
    return re.sub(r"[^A-Za-z0-9._-]", "-", found)[:64] or "operator"

"""interlock access token | list | revoke | anchor | certificate | key | passkey"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from interlock.access.cli import anchors as access_anchor
from interlock.access.cli import certificates as access_certificate
from interlock.access.cli import keys as access_key
from interlock.access.cli import passkeys as access_passkey
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, CommandFailed, Unreachable

if TYPE_CHECKING:
    from interlock.access.api import IssuedToken, Token, TokenRoom
    from interlock.cli.client.offline import StoredTokens
    from interlock.cli.client.operator import Answer

ROOMS_NAMED = 5

app = verb_app(
    "Make, list and revoke tokens, and what proves who we are.",
    examples="""
    interlock access token --for client --name laptop
    interlock access list
    interlock access revoke laptop
    interlock access anchor
    interlock access certificate hub.example.com
    interlock access key ada
    interlock access passkey ada
    """,
)


@verb(
    app,
    "token",
    examples="""
    interlock access token --for client --name laptop
    interlock access token --for client --name ci --scope read --days 7
    interlock access token --for subserver --name greenhouse
    interlock access token --for room --name ann --topic yard --participant ann
    export INTERLOCK_TOKEN=$(interlock access token --for operator --name me)
    """,
)
def token(
    invocation: Invocation,
    audience: Annotated[
        Literal["client", "subserver", "room", "operator"],
        typer.Option(
            "--for",
            help="Who uses it: a program, a subserver, a participant of a room, or a person at the operator endpoint.",
            show_default=False,
        ),
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Who gets it.", show_default=False)],
    scope: Annotated[
        Literal["read", "write", "admin"] | None,
        typer.Option("--scope", help="What it may do at most.", show_default=False),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            "--days", min=1, max=3650, help="How long it lasts; auth.token_days if not given.", show_default=False
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="The room it is for.", show_default=False)
    ] = None,
    participant: Annotated[
        str | None, typer.Option("--participant", metavar="ID", help="Who its holder is there.", show_default=False)
    ] = None,
    privilege: Annotated[
        str | None,
        typer.Option(
            "--privilege",
            metavar="restricted|full",
            help="What it may do there; restricted if not given.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a token. It is shown this once; only its hash is kept."""
    from interlock.access.api import IssueToken

    room = _room(audience, topic, participant, privilege)
    wanted = IssueToken(name=name, audience=audience, scope=scope, days=days, room=room)
    try:
        answer = invocation.node.post("tokens", body=wanted)
    except Unreachable as away:
        if room is not None:
            raise
        answer = _from_store(invocation, away).issue(name, audience, scope, days)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        if room is not None:
            _warn_of_no_room(invocation, room.topic)
        return
    from interlock.access.api import IssuedToken
    from interlock.cli.terminal.text import local_time

    issued = answer.as_(IssuedToken)
    until = f", until {local_time(issued.expires_at, '%Y-%m-%d')}" if issued.expires_at else ""
    out.line(issued.token)
    out.remark(f"{issued.audience} token {issued.name}{until}, id {issued.id}; shown this once, only its hash is kept")
    out.remark(_use(issued) if room is None else _use_in_room(invocation, room.topic))
    if room is not None:
        _warn_of_no_room(invocation, room.topic)


def _room(audience: str, topic: str | None, participant: str | None, privilege: str | None) -> "TokenRoom | None":
    from interlock.access.api import TokenRoom

    if audience != "room":
        if topic or participant or privilege:
            raise BadUsage("not_a_room", "--topic, --participant and --privilege go with --for room")
        return None
    if topic is None or participant is None:
        raise BadUsage("room_needed", "a token for a room takes --topic and --participant")
    return TokenRoom(topic=topic, participant=participant, privilege=privilege or "restricted")


def _use(issued: "IssuedToken") -> str:
    if issued.audience == "operator":
        return "use: INTERLOCK_TOKEN=… interlock status --url OPERATOR_URL"
    if issued.audience == "subserver":
        return 'use: Subserver("SEGMENT", parents=["wss://HOST/ax"], token="…"), or secret in [[ax.parents]]'
    return 'use: claude mcp add --transport http interlock URL --header "Authorization: Bearer …"'


def _use_in_room(invocation: Invocation, topic: str) -> str:
    from interlock.operator.api import Status

    try:
        url = invocation.node.get("status").as_(Status).node.url
    except CommandFailed:  # the token is made and shown: the address is only a help
        url = ""
    address = url.replace("http", "ws", 1).rstrip("/")
    return f"use: a WebSocket at {address}/v0/ws?topic={topic} with the header Authorization: Bearer …"


def _warn_of_no_room(invocation: Invocation, topic: str) -> None:
    """The token is good all the same: a room may be made after it."""
    from interlock.rooms.api import Rooms

    try:
        rooms = invocation.node.get("rooms").as_(Rooms).rooms
    except CommandFailed:
        return
    topics = [room.topic for room in rooms]
    if topic not in topics:
        known = f"there is {', '.join(topics[:ROOMS_NAMED])}" if topics else "there is none yet"
        invocation.out.remark(
            f"no room has the topic {topic} so far ({known}); interlock rooms create {topic} makes it"
        )


@verb(
    app,
    "list",
    examples="""
    interlock access list
    interlock access list --json | jq -r '.tokens[].name'
    """,
)
def list_tokens(invocation: Invocation) -> None:
    """List who has a token, for which endpoint and until when."""
    try:
        answer = invocation.node.get("tokens")
    except Unreachable as away:
        answer = _from_store(invocation, away).list()
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    _draw(invocation, answer)


def _draw(invocation: Invocation, answer: "Answer") -> None:
    from rich.text import Text

    from interlock.access.api import Tokens
    from interlock.cli.terminal.columns import in_columns
    from interlock.cli.terminal.text import local_time, one_line

    out = invocation.out
    tokens = answer.as_(Tokens).tokens
    if not tokens:
        out.remark("no tokens; interlock access token --for client --name NAME makes one")
        return

    def day(at: str | None) -> Text:
        return Text(local_time(at, "%Y-%m-%d"), style="dim") if at else Text("-", style="dim")

    rows = [[Text(head, style="dim") for head in ("NAME", "FOR", "SCOPE", "CREATED", "EXPIRES", "USED", "ID")]]
    rows += [
        [
            Text(one_line(token.name), style="bold"),
            Text(one_line(_audience(token))),
            Text(token.scope or "-"),
            day(token.created_at),
            day(token.expires_at),
            day(token.last_used_at),
            Text(token.id, style="dim"),
        ]
        for token in tokens
    ]
    out.draw(*in_columns(rows, width=out.console.width, shrink={0: 12, 6: 8, 1: 12}))


def _audience(token: "Token") -> str:
    room = token.room
    return f"room {room.topic} as {room.participant}, {room.privilege}" if room else token.audience


@verb(
    app,
    "revoke",
    examples="""
    interlock access revoke laptop
    interlock access revoke 3f9c0a1b22de47aa
    """,
)
def revoke(
    invocation: Invocation,
    ref: Annotated[str, typer.Argument(metavar="NAME|ID", help="A token's id, or the name that its tokens bear.")],
) -> None:
    """Revoke a token, or all of one name. Its sessions end at once."""
    try:
        answer = invocation.node.delete("tokens", ref)
    except Unreachable as away:
        answer = _from_store(invocation, away).revoke(ref)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
        return
    from interlock.access.api import RevokedTokens

    for token_id in answer.as_(RevokedTokens).revoked:
        invocation.out.line(f"revoked {token_id}")


access_anchor.register(app)
access_certificate.register(app)
access_key.register(app)
access_passkey.register(app)


def _from_store(invocation: Invocation, away: Unreachable) -> "StoredTokens":
    """The token table itself, when no node runs on this data folder; another node's table is out of reach."""
    if invocation.remote_url is not None or away.error != "not_running":
        raise away
    from interlock.cli.client.offline import StoredTokens

    return StoredTokens(invocation.loaded.plan, invocation.data_folder)

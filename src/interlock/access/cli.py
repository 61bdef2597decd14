"""Commands about access: tokens, and the keys, certificates and passkeys that prove who somebody is."""

import time
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from interlock.access import api
from interlock.approvals.cli.keys import FromDescriptor, OperatorKeys, anchor_lines, choose_passphrase
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, Unreachable
from interlock.cli.terminal.text import local_time
from interlock.config.toml_text import toml_lines, toml_text
from interlock.crypto.jose import format_key, read_key_untrusted, thumbprint
from interlock.crypto.signing import KeyFileError, make_signing_key
from interlock.net.protocol.dns import find_dns_name
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.crypto.certificate_authority import Issued

ROOMS_NAMED = 5
_WHERE_IT_BELONGS = (
    "the lines above belong into interlock.toml of the node, where it is enrolled first: interlock approvals"
)

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


@verb(app, "token")
def token(
    invocation: Invocation,
    audience: Annotated[Literal["client", "subserver", "room", "operator"], option("--for")],
    name: Annotated[str, option("--name", metavar="NAME")],
    scope: Annotated[Literal["read", "write", "admin"] | None, option("--scope")] = None,
    days: Annotated[int | None, typer.Option("--days", min=1, max=3650, show_default=False)] = None,
    topic: Annotated[str | None, option("--topic", metavar="TOPIC")] = None,
    participant: Annotated[str | None, option("--participant", metavar="ID")] = None,
    privilege: Annotated[str | None, option("--privilege", metavar="restricted|full")] = None,
) -> None:
    """Make a token. It is shown this once; only its hash is kept.

    Options:
        audience: Who uses it: a program, a subserver, a participant of a room, or a person at the operator endpoint.
        name: Who gets it.
        scope: What it may do at most.
        days: How many days it is valid; auth.token_days if not given.
        topic: The room it is for.
        participant: The id of its holder in the room.
        privilege: Its privilege in the room; if not given, the room decides (full in an open room).

    Examples:
        interlock access token --for client --name laptop
        interlock access token --for client --name ci --scope read --days 7
        interlock access token --for subserver --name greenhouse
        interlock access token --for room --name ann --topic yard --participant ann
        export INTERLOCK_TOKEN=$(interlock access token --for operator --name me)
    """

    room = _room(audience, topic, participant, privilege)
    wanted = api.IssueToken(name=name, audience=audience, scope=scope, days=days, room=room)
    call = invocation.call_or_offline if room is None else invocation.node.call
    answer = call(api.ISSUE_TOKEN, body=wanted)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
    else:
        issued = answer.as_(api.IssuedToken)
        until = f", until {local_time(issued.expires_at, '%Y-%m-%d')}" if issued.expires_at else ""
        out.line(issued.token)
        notice = "shown this once, only its hash is kept"
        out.remark(f"{issued.audience} token {issued.name}{until}, id {issued.id}; {notice}")
        out.remark(_use(issued) if room is None else _use_in_room(invocation, room.topic))
    if room is not None:
        _warn_of_no_room(invocation, room.topic)


def _room(audience: str, topic: str | None, participant: str | None, privilege: str | None) -> api.TokenRoom | None:

    if audience != "room":
        if topic or participant or privilege:
            raise BadUsage("not_a_room", "--topic, --participant and --privilege go with --for room")
        return None
    if topic is None or participant is None:
        raise BadUsage("room_needed", "a token for a room takes --topic and --participant")
    return api.TokenRoom(topic=topic, participant=participant, privilege=privilege)


def _use(issued: api.IssuedToken) -> str:
    if issued.audience == "operator":
        return "use: INTERLOCK_TOKEN=… interlock status --url OPERATOR_URL"
    if issued.audience == "subserver":
        return 'use: Subserver("SEGMENT", parents=["wss://HOST/ax"], token="…"), or secret in [[ax.parents]]'
    return 'use: claude mcp add --transport http interlock URL --header "Authorization: Bearer …"'


def _use_in_room(invocation: Invocation, topic: str) -> str:
    from interlock.operator.api import GET_STATUS, Status

    try:
        url = invocation.node.call(GET_STATUS).as_(Status).node.url
    except Refused:  # the token is made and shown: the address is only a help
        url = ""
    address = url.replace("http", "ws", 1).rstrip("/")
    return f"use: a WebSocket at {address}/v0/ws?topic={topic} with the header Authorization: Bearer …"


def _warn_of_no_room(invocation: Invocation, topic: str) -> None:
    """Warn if there is no room of this topic.

    The token is valid anyway, because the room may be created later.
    """
    from interlock.rooms.api import LIST_ROOMS, Rooms

    try:
        rooms = invocation.node.call(LIST_ROOMS).as_(Rooms).rooms
    except Refused:
        return
    topics = [room.topic for room in rooms]
    if topic not in topics:
        existing = f"there is {', '.join(topics[:ROOMS_NAMED])}" if topics else "there is none yet"
        missing = f"no room has the topic {topic} so far ({existing})"
        invocation.out.remark(f"{missing}; interlock rooms create {topic} makes it")


@verb(app, "list")
def list_tokens(invocation: Invocation) -> None:
    """List who has a token, for which endpoint and until when.

    Examples:
        interlock access list
        interlock access list --json | jq -r '.tokens[].name'
    """

    if (listed := invocation.call_or_print(api.LIST_TOKENS, offline=True)) is None:
        return
    if not listed.tokens:
        invocation.out.remark("no tokens; interlock access token --for client --name NAME makes one")
        return
    rows: list[tuple[str | tuple[str, str], ...]] = []
    for token in listed.tokens:
        room, moments = token.room, (token.created_at, token.expires_at, token.last_used_at)
        audience: str = token.audience
        if room:
            audience = f"room {room.topic} as {room.participant}, {room.privilege or 'as the room decides'}"
        days = [(local_time(at, "%Y-%m-%d") if at else "-", "dim") for at in moments]
        rows.append(((token.name, "bold"), audience, token.scope or "-", *days, (token.id, "dim")))
    invocation.out.draw_table("NAME|FOR|SCOPE|CREATED|EXPIRES|USED|ID", rows, {0: 12, 6: 8, 1: 12})


@verb(app, "revoke")
def revoke(
    invocation: Invocation,
    ref: Annotated[str, typer.Argument(metavar="NAME|ID", help="A token's id, or the name of several tokens.")],
) -> None:
    """Revoke a token, or all of one name. Its sessions end at once.

    Examples:
        interlock access revoke laptop
        interlock access revoke 3f9c0a1b22de47aa
    """
    done = invocation.call_or_print(api.REVOKE_TOKEN, offline=True, ref=ref)
    for token_id in done.revoked if done is not None else ():
        invocation.out.line(f"revoked {token_id}")


@verb(app, "anchor")
def anchor(
    invocation: Invocation,
    key: Annotated[str | None, option("--key", metavar="FILE")] = None,
    name: Annotated[str | None, option("--name", metavar="NAME")] = None,
    speaks_for: Annotated[list[str] | None, option("--speaks-for", metavar="DNS")] = None,
) -> None:
    """Print the [[anchor]] to paste at a parent.

    With it the parent takes our signature as proof of the authority we register with. The private key is made on first
    use and stays here: node.key in the data folder, or the file that --key names.

    Options:
        key: A subserver's private key instead of the node's.
        name: What the parent calls it.
        speaks_for: A name it may prove; may be repeated.

    Examples:
        interlock access anchor
        interlock access anchor --speaks-for edge01.example.com
        interlock access anchor --key leaf.key --name leaf --speaks-for leaf.example
    """
    from interlock.ax.protocol.registration.authority import maybe_authority
    from interlock.core.node_identity import NODE_KEY

    path = Path(key).expanduser() if key is not None else invocation.data_folder / NODE_KEY
    names = speaks_for or []
    if key is None:
        plan = invocation.loaded.plan
        names = names or [parent.authority for parent in plan.ax.parents if parent.authority is not None]
        name = name or next((parent.segment for parent in plan.ax.parents), plan.node.name)
    proved = [maybe_authority(authority) or find_dns_name(authority) for authority in dict.fromkeys(names)]
    if None in proved:
        raise BadUsage("usage", "--speaks-for takes a DNS name such as edge01.example.com, no wildcard and no address")
    if not proved:
        raise BadUsage(
            "usage", "there is no name to speak for", hint="--speaks-for NAME, or give a parent its 'authority'"
        )
    is_new = not path.exists()
    try:
        public = make_signing_key(path).public
    except KeyFileError as refused:
        raise Refused("key_unusable", str(refused)) from None
    entry = {"name": name or path.stem, "key": format_key(public), "speaks_for": list(dict.fromkeys(proved))}
    out = invocation.out
    if out.as_json:
        out.json({"anchor": entry, "kid": public.kid, "file": str(path.absolute()), "made": is_new})
        return
    for line in anchor_lines(entry):
        out.line(line)
    out.remark(f"{'made' if is_new else 'used'} the private key {path}; it stays here")
    out.remark("paste the lines into interlock.toml of the parent; we sign at each registration with an `authority`")


CERTIFICATE_FOLDER = "tls"  # in the data folder


@verb(app, "certificate")
def certificate(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    dns: Annotated[list[str] | None, option("--dns", metavar="HOST")] = None,
    ip: Annotated[list[str] | None, option("--ip", metavar="ADDRESS")] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650)] = 365,
    folder: Annotated[str | None, option("--folder", metavar="FOLDER")] = None,
    renew: Annotated[bool, option("--renew")] = False,
    revoke: Annotated[bool, option("--revoke")] = False,
) -> None:
    """Make a certificate for a node, and a CA on first use.

    It serves a node's endpoints and its links to parents, and prints the lines to paste. The CA is for development
    and for trees without a PKI of their own: keep ca.key where it is.

    Options:
        name: The name of the node; also its DNS name if --dns gives none.
        dns: A name it is reached by; may be repeated.
        ip: An address; may be repeated.
        days: How many days it is valid.
        folder: Where the CA is; tls in the data folder if not given.
        renew: Make a new one in place of the existing one.
        revoke: Put the certificate on the revocation list instead.

    Examples:
        interlock access certificate hub.example.com
        interlock access certificate edge --dns edge01.example.com --ip 10.0.0.7
        interlock access certificate edge --renew --dns edge01.example.com
        interlock access certificate edge --revoke
    """

    from interlock.crypto.certificate_authority import DevelopmentAuthority, NameTaken

    place = Path(folder).expanduser().absolute() if folder else invocation.data_folder / CERTIFICATE_FOLDER
    authority = DevelopmentAuthority(place)
    out = invocation.out
    try:
        if revoke:
            if dns or ip or renew:
                raise BadUsage("usage", "--revoke takes no other option than --folder")
            crl = str(authority.revoke(name, now=time.time()))
            if out.as_json:
                out.json({"crl": crl})
                return
            out.line(f"crl = {toml_text(crl)}")
            out.remark("revoked; give the line to every node that has this CA as client_ca, and a copy of the file")
            return
        names = _names(name, dns)
        try:
            addresses = [str(ip_address(text)) for text in ip or []]
        except ValueError as error:
            raise BadUsage("usage", f"{error}", hint="--ip 10.0.0.7") from None
        if renew and not dns and not ip:  # a renewal without names keeps those of the certificate
            existing_names, existing_addresses = authority.names_of(name)
            if existing_names or existing_addresses:
                names, addresses = existing_names, existing_addresses
        issued = authority.issue(name, names, addresses, now=time.time(), days=days, renew=renew)
    except NameTaken as taken:
        raise Refused("exists", str(taken), hint="--renew writes over it") from None
    except KeyFileError as refused:
        raise Refused("not_written", str(refused)) from None
    _print_certificate(invocation, name, issued, names + addresses)


def _print_certificate(invocation: Invocation, name: str, issued: "Issued", names: list[str]) -> None:

    from interlock.crypto.certificate_authority import CA_KEY

    paths = {"tls_cert": str(issued.certificate), "tls_key": str(issued.key)}
    out, ca = invocation.out, str(issued.authority)
    expires = datetime.fromtimestamp(issued.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if out.as_json:
        out.json({**paths, "ca": ca, "ca_made": issued.authority_made, "names": names, "expires_at": expires})
        return
    out.line(f"# interlock.toml of {name}, for those who dial it")
    out.line("[node]")
    for line in toml_lines({**paths, "client_ca": ca}):
        out.line(line)
    out.line()
    out.line(f"# interlock.toml of {name}, where it dials a parent: below url and segment")
    out.line("# [[ax.parents]]")
    for line in toml_lines({**paths, "ca_file": ca}):
        out.line(f"# {line}")
    if issued.authority_made:
        out.remark(f"made a CA; {CA_KEY} beside it signs for every node and is copied nowhere")
    out.remark(f"for {', '.join(names)}, until {local_time(expires, '%Y-%m-%d')}; on another machine copy")
    out.remark(f"  {issued.certificate}, {issued.key} and {ca}")


def _names(name: str, texts: list[str] | None) -> list[str]:

    read = [(text, find_dns_name(text)) for text in texts or [name]]
    wrong = next((text for text, dns_name in read if dns_name is None), None)
    if wrong is not None:
        raise BadUsage("usage", f"{wrong} is no DNS name", hint="--dns HOST; no wildcard, and addresses as --ip")
    return list(dict.fromkeys(dns_name for _, dns_name in read if dns_name is not None))


@verb(app, "key")
def key(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    approves: Annotated[list[str] | None, option("--approves", metavar="GLOB")] = None,
    kind: Annotated[Literal["ed25519", "es256"], typer.Option("--kind")] = "ed25519",
    show: Annotated[bool, option("--show")] = False,
    revoke: Annotated[bool, option("--revoke")] = False,
    no_passphrase: Annotated[bool, option("--no-passphrase")] = False,
    passphrase_fd: FromDescriptor = None,
) -> None:
    """Make an operator's key and print its [[anchor]].

    The node believes the key once these lines are in its interlock.toml. The private half stays here.

    Options:
        name: Whose key it is.
        approves: Tools it may approve; may be repeated.  [default: *]
        kind: What kind of key to make.
        show: Print the existing key, and make nothing.
        revoke: Take it back at the node, and remove it here.
        no_passphrase: Every program that can read the file can approve.

    Examples:
        interlock access key ada >> interlock.toml
        interlock access key ada --approves 'files.*'
        interlock access key ada --show
        interlock access key ada --revoke
    """

    if show and revoke:
        raise BadUsage("usage", "--show and --revoke do not go together", hint="interlock access key --help")
    keys = OperatorKeys()
    if revoke:
        _revoke_key(invocation, keys, name)
        return
    if show:
        public = keys.find_public(name)
    else:
        public = keys.make(name, kind, None if no_passphrase else lambda: choose_passphrase(name, passphrase_fd))
    if public is None:
        raise keys.unknown(name)
    out, file, entry = invocation.out, keys.file(name), {"name": name, "key": public, "approves": approves or ["*"]}
    if out.as_json:
        out.json({"anchor": entry, "file": str(file), "made": not show})
        return
    for line in anchor_lines(entry):
        out.line(line)
    out.remark(f"{'used' if show else 'made'} the private key {file}; it stays here")
    out.remark(_WHERE_IT_BELONGS)


def _revoke_key(invocation: Invocation, keys: OperatorKeys, name: str) -> None:
    """Revoke a key at the node, then remove it from this machine.

    In the opposite order, a failure would leave a removed key that the node still trusts.
    """
    from interlock.approvals.api import REVOKE_KEY, RevokedKeys

    ref = name
    if (public := keys.find_public(name)) is not None:
        ref = thumbprint(read_key_untrusted(public)[0])
    try:
        answer = invocation.node.call(REVOKE_KEY, ref=ref)
    except Unreachable as away:
        if not invocation.is_stopped(away):
            raise
        from interlock.cli.client.offline import revoke_stored

        answer = revoke_stored(invocation.loaded.plan, invocation.data_folder, ref)
    removed = keys.remove(name)
    out = invocation.out
    if out.as_json:
        out.json({**answer.value, "removed": str(keys.file(name)) if removed else None})
        return
    done = answer.as_(RevokedKeys)
    for approval in done.revoked:
        out.line(f"revoked {approval}")
    for approval in done.voided:
        out.line(f"what it had approved is void: {approval}")
    if removed:
        out.line(f"removed {keys.file(name)}")
    out.remark(f"take the [[anchor]] {name} out of interlock.toml; it proves nothing any more")


@verb(app, "passkey")
def passkey(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    approves: Annotated[list[str] | None, option("--approves", metavar="GLOB")] = None,
) -> None:
    """Make a passkey in a browser and print its [[anchor]].

    Needs a running node. It prints an address to open once; the browser makes the passkey there. The node believes it
    once these lines are in its interlock.toml.

    Options:
        name: Whose passkey it is.
        approves: Tools it may approve; may be repeated.  [default: *]

    Examples:
        interlock access passkey ada >> interlock.toml
        interlock access passkey ada --approves 'files.*'
        interlock access passkey ada --url https://operator.example.com
    """
    from interlock.approvals.cli.keys import enrol

    invitation = enrol(invocation, name)
    out = invocation.out
    entry = {"name": invitation.name, "passkey": invitation.passkey or "", "approves": approves or ["*"]}
    if out.as_json:
        out.json({"anchor": entry, "thumbprint": invitation.thumbprint})
        return
    for line in anchor_lines(entry):
        out.line(line)
    out.remark(_WHERE_IT_BELONGS)

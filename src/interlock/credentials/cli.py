"""interlock secrets list | set | remove | adopt"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.errors import BadUsage, Unreachable
from interlock.drivers.protocol.server_name import exposed_segment

if TYPE_CHECKING:
    from interlock.cli.client.offline import OfflineNode

VALUE_CHARS_MAX = 60_000
KINDS = {
    "secret": "what you set, for ${secrets.NAME}",
    "token": "for a server, and for whom",
    "client": "this node at an authorization server",
}

app = verb_app(
    "Keep what servers want to know, sealed.",
    examples="""
    interlock secrets set github-token
    interlock secrets list
    interlock secrets remove github-token
    interlock secrets adopt github-mcp
    """,
)


@verb(
    app,
    "list",
    examples="""
    interlock secrets list
    interlock secrets list --json | jq -r '.secrets[].name'
    """,
)
def list_secrets(invocation: Invocation) -> None:
    """List the names of all that is kept, never what it is."""
    from interlock.credentials.api import LIST_SECRETS

    try:
        answer = invocation.node.call(LIST_SECRETS)
    except Unreachable as away:
        answer = offline_node(invocation, away).call(LIST_SECRETS)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from rich.text import Text

    from interlock.cli.terminal.columns import in_columns
    from interlock.cli.terminal.text import one_line
    from interlock.credentials.api import Secrets

    secrets = answer.as_(Secrets).secrets
    if not secrets:
        out.remark("no secrets; interlock secrets set NAME keeps one")
        return
    rows = [[Text(head, style="dim") for head in ("KIND", "NAME", "")]]
    rows += [
        [Text(secret.kind), Text(one_line(secret.name), style="bold"), Text(KINDS.get(secret.kind, ""), style="dim")]
        for secret in secrets
    ]
    out.draw(*in_columns(rows, width=out.console.width, shrink={2: 8, 1: 16}))


@verb(
    app,
    "set",
    examples="""
    interlock secrets set github-token
    pass show github | interlock secrets set github-token
    """,
)
def set_secret(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="github-token, used as ${secrets.GITHUB_TOKEN}.")],
) -> None:
    """Keep a secret. It is asked for, or read from stdin.

    Servers that name it are started afresh with it.
    """
    from interlock.credentials.api import SET_SECRET

    value = _value(name)
    slug = name.lower().replace("_", "-")
    from interlock.credentials.api import SetSecret

    try:
        answer = invocation.node.call(SET_SECRET, body=SetSecret(name=slug, value=value))
    except Unreachable as away:
        answer = offline_node(invocation, away).call(SET_SECRET, body=SetSecret(name=slug, value=value))
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
        return
    invocation.out.line(f"kept {slug}")
    from interlock.credentials.api import StoredSecret

    for segment in answer.as_(StoredSecret).restarted:
        invocation.out.line(f"{segment} restarted")
    _remark_what_waits(invocation, slug)


@verb(
    app,
    "remove",
    examples="""
    interlock secrets remove github-token
    interlock secrets remove github --kind token
    """,
)
def remove(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As interlock secrets list shows it.")],
    kind: Annotated[Literal["secret", "token", "client"], typer.Option("--kind", help="What it is.")] = "secret",
) -> None:
    """Forget a secret, a token or a registration."""
    from interlock.credentials.api import REMOVE_SECRET

    try:
        answer = invocation.node.call(REMOVE_SECRET, kind=kind, name=name)
    except Unreachable as away:
        answer = offline_node(invocation, away).call(REMOVE_SECRET, kind=kind, name=name)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
        return
    invocation.out.line(f"removed {kind} {name}")


@verb(
    app,
    "adopt",
    examples="""
    interlock secrets adopt github-mcp
    interlock secrets adopt github-mcp --json | jq -r '.adopted[].slug'
    """,
)
def adopt(
    invocation: Invocation,
    driver: Annotated[str, typer.Argument(metavar="DRIVER", help="Its id, or the name of its folder.")],
) -> None:
    """Move the credentials that stand in a driver's file to the store.

    The file gets placeholders in their place. It has changed then, and is to be trusted anew.
    """
    from interlock.interop.cli.import_ import keeper
    from interlock.interop.secret_adoption import NotAdopted
    from interlock.interop.secret_adoption import adopt as adopt_all
    from interlock.wire.refusal import Refused

    try:
        done = adopt_all(invocation.loaded.plan, driver, keeper(invocation))
    except NotAdopted as refused:
        raise Refused("not_adopted", str(refused), hint=refused.hint) from None
    except OSError as error:
        raise Refused("not_adopted", f"the file cannot be written ({error.strerror})") from None
    out = invocation.out
    if out.as_json:
        import msgspec

        out.raw_json(msgspec.json.encode(done))
        return
    for each in done.adopted:
        out.line(f"{each.place} is kept as {each.slug}")
    for place in done.left:
        out.remark(f"{place} holds a credential where no placeholder may stand: move it yourself")
    if not done.adopted:
        out.remark("no credential stands in clear where one could be moved from")
        return
    out.advice(f"interlock drivers trust {exposed_segment(done.driver)} accepts the file as it is now")


def _remark_what_waits(invocation: Invocation, slug: str) -> None:
    """Keeping a value grants it to no driver: what its files still lack is said here, where it is looked for."""
    if invocation.remote_url is not None:
        return
    from interlock.config.load import ConfigInvalid
    from interlock.drivers.workspace.scan import scan_workspace

    try:
        plan = invocation.loaded.plan
        if not scan_workspace(plan).folders:
            return
    except ConfigInvalid:  # check tells of it
        return
    from interlock.drivers.cli.folder_check import ungranted_problems

    for problem in ungranted_problems(plan, slug):
        invocation.out.remark(f"still missing: {problem.file}: {problem.message}; {problem.hint}")


def _value(name: str) -> str:
    """Read a secret from the terminal or stdin. It is never an argument, because other users of the machine could
    read that.
    """
    import sys
    from getpass import getpass

    if sys.stdin.isatty():
        value = getpass(f"{name}: ")
    else:
        value = sys.stdin.read(VALUE_CHARS_MAX + 1).removesuffix("\n").removesuffix("\r")
    if not value or len(value) > VALUE_CHARS_MAX:
        what = "nothing was given" if not value else f"it is longer than {VALUE_CHARS_MAX} characters"
        raise BadUsage("bad_secret", what, hint=f"type it, or pipe it: … | interlock secrets set {name}")
    return value


def offline_node(invocation: Invocation, away: Unreachable) -> "OfflineNode":
    """Open the store itself if no node runs on this data folder. The store of another node cannot be reached."""
    if invocation.remote_url is not None or away.code != "not_running":
        raise away
    from interlock.cli.client.offline import OfflineNode

    return OfflineNode(invocation.loaded.plan, invocation.data_folder)

"""interlock secrets list | set | remove | adopt"""

from typing import Annotated, Literal

import typer

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.errors import BadUsage
from interlock.credentials import api
from interlock.drivers.protocol.server_name import exposed_segment

VALUE_CHARS_MAX = 60_000
KINDS = {
    "secret": "what you set, for ${secrets.NAME}",
    "token": "for a server, and for whom",
    "client": "this node at an authorization server",
}

app = verb_app(
    "Store secrets for servers, encrypted.",
    examples="""
    interlock secrets set github-token
    interlock secrets list
    interlock secrets remove github-token
    interlock secrets adopt github-mcp
    """,
)


@verb(app, "list")
def list_secrets(invocation: Invocation) -> None:
    """List secrets, tokens and registrations, without values.

    Examples:
        interlock secrets list
        interlock secrets list --json | jq -r '.secrets[].name'
    """
    if (answer := invocation.call_or_print(api.LIST_SECRETS, offline=True)) is None:
        return
    if not answer.secrets:
        invocation.out.remark("no secrets; interlock secrets set NAME keeps one")
        return
    rows = [(secret.kind, (secret.name, "bold"), (_describe(secret), "dim")) for secret in answer.secrets]
    invocation.out.draw_table("KIND|NAME|", rows, {2: 8, 1: 16})


def _describe(secret: api.Secret) -> str:
    what = KINDS.get(secret.kind, "")
    return f"{what}; set for {', '.join(secret.destinations)}" if secret.destinations else what


@verb(app, "set")
def set_secret(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="github-token, used as ${secrets.GITHUB_TOKEN}.")],
    destinations: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="SEGMENT|HOST", help="Where it may go: a server, a device, or a host."),
    ] = None,
) -> None:
    """Store a secret. Its value is prompted for, or read from stdin.

    Servers that use it are restarted. A server or device that was added later gets it only once an approver has signed
    that, or if --for names it.

    Examples:
        interlock secrets set github-token
        interlock secrets set github-token --for github --for api.github.com
        pass show github | interlock secrets set github-token
    """
    import sys
    from getpass import getpass

    slug = name.lower().replace("_", "-")
    # The value is never an argument, because other users of the machine can read the arguments of a process.
    if sys.stdin.isatty():
        value = getpass(f"{name}: ")
    else:
        value = sys.stdin.read(VALUE_CHARS_MAX + 1).removesuffix("\n").removesuffix("\r")
    if not value or len(value) > VALUE_CHARS_MAX:
        what = "nothing was given" if not value else f"it is longer than {VALUE_CHARS_MAX} characters"
        raise BadUsage("bad_secret", what, hint=f"type it, or pipe it: … | interlock secrets set {name}")
    secret = api.SetSecret(name=slug, value=value, destinations=tuple(destinations or ()))
    if (stored := invocation.call_or_print(api.SET_SECRET, secret, offline=True)) is None:
        return
    invocation.out.line(f"kept {slug}")
    for segment in stored.restarted:
        invocation.out.line(f"{segment} restarted")
    # A value in the store is not yet granted to drivers. Show which drivers refer to the secret and may not use it.
    if invocation.remote_url is not None:
        return
    from interlock.config.load import ConfigInvalid
    from interlock.drivers.workspace.scan import scan_workspace

    try:
        plan = invocation.loaded.plan
        if not scan_workspace(plan).folders:
            return
    except ConfigInvalid:
        # `interlock check` reports this.
        return
    from interlock.drivers.cli.folder_check import ungranted_problems

    for problem in ungranted_problems(plan, slug):
        invocation.out.remark(f"still missing: {problem.file}: {problem.message}; {problem.hint}")


@verb(app, "remove")
def remove(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that interlock secrets list shows.")],
    kind: Annotated[
        Literal["secret", "token", "client"], typer.Option("--kind", help="The kind of entry to remove.")
    ] = "secret",
) -> None:
    """Remove a secret, a token or a registration.

    Examples:
        interlock secrets remove github-token
        interlock secrets remove github --kind token
    """
    if invocation.call_or_print(api.REMOVE_SECRET, offline=True, kind=kind, name=name) is not None:
        invocation.out.line(f"removed {kind} {name}")


@verb(app, "adopt")
def adopt(
    invocation: Invocation,
    driver: Annotated[str, typer.Argument(metavar="DRIVER", help="Its id, or the name of its folder.")],
) -> None:
    """Move credentials from the file of a driver to the store.

    The file gets references in their place. Because the file has changed, you have to trust the driver again.

    Examples:
        interlock secrets adopt github-mcp
        interlock secrets adopt github-mcp --json | jq -r '.adopted[].slug'
    """
    from interlock.interop.cli.import_ import keeper
    from interlock.interop.importer import adopt as adopt_all

    done = adopt_all(invocation.loaded.plan, driver, keeper(invocation))
    out = invocation.out
    if out.as_json:
        import msgspec

        out.raw_json(msgspec.json.encode(done))
        return
    for secret in done.adopted:
        out.line(f"{secret.place} is kept as {secret.slug}")
    for place in done.left:
        out.remark(f"{place} holds a credential where no reference is allowed: move it yourself")
    if not done.adopted:
        out.remark("the file has no credential that could be moved")
        return
    out.advice(f"interlock drivers trust {exposed_segment(done.driver)} accepts the file as it is now")

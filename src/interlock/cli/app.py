"""The table of verbs, and the program around them.

A verb's module is imported when the verb is named (or when help lists them all), so that one verb does not pay for
another.
"""

import sys
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command as compiled

from interlock.cli.terminal.errors import EXIT_DONE, EXIT_REFUSED, BadUsage
from interlock.cli.terminal.output import Output
from interlock.cli.terminal.text import one_line


class Verb(NamedTuple):
    """A row of the table of verbs."""

    app: str  # the typer app, as "module:attribute"; the module is imported when the verb is used
    other_number: str | None = None  # the noun's plural or singular, which works as well


# In the order of the help. The help, completion and docs/commands.md follow from this table.
VERBS: Final = {
    "init": Verb("interlock.node.cli.init:app"),
    "serve": Verb("interlock.node.cli.serve:app"),
    "check": Verb("interlock.node.cli.check:app"),
    "status": Verb("interlock.node.cli.status:app"),
    "open": Verb("interlock.node.cli.status:open_app"),
    "add": Verb("interlock.drivers.cli.add:app"),
    "discover": Verb("interlock.drivers.cli.discover:app"),
    "tools": Verb("interlock.catalog.cli.tools:app", "tool"),
    "approvals": Verb("interlock.approvals.cli.inbox:app", "approval"),
    "approve": Verb("interlock.approvals.cli.inbox:approve_app"),
    "deny": Verb("interlock.approvals.cli.inbox:deny_app"),
    "grants": Verb("interlock.approvals.cli.grants:app", "grant"),
    "agents": Verb("interlock.safety.cli:app", "agent"),
    "rooms": Verb("interlock.rooms.cli.rooms:app", "room"),
    "names": Verb("interlock.names.cli.names:app", "name"),
    "links": Verb("interlock.links.cli.links:app", "link"),
    "device": Verb("interlock.devices.cli.device:app", "devices"),
    "drivers": Verb("interlock.drivers.cli.drivers:app", "driver"),
    "secrets": Verb("interlock.credentials.cli:app", "secret"),
    "skills": Verb("interlock.drivers.cli.skills:app", "skill"),
    "export": Verb("interlock.interop.cli.export:app"),
    "access": Verb("interlock.access.cli:app", "accesses"),
    "audit": Verb("interlock.store.cli:app", "audits"),
    "explain": Verb("interlock.cli.explain:app"),
    "doctor": Verb("interlock.node.cli.doctor:app"),
    "version": Verb("interlock.cli.version:app"),
    "import": Verb("interlock.interop.cli.import_:app"),
}
OTHER_NUMBER: Final = {verb.other_number: name for name, verb in VERBS.items() if verb.other_number is not None}

SHARED_OPTIONS = ("--config", "--data", "--url", "--json", "--debug")  # of every verb, none of the program's own

EXAMPLES = """\b
Start here:
  interlock init            write interlock.toml
  interlock serve           run the node; it prints how to connect a client
  interlock status --watch  see every server, how it stands and why
  interlock tools call TOOL --arg name=value
  interlock approvals       what waits for you to decide
  interlock doctor          find what is wrong, and how to mend it

\b
Every command takes --json, and --help shows its examples.
Exit codes: 0 done, 1 refused, 2 usage, 3 waits for a decision, 4 unreachable."""


class Verbs(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # The names alone, for listing and for suggestions; get_command puts the command to them.
        self.commands = cast(Any, dict.fromkeys(VERBS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = OTHER_NUMBER.get(cmd_name, cmd_name)
        if name not in VERBS:
            return None
        return compiled(load_app(name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return OTHER_NUMBER.get(name or "", name), command, rest


def load_app(name: str) -> typer.Typer:
    """Import the typer app of a verb."""
    module, attribute = VERBS[name].app.split(":")
    return cast(typer.Typer, getattr(import_module(module), attribute))


app = typer.Typer(
    name="interlock",
    cls=Verbs,
    help="Many MCP servers, one namespace, one guard.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
    no_args_is_help=True,
)


def _show_version(asked: bool) -> None:
    if asked:
        from interlock import __version__

        Output(as_json=False).line(f"interlock {__version__}")
        raise typer.Exit(EXIT_DONE)


@app.callback()
def interlock(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", show_default=False, is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        code = compiled(app).main(arguments, prog_name="interlock", standalone_mode=False)
    except typer.TyperException as misuse:
        return _report(misuse, arguments)
    except typer.Abort:
        return EXIT_REFUSED
    return code if isinstance(code, int) else EXIT_DONE


def _report(misuse: typer.TyperException, arguments: list[str]) -> int:
    context = getattr(misuse, "ctx", None)
    if type(misuse).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help(), file=sys.stderr)
        return misuse.exit_code
    path = context.command_path if context is not None else "interlock"
    message = one_line(misuse.format_message())
    hint = f"{path} --help"
    option = getattr(misuse, "option_name", None)
    if option in SHARED_OPTIONS:
        message = f"{option} comes after the verb"
        hint = "for instance interlock status --json" if path == "interlock" else f"for instance {path} list --json"
    failed = BadUsage("usage", message[:1].lower() + message[1:].rstrip("."), hint=hint)
    Output(as_json="--json" in arguments).failure(failed)
    return failed.exit_code

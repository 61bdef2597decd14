"""The `interlock` program: runs the commands that the capabilities declare, and reports wrong usage.

A capability declares the module of a command by name. The module is imported when the command runs, or when the help
lists all commands, so that a command does not load the modules of other commands.
"""

import sys
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command as compiled

from interlock.cli.terminal.errors import EXIT_DONE, EXIT_REFUSED, BadUsage
from interlock.cli.terminal.output import Output
from interlock.cli.terminal.text import one_line
from interlock.core.capability import load_reference
from interlock.node.capabilities import CAPABILITIES

# The order of the help, of completion and of docs/commands.md. A command that is not listed here comes last.
HELP_ORDER: Final = (
    *("init", "serve", "check", "status", "open", "add", "discover", "tools"),
    *("approvals", "approve", "deny", "grants", "agents", "rooms", "names", "links", "device", "drivers"),
    *("packages", "secrets", "skills", "export", "access", "audit", "explain", "doctor", "version", "import"),
)


_COMMANDS: Final = {name: command for each in CAPABILITIES for name, command in each.commands.items()}
VERBS: Final = {name: _COMMANDS[name] for name in (*HELP_ORDER, *sorted(_COMMANDS.keys() - set(HELP_ORDER)))}
OTHER_NUMBER: Final = {each.other_number: name for name, each in VERBS.items() if each.other_number is not None}

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
    """The group of all commands. A command's module is imported when the command is used."""

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
    """Import the Typer app of a command."""
    return cast(typer.Typer, load_reference(VERBS[name].app))


app = typer.Typer(
    name="interlock",
    cls=Verbs,
    help="Many MCP servers, one namespace, one guard.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
    no_args_is_help=True,
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from interlock import __version__

        Output(as_json=False).line(f"interlock {__version__}")
        raise typer.Exit(EXIT_DONE)


_VERSION: Final = typer.Option(
    "--version", help="Show the version and exit.", show_default=False, is_eager=True, callback=_show_version
)


@app.callback()
def interlock(
    _version: Annotated[bool, _VERSION] = False,
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
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
    return failed.exit_status

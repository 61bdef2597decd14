"""The frame of every verb: shared options, loading of the configuration, and reporting of failures.

`verb` registers a function on a typer app. The function takes an `Invocation` and its own typer parameters; the shared
options are appended. Options that several commands share are a group: a dataclass whose members are options and have
defaults. A command with a parameter of this type takes all of them. An expected failure is reported as one line and a
hint, an unexpected failure as the id of a log entry. If the configuration cannot be read, the message names the first
problem.
"""

import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import typer
from msgspec.structs import asdict

from interlock.cli.terminal.errors import EXIT_INTERRUPTED, EXIT_PIPE_CLOSED, EXIT_REFUSED, Unreachable
from interlock.cli.terminal.output import Output
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.cli.client.offline import OfflineNode
    from interlock.cli.client.operator import Answer, OperatorClient
    from interlock.config.load import Loaded, Problem
    from interlock.operator.operation import Operation

Body = TypeVar("Body", bound=Callable[..., None])
Reply = TypeVar("Reply")


def option(name: str, help: str | None = None, metavar: str | None = None) -> Any:
    """Return a `typer.Option` whose default is not shown in the help."""
    return typer.Option(name, metavar=metavar, help=help, show_default=False)


def _shared(name: str, help: str, metavar: str | None = None) -> inspect.Parameter:
    """Return an option that every command has. Without `metavar` it is a flag."""
    kind = bool if metavar is None else str | None
    annotation = Annotated[kind, option(f"--{name}", help, metavar)]  # type: ignore[valid-type]
    default = False if metavar is None else None
    return inspect.Parameter(f"shared_{name}", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_SHARED = [
    _shared("config", "Configuration file.  [env: INTERLOCK_CONFIG]", "FILE"),
    _shared("data", "Data folder.  [env: INTERLOCK_DATA]", "FOLDER"),
    _shared("url", "Another node, with the token in INTERLOCK_TOKEN.  [env: INTERLOCK_URL]", "URL"),
    _shared("json", "Answer in JSON, on stdout only."),
    _shared("debug", "Show the trace of a failure."),
]


@dataclass(eq=False, kw_only=True)
class Invocation:
    """A single run of a command, with the location of its node and the form of its output."""

    config: str | None = None
    data: str | None = None
    url: str | None = None
    json: bool = False
    debug: bool = False

    def __post_init__(self) -> None:
        self.out = Output(as_json=self.json)

    @property
    def remote_url(self) -> str | None:
        """Return the URL of the node if the command addresses one by URL, or None. A local folder or configuration file
        that an option names takes precedence over a URL in the environment.
        """
        if self.url:
            return self.url
        return None if self.data or self.config else os.environ.get("INTERLOCK_URL") or None

    @cached_property
    def data_folder(self) -> Path:
        named = self.data or os.environ.get("INTERLOCK_DATA")
        if named:
            return Path(named).expanduser().absolute()
        try:
            return self.loaded.plan.data
        except Refused as refused:  # a mistake in the file must not take away the node that runs without it
            folder = find_running_folder(self)
            if folder is None:
                raise
            self.out.remark(f"warning: {refused.message}; the node keeps its configuration")
            return folder

    @cached_property
    def loaded(self) -> "Loaded":
        """Return the configuration, for a command that queries a node or reads its folder."""
        return load_configuration(self, starting=False)

    @cached_property
    def node(self) -> "OperatorClient":
        """Return a client for the operator endpoint of the node."""
        from interlock.cli.client.operator import OperatorClient

        if self.remote_url is not None:
            return OperatorClient.at_url(self.remote_url, os.environ.get("INTERLOCK_TOKEN"))
        return OperatorClient.of_data(self.data_folder)

    @property
    def offline_node(self) -> "OfflineNode":
        """Return a client for the data folder and the workspace of this machine, whose node does not run."""
        from interlock.cli.client.offline import OfflineNode

        return OfflineNode(self.loaded.plan, self.data_folder)

    def call_or_offline(self, operation: "Operation[Any]", **arguments: Any) -> "Answer":
        """Call an operation of the node. If no node runs on this machine's data folder, carry out the operation on the
        folder itself.
        """
        try:
            return self.node.call(operation, **arguments)
        except Unreachable as away:
            if not self.is_stopped(away):
                raise
        return self.offline_node.call(operation, **arguments)

    def call_or_print(
        self, operation: "Operation[Reply]", body: object = None, *, offline: bool = False, **arguments: Any
    ) -> "Reply | None":
        """Call an operation of the node and return its reply. With --json, print the reply unchanged and return None.
        With `offline`, the node need not run, as in `call_or_offline`.
        """
        call = self.call_or_offline if offline else self.node.call
        answer = call(operation, body=body, **arguments)
        if self.out.as_json:
            self.out.raw_json(answer.raw)
            return None
        return answer.as_(cast("type[Reply]", operation.output))

    def call_and_print(self, operation: "Operation[Reply]", body: object = None, **arguments: Any) -> "Reply":
        """Call an operation of the node and return its reply, on which the exit code depends. With --json, also print
        the reply unchanged.
        """
        answer = self.node.call(operation, body=body, **arguments)
        reply = answer.as_(cast("type[Reply]", operation.output))
        if self.out.as_json:
            self.out.raw_json(answer.raw)
        return reply

    def is_stopped(self, away: Unreachable) -> bool:
        """Return whether a call failed because no node runs for the data folder of this command. `away` is the error of
        the call.
        """
        return self.remote_url is None and away.code == "not_running"


# An entry of the section "Options:": a parameter and its help, which may go on in lines that are indented deeper.
_OPTION_HELP: Final = re.compile(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


def verb_app(help_text: str, *, examples: str = "") -> typer.Typer:
    """Create the Typer app of a module. `examples` are needed if the module has several commands under one noun."""
    return typer.Typer(
        help=help_text,
        epilog=_epilog(examples) if examples else None,
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=True,
    )


def verb(
    app: typer.Typer, name: str, *, examples: str = "", context_settings: dict[str, Any] | None = None
) -> Callable[[Body], Body]:
    """Return a decorator that registers a function as a verb of `app`. The help shows its docstring, whose section
    "Options:" has the help of the parameters, and whose section "Examples:" has command lines that the help shows
    unchanged. `examples` are command lines for a function that is made at run time.
    """

    def register(body: Body) -> Body:
        help_text, _, described_examples = inspect.cleandoc(body.__doc__ or "").partition("\n\nExamples:\n")
        help_text, _, described_options = help_text.partition("\n\nOptions:\n")
        signature = inspect.signature(body)
        own = list(signature.parameters.values())[1:]
        groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}
        for parameter, text in _OPTION_HELP.findall(described_options):
            signature.parameters[parameter].annotation.__metadata__[0].help = re.sub(r"\n +", " ", text)

        def run(**arguments: Any) -> None:
            for parameter, group in groups.items():
                arguments[parameter] = group(**{each.name: arguments.pop(each.name) for each in _members(group)})
            shared = {parameter.name: arguments.pop(parameter.name) for parameter in _SHARED}
            invocation = Invocation(**{name.removeprefix("shared_"): value for name, value in shared.items()})
            try:
                body(invocation, **arguments)
                sys.stdout.flush()
            except Refused as failed:
                if invocation.debug:
                    traceback.print_exc()
                invocation.out.failure(failed)
                raise typer.Exit(failed.exit_status) from None
            except KeyboardInterrupt:
                raise typer.Exit(EXIT_INTERRUPTED) from None
            except BrokenPipeError:
                # The reader has seen enough. What is still buffered must not fail once more while the interpreter ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(EXIT_PIPE_CLOSED) from None
            except (typer.Exit, typer.Abort):
                raise
            except Exception:
                if invocation.debug:
                    traceback.print_exc()
                invocation.out.failure(unexpected_failure(invocation))
                raise typer.Exit(EXIT_REFUSED) from None

        own = [option for each in own for option in (_members(each.annotation) if each.name in groups else [each])]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        run.__signature__ = inspect.Signature([*own, *_SHARED])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        run.__doc__ = help_text
        app.command(name, epilog=_epilog(examples or described_examples), context_settings=context_settings)(run)
        return body

    return register


def _members(group: Any) -> list[inspect.Parameter]:
    """Return the options of a group, each as a parameter of a command."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(each.name, kind, default=each.default, annotation=each.type) for each in fields(group)]


def _epilog(examples: str) -> str:
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    return f"\b\nExamples:\n{lines}"  # \b keeps the formatter from joining the lines


def unexpected_failure(invocation: Invocation | None) -> Refused:
    """Log the current exception, and return a Refused whose message contains the id of the log entry."""
    import secrets
    import tempfile
    import time

    ref = secrets.token_hex(4)
    entry = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} ref {ref}\n{traceback.format_exc()}\n"
    try:
        folder = invocation.data_folder / "run" if invocation else None
        if folder is None or not folder.is_dir():
            raise FileNotFoundError
        log = folder / "command.log"
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except Exception:
        # No data folder to write to, perhaps for the very reason that is being reported.
        handle, name = tempfile.mkstemp(prefix=f"interlock-{ref}-", suffix=".log")
        log = Path(name)
    with os.fdopen(handle, "a", encoding="utf-8") as file:
        file.write(entry)
    why, hint = f"something went wrong inside Interlock (ref {ref})", f"the trace is in {log}; --debug shows it here"
    return Refused("internal", why, hint=hint, details={"ref": ref})


_DATA: Final = re.compile(r"""^data\s*=\s*["'](.+?)["']""", re.MULTILINE)


def read_configuration(
    invocation: Invocation,
    *,
    starting: bool = True,
    set_by_flags: Mapping[str, str] | None = None,
    lenient: bool = False,
) -> "Loaded":
    """Read the configuration that a command line names. `lenient` is passed to `load`. Raise ConfigInvalid if the
    configuration has errors.
    """
    from interlock.config.load import load

    path = Path(invocation.config) if invocation.config else None
    flags = {**(set_by_flags or {}), **({"data": invocation.data} if invocation.data else {})}
    return load(path, os.environ, flags, starting=starting, lenient=lenient)


def load_configuration(
    invocation: Invocation, *, starting: bool, set_by_flags: Mapping[str, str] | None = None
) -> "Loaded":
    """Read the configuration as `read_configuration` does. If it has errors, raise Refused with the first problem and
    the number of other problems.
    """
    from interlock.config.load import ConfigInvalid

    try:
        return read_configuration(invocation, starting=starting, set_by_flags=set_by_flags, lenient=True)
    except ConfigInvalid as invalid:
        first, *rest = invalid.problems
        more = f" (and {len(rest)} more)" if rest else ""
        named = f" {quote(invocation.config)}" if invocation.config else ""
        hint = first.hint if first.hint and not rest else f"interlock check{named} shows every problem"
        details = {"problems": [problem_value(problem) for problem in invalid.problems]}
        raise Refused("config_invalid", f"{first.prefix}{first.message}{more}", hint=hint, details=details) from None


def find_running_folder(invocation: Invocation) -> Path | None:
    """Return the data folder of a running node, read from a configuration that may be invalid. Return None if the
    folder has no admin.sock.
    """
    from interlock.config.folders import data_folder
    from interlock.config.load import FILE_NAME

    path = Path(invocation.config or os.environ.get("INTERLOCK_CONFIG") or FILE_NAME).expanduser()
    try:
        match = _DATA.search(path.read_text("utf-8", "replace"))
    except OSError:
        match = None
    folder = path.parent / Path(match[1]).expanduser() if match is not None else data_folder(os.environ)
    return folder.absolute() if (folder / "run" / "admin.sock").exists() else None


def problem_value(problem: "Problem") -> dict[str, object]:
    """Return the members of a problem as --json prints them. The code is left out if the problem has none."""
    return {name: value for name, value in asdict(problem).items() if name != "code" or value is not None}

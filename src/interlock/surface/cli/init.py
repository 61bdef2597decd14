"""interlock init"""

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from interlock.surface.cli.command import Invocation, verb, verb_app
from interlock.surface.cli.failures import Refused

app = verb_app("Write a first configuration.")


@verb(
    app,
    "init",
    examples="""
    interlock init
    interlock init --config team.toml --data ./data
    interlock init --force
    """,
)
def init(
    invocation: Invocation,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a first interlock.toml.

    Its servers need no account. The data folder is made too.
    """
    from interlock.config.load import FILE_NAME
    from interlock.config.starter import starter_toml

    variable = None if invocation.config else os.environ.get("INTERLOCK_CONFIG")
    named = invocation.config or variable
    path = Path(named) if named else Path(FILE_NAME)
    _write(path, starter_toml(), force=force, by_variable=bool(variable))
    invocation.config = str(path)
    plan = invocation.loaded.plan
    _make_data_folder(plan.data)

    out = invocation.out
    if out.as_json:
        servers = [server.segment for server in plan.servers]
        out.json({"config": str(path.absolute()), "data": str(plan.data), "servers": servers})
        return
    flags = f" --config {quote(str(path))}" if named else ""
    flags += f" --data {quote(invocation.data)}" if invocation.data else ""
    servers_named = ", ".join(server.segment for server in plan.servers)
    out.line(f"wrote {path} with {len(plan.servers)} servers: {servers_named}")
    out.line(f"data goes to {plan.data}")
    out.line()
    out.line("Next:")
    width = max(len(f"interlock serve{flags}"), len(f"interlock check{flags}"))
    out.line(f"  {f'interlock check{flags}':<{width}}  finds mistakes after you edit the file")
    out.line(f"  {f'interlock serve{flags}':<{width}}  starts the node and prints how to connect a client")


def _write(path: Path, text: str, *, force: bool, by_variable: bool) -> None:
    if path.is_dir():
        raise Refused("is_folder", f"{path} is a folder", hint=f"--config {path / 'interlock.toml'}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if force:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        else:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError:
        hint = "unset INTERLOCK_CONFIG, which names it, or write elsewhere with --config" if by_variable else None
        raise Refused("exists", f"{path} is already there", hint=hint or "--force writes over it") from None
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Refused("not_written", f"{path} cannot be written: {error.strerror}") from None


def _make_data_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(
            "not_written",
            f"the data folder {folder} cannot be made: {error.strerror}",
            hint="choose another with --data",
        ) from None

"""docs/commands.md from the command line itself: every verb with its help, its options and its examples.

`--check` compares and writes nothing.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer import Context
from typer.main import get_command

from interlock.cli.app import SHARED_OPTIONS, VERBS, app, load_app

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/commands.md")
WIDE = 1000  # columns, so that help is never wrapped

INTRODUCTION = """# Commands

Written by `python tools/commands_reference.py` from the command line itself. `interlock VERB --help` prints the same.

A noun may be singular or plural: `interlock tool list` is `interlock tools list`. A command finds the running node
by its data folder.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused |
| 2 | wrong usage |
| 3 | waits for a person's decision |
| 4 | the node is unreachable |

| variable of the environment | |
|---|---|
| `INTERLOCK_CONFIG`, `INTERLOCK_DATA`, `INTERLOCK_URL` | as `--config`, `--data` and `--url`, which win |
| `INTERLOCK_TOKEN` | the token for `--url`: an operator's; for `tools call` a client's, for `rooms join` a room's |
| `INTERLOCK_PASSPHRASE` | the passphrase of your key, for scripts; `--passphrase-fd` shows it to fewer programs |
| `INTERLOCK_SECTION__KEY` | any key of the configuration, before the file: `INTERLOCK_NODE__LISTEN=127.0.0.1:7511` |
| `INTERLOCK_PROGRAM` | what the program is called in commands that it suggests; `./interlock` of a checkout sets it |
| `INTERLOCK_AX` | `stdio`: set by a node for a subserver that it starts, which then speaks through its pipes |
| `MCP_AQL_ENDPOINT_MODE`, `MCP_AQL_ENDPOINT_PROFILE`, `MCP_AQL_TOOL_PREFIX`, `MCPAQL_SAFETY_LOOP` | `aql.mode`, \
`aql.profile`, `aql.tool_prefix` and `safety.mode`, under the names of MCP-AQL |
| `XDG_CONFIG_HOME`, `XDG_DATA_HOME` | where your own configuration, keys and data are, except on macOS |
| `SSL_CERT_FILE` | the certificate authorities that verify `--url` over https |
| `NO_COLOR`, `COLUMNS` | no colours; how wide tables are where there is no terminal |
"""


def page() -> str:
    commands = [one for name in VERBS for one in _walk(get_command(load_app(name)), name, None)]
    lines = [*INTRODUCTION.splitlines(), "", "Every verb takes these options, after its name:", ""]
    lines += _table(_records(commands[0], shared=True))
    lines += ["", "| command | |", "|---|---|"]
    for context in commands:
        path = context.command_path
        lines.append(f"| [`{path}`](#{path.replace(' ', '-')}) | {_cell(_paragraphs(context)[0])} |")
    for context in commands:
        lines += ["", *_section(context)]
    return "\n".join(lines) + "\n"


def _walk(command: Any, name: str, parent: Any) -> Iterator[Any]:
    """A verb with its verbs below it, in the order of the help."""
    if parent is None:
        parent = Context(get_command(app), info_name="interlock")
    context = Context(command, info_name=name, parent=parent, terminal_width=WIDE, max_content_width=WIDE)
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield context
    for inner, one in below.items():
        if not one.hidden:
            yield from _walk(one, inner, context)


def _section(context: Any) -> Iterator[str]:
    yield f"## {context.command_path}"
    for paragraph in _paragraphs(context):
        yield ""
        yield paragraph
    usage = [context.command_path, *context.command.collect_usage_pieces(context)]
    yield from ("", "```", " ".join(usage), "```")
    if records := _records(context, shared=False):
        yield ""
        yield from _table(records)
    examples = (context.command.epilog or "").replace("\b\n", "").split("\n")
    if lines := [line.strip() for line in examples if line.startswith("  ")]:
        yield from ("", "Examples:", "", "```", *lines, "```")


def _paragraphs(context: Any) -> list[str]:
    text = (context.command.help or "").replace("\b\n", "").strip()
    return [" ".join(one.split()) for one in text.split("\n\n")]


def _records(context: Any, *, shared: bool) -> list[tuple[str, str]]:
    records = []
    for parameter in context.command.get_params(context):
        is_shared = bool(set(parameter.opts) & set(SHARED_OPTIONS))
        record = parameter.get_help_record(context)
        if record is not None and is_shared == shared and "--help" not in parameter.opts:
            records.append(record)
    return records


def _table(records: list[tuple[str, str]]) -> list[str]:
    rows = [f"| {_cell(f'`{name.strip()}`')} | {_cell(' '.join(text.split()))} |" for name, text in records]
    return ["| option or argument | |", "|---|---|", *rows]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and fail where the page is not up to date")
    written = page()
    if parser.parse_args().check:
        if (ROOT / PAGE).read_text(encoding="utf-8") != written:
            print(f"{PAGE} is not what the command line says: run python tools/commands_reference.py", file=sys.stderr)
            return 1
        return 0
    (ROOT / PAGE).write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

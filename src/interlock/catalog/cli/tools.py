"""interlock tools list | show | routes | where (and call, classify, from their own files)"""

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from interlock.catalog.cli import call as tools_call
from interlock.catalog.cli import classify as tools_classify
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import tool_names
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.text import Text

    from interlock.catalog.api import Owner, Tool, ToolDetail, ToolSurface

SEARCHED_MAX = 20  # tools that --search shows
T = TypeVar("T")
GIST_CHARS_MAX = 120  # of a description, however wide the screen; tools show has it whole

app = verb_app(
    "List tools, look at one, call one.",
    examples="""
    interlock tools list
    interlock tools show time.get_current_time
    interlock tools call time.get_current_time --arg timezone=Europe/Berlin
    """,
)


@verb(
    app,
    "list",
    examples="""
    interlock tools list
    interlock tools list 'github.*'
    interlock tools list search
    interlock tools list --search "create an issue"
    interlock tools list --json | jq -r '.tools[].name'
    """,
)
def list_tools(
    invocation: Invocation,
    pattern: Annotated[
        str | None, typer.Argument(metavar="PATTERN", help="A glob of names, or a part of a name.")
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="WORDS", help="Those that fit the words best, best first.")
    ] = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="What the AQL surfaces make of each: category, and by which rule.")
    ] = False,
) -> None:
    """List the tools and what a call of each may change.

    Descriptions are cut to their first sentence; tools show and --json have them whole.
    """
    from interlock.catalog.api import LIST_TOOLS

    answer = invocation.node.call(LIST_TOOLS)
    out = invocation.out
    if out.as_json and pattern is None and search is None:
        out.raw_json(answer.raw)
        return
    from interlock.catalog.api import Tools

    if out.as_json:
        matching = [
            tool
            for tool in answer.value["tools"]
            if _matches(pattern, tool["name"], tool.get("alias"), tool["original"])
        ]
        fitting = _fitting(
            search, matching, lambda tool: (_searched_name(tool["name"], tool["original"]), tool.get("description"))
        )
        out.json({"tools": fitting})
        return
    tools = [tool for tool in answer.as_(Tools).tools if _matches(pattern, tool.name, tool.alias, tool.original)]
    tools = _fitting(search, tools, lambda tool: (_searched_name(tool.name, tool.original), tool.description))
    if not tools:
        out.remark("no tools" if pattern is None and search is None else f"no tool matches {search or pattern}")
        return
    out.draw(*(_operation_table if operations else _table)(tools, out.console.width))


def _fitting(search: str | None, tools: list[T], text: "Callable[[T], tuple[str, str | None]]") -> list[T]:
    """Return the tools that match the words, ranked as in `introspect`."""
    if search is None:
        return tools
    from interlock.aql.protocol.search import SearchIndex, term_weights

    texts = [text(tool) for tool in tools]
    index = SearchIndex([term_weights(name, description or "") for name, description in texts])
    return [tools[place] for place in index.search(search, SEARCHED_MAX)]


def _searched_name(name: str, original: str) -> str:
    """Return the text in which a tool's name is searched. It includes the original name if that is not ASCII."""
    return name if original.isascii() else f"{name} {original}"


def _matches(pattern: str | None, name: str, alias: str | None, original: str) -> bool:
    from fnmatch import fnmatchcase

    if pattern is None:
        return True
    names = (name, alias or name, original)
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(name, pattern) for name in names)
    return any(pattern.lower() in name.lower() for name in names)


def _table(tools: "list[Tool]", width: int) -> "list[Text]":
    from rich.text import Text

    from interlock.cli.terminal.drawing import in_columns
    from interlock.cli.terminal.output import shortened_line
    from interlock.cli.terminal.text import first_sentence, one_line

    def gist(text: str) -> str:
        return shortened_line(first_sentence(text), GIST_CHARS_MAX)

    rows = [[Text(head, style="dim") for head in ("TOOL", "CLASS", "WHAT IT DOES")]]
    for tool in tools:
        usable = tool.withheld is None and tool.state in ("ready", "slow")
        if tool.withheld is not None:
            remark = Text(f"withheld: {one_line(tool.withheld)}", style="yellow")
        elif not usable:
            remark = Text(f"{tool.state}: {gist(tool.description or '')}", style="red")
        else:
            remark = Text(gist(tool.description or tool.title or ""))
        style = "bold" if usable else "dim"
        shown = tool.name if tool.withheld is None else f"{tool.segment}.{tool.original}"
        rows.append([Text(one_line(shown), style=style), _class_text(tool.capability), remark])
    return in_columns(rows, width=width, shrink={2: 20, 0: 20})


def _operation_table(tools: "list[Tool]", width: int) -> "list[Text]":
    from msgspec import UNSET
    from rich.text import Text

    from interlock.cli.terminal.drawing import in_columns
    from interlock.cli.terminal.text import one_line

    rows = [[Text(head, style="dim") for head in ("TOOL", "OPERATION", "CATEGORY", "RULE", "REASON")]]
    for tool in tools:
        operation = tool.operation
        if operation is not UNSET:
            cells = (tool.name, operation.name, operation.category, operation.rule, operation.reason or "")
            rows.append([Text(one_line(text)) for text in cells])
    return in_columns(rows, width=width, shrink={4: 20, 0: 20, 1: 20})


def _class_text(capability: dict[str, Any]) -> "Text":
    from rich.text import Text

    if not capability:
        return Text("-", style="dim")
    if capability.get("mutable") is False:
        return Text("read_only", style="green")
    if capability.get("reversible") is True:
        return Text("reversible", style="yellow")
    return Text("irreversible", style="red")


@verb(
    app,
    "show",
    examples="""
    interlock tools show time.get_current_time
    interlock tools show files.write_file --as client:ci
    interlock tools show time__get_current_time --json
    """,
)
def show(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="TOOL", help="Qualified name or alias.", autocompletion=tool_names)],
    caller: Annotated[
        str, typer.Option("--as", metavar="PRINCIPAL", help="Whose call: local, client:NAME, or another principal.")
    ] = "local",
) -> None:
    """Show one tool in full.

    Its definition, capability and route, and every check before a call runs, with its verdict.
    """
    from interlock.catalog.api import GET_TOOL

    answer = invocation.node.call(GET_TOOL, name=name, caller=caller)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from interlock.catalog.api import ToolDetail

    out.draw(*_detail(answer.as_(ToolDetail), out.console.width, out.console.options.ascii_only))


def _detail(tool: "ToolDetail", width: int, ascii_only: bool) -> "list[Text]":
    from msgspec import UnsetType
    from rich.text import Text

    from interlock.catalog.cli.call import arguments_of
    from interlock.cli.terminal.drawing import LABEL_WIDTH, in_columns, labelled_lines
    from interlock.cli.terminal.text import one_line
    from interlock.links.cli import state_text

    lines = [Text.assemble((one_line(tool.name), "bold"), "  ", state_text(tool.state, ascii_only=ascii_only))]
    if tool.withheld:
        lines += labelled_lines("withheld", one_line(tool.withheld), width, style="yellow")
    if tool.title:
        lines += labelled_lines("title", one_line(tool.title), width)
    if tool.alias:
        lines += labelled_lines("alias", one_line(tool.alias), width)
    arrow = " -> " if ascii_only else " → "
    lines += labelled_lines("route", one_line(arrow.join(tool.route)), width)
    if tool.era:
        lines += labelled_lines("era", tool.era, width)
    lines += labelled_lines("hops", str(tool.hops), width)
    if tool.owner:
        lines += labelled_lines("owner", one_line(_owner(tool.owner)), width)
    if not isinstance(tool.surface, UnsetType):
        lines += _surface_lines(tool.surface, width)
    capability = [Text.assemble((f"  {'capability':<{LABEL_WIDTH}}", "dim"), _class_text(tool.capability))]
    stated = ", ".join(f"{key} {_plain(value)}" for key, value in tool.capability.items())
    lines += capability + labelled_lines("", one_line(stated), width, style="dim")
    for number, paragraph in enumerate((tool.description or "").strip().splitlines()):
        lines += labelled_lines("description" if number == 0 else "", one_line(paragraph), width)
    arguments = arguments_of(tool.definition.get("inputSchema"))
    if arguments:
        lines += [Text(), Text("  arguments (* required)", style="dim")]
        rows = [
            [
                Text(f"    {one_line(argument.name)}{'*' if argument.required else ''}"),
                Text(one_line(argument.kind), style="cyan"),
                Text(one_line(argument.description)),
            ]
            for argument in arguments
        ]
        lines += in_columns(rows, width=width, shrink={2: 20, 1: 8, 0: 12})
    if tool.checks:
        lines += [Text(), Text(f"  checks before a call by {one_line(tool.caller)} runs", style="dim")]
        styles = {"pass": "green", "refuse": "red", "hold": "yellow", "later": "dim"}
        rows = [
            [
                Text(f"    {check.number}"),
                Text(one_line(check.name)),
                Text(one_line(check.verdict), style=styles.get(check.verdict, "")),
                Text(one_line(check.reason)),
            ]
            for check in tool.checks
        ]
        lines += in_columns(rows, width=width, shrink={3: 20, 1: 12})
    return lines


def _surface_lines(surface: "ToolSurface", width: int) -> "list[Text]":
    """Return lines with the verdict of the names registry. Each difference is on a separate line."""
    from interlock.cli.terminal.drawing import labelled_lines
    from interlock.cli.terminal.text import one_line

    status = f", {surface.status}, revision {surface.revision}" if surface.status else ""
    lines = labelled_lines("name", one_line(f"{surface.name}: {surface.verdict}{status}"), width)
    remarks = [*surface.differences] or ([surface.warning] if surface.warning else [])
    for line in remarks:
        lines += labelled_lines("", one_line(line), width, style="yellow")
    return lines


def _owner(owner: "Owner") -> str:
    from msgspec import UNSET

    if owner.principal is UNSET:
        return owner.kind
    claimed = f", {owner.authority} ({'verified' if owner.verified else 'unverified'})" if owner.authority else ""
    return f"{owner.kind} {owner.principal}{claimed}"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@verb(
    app,
    "routes",
    examples="""
    interlock tools routes
    interlock tools routes --json
    """,
)
def routes(invocation: Invocation) -> None:
    """Show where every qualified name leads."""
    from interlock.catalog.api import LIST_ROUTES

    answer = invocation.node.call(LIST_ROUTES)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from rich.text import Text

    from interlock.catalog.api import ToolRoutes
    from interlock.cli.terminal.drawing import in_columns
    from interlock.cli.terminal.text import local_time, one_line

    table = answer.as_(ToolRoutes)
    if not table:
        out.remark("no routes")
        return
    rows = [[Text(head, style="dim") for head in ("NAME", "SESSION", "NAME THERE", "REGISTERED")]]
    rows += [
        [
            Text(one_line(name), style="bold"),
            Text(one_line(route.downstream_session)),
            Text(one_line(route.downstream_name)),
            Text(local_time(route.registered_at) if route.registered_at else "-", style="dim"),
        ]
        for name, route in table.items()
    ]
    out.draw(*in_columns(rows, width=out.console.width, shrink={2: 16, 1: 12, 0: 20}))


@verb(
    app,
    "where",
    examples="""
    interlock tools where search
    interlock tools where search --json
    """,
)
def where(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tool's name at its server.")],
) -> None:
    """Show which servers offer a name.

    By what servers list now: the registry of names says what a name means, not who offers it.
    """
    from interlock.catalog.api import LIST_TOOLS, Tools

    answer = invocation.node.call(LIST_TOOLS)
    out = invocation.out
    tools = [tool for tool in answer.as_(Tools).tools if name == tool.original or tool.name.endswith(f".{name}")]
    if out.as_json:
        names = {tool.name for tool in tools}
        out.json({"tools": [tool for tool in answer.value["tools"] if tool["name"] in names]})
        return
    if not tools:
        raise Refused("not_found", f"no server lists {name} now", hint="interlock tools list")
    from msgspec import UnsetType
    from rich.text import Text

    from interlock.cli.terminal.drawing import in_columns
    from interlock.cli.terminal.text import one_line
    from interlock.names.protocol.judgement import absent_verdict

    rows = [[Text(head, style="dim") for head in ("TOOL", "STATE", "VERDICT", "WHY")]]
    for tool in tools:
        surface = None if isinstance(tool.surface, UnsetType) else tool.surface
        plain = absent_verdict(tool.original.rpartition(".")[2]).value  # REG-4.2-7
        verdict, why = (plain, "") if surface is None else (surface.verdict, surface.warning)
        rows.append([Text(one_line(tool.name), style="bold"), Text(tool.state), Text(verdict), Text(one_line(why))])
    out.draw(*in_columns(rows, width=out.console.width, shrink={3: 24, 0: 20}))
    out.remark("by what servers list now; the registry of names does not say who offers a name")  # REG-7.1-2


tools_call.register(app)
tools_classify.register(app)

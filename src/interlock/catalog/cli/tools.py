"""interlock tools list | show | routes | where (and call, classify, from their own files)"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec import UNSET

from interlock.catalog.api import GET_TOOL, LIST_ROUTES, LIST_TOOLS, Owner, Tool, ToolDetail, ToolRoutes, Tools
from interlock.catalog.cli import call as tools_call
from interlock.catalog.cli import classify as tools_classify
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import tool_names
from interlock.cli.terminal.drawing import LABEL_WIDTH, in_columns, labelled_lines
from interlock.cli.terminal.output import shortened_line
from interlock.cli.terminal.text import first_sentence, local_time, one_line
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from rich.text import Text

SEARCHED_MAX = 20  # tools that --search shows
T = TypeVar("T")
GIST_CHARS_MAX = 120  # of a description, however wide the screen; tools show has it whole
Cell = str | tuple[str, str]  # a text, or a text with its style

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
    answer = invocation.node.call(LIST_TOOLS)
    out = invocation.out
    if out.as_json and pattern is None and search is None:
        out.raw_json(answer.raw)
        return
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
    if operations:
        classified = [(tool.name, tool.operation) for tool in tools if tool.operation is not UNSET]
        rows = [(name, entry.name, entry.category, entry.rule, entry.reason or "") for name, entry in classified]
        out.draw_table("TOOL|OPERATION|CATEGORY|RULE|REASON", rows, shrink={4: 20, 0: 20, 1: 20})
    else:
        out.draw_table("TOOL|CLASS|WHAT IT DOES", map(_row, tools), shrink={2: 20, 0: 20})


def _row(tool: Tool) -> tuple[Cell, Cell, Cell]:
    gist = shortened_line(first_sentence(tool.description or ""), GIST_CHARS_MAX)
    name, remark = (tool.name, "bold"), (gist, "")
    if tool.withheld is not None:
        name, remark = (f"{tool.segment}.{tool.original}", "dim"), (f"withheld: {tool.withheld}", "yellow")
    elif tool.state not in ("ready", "slow"):
        name, remark = (tool.name, "dim"), (f"{tool.state}: {gist}", "red")
    elif not tool.description:
        remark = shortened_line(first_sentence(tool.title or ""), GIST_CHARS_MAX), ""
    return name, _class_text(tool.capability), remark


def _fitting(search: str | None, tools: list[T], text: Callable[[T], tuple[str, str | None]]) -> list[T]:
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
    if pattern is None:
        return True
    names = (name, alias or name, original)
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(name, pattern) for name in names)
    return any(pattern.lower() in name.lower() for name in names)


def _class_text(capability: dict[str, Any]) -> tuple[str, str]:
    """Return the class of a tool and the style in which it is shown."""
    if not capability:
        return "-", "dim"
    if capability.get("mutable") is False:
        return "read_only", "green"
    return ("reversible", "yellow") if capability.get("reversible") is True else ("irreversible", "red")


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
    answer = invocation.node.call(GET_TOOL, name=name, caller=caller)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
    else:
        out.draw(*_detail(answer.as_(ToolDetail), out.console.width, out.console.options.ascii_only))


def _detail(tool: ToolDetail, width: int, ascii_only: bool) -> "list[Text]":
    from rich.text import Text

    from interlock.links.cli import state_text

    lines = [Text.assemble((one_line(tool.name), "bold"), "  ", state_text(tool.state, ascii_only=ascii_only))]

    def add(label: str, text: str, style: str = "") -> None:
        lines.extend(labelled_lines(label, one_line(text), width, style=style))

    if tool.withheld:
        add("withheld", tool.withheld, "yellow")
    if tool.title:
        add("title", tool.title)
    if tool.alias:
        add("alias", tool.alias)
    add("route", (" -> " if ascii_only else " → ").join(tool.route))
    if tool.era:
        add("era", tool.era)
    add("hops", str(tool.hops))
    if tool.owner:
        add("owner", _owner(tool.owner))
    if (surface := tool.surface) is not UNSET:
        status = f", {surface.status}, revision {surface.revision}" if surface.status else ""
        add("name", f"{surface.name}: {surface.verdict}{status}")
        for remark in [*surface.differences] or filter(None, [surface.warning]):
            add("", remark, "yellow")
    lines.append(Text.assemble((f"  {'capability':<{LABEL_WIDTH}}", "dim"), _class_text(tool.capability)))
    stated = ((key, str(value).lower() if isinstance(value, bool) else value) for key, value in tool.capability.items())
    add("", ", ".join(f"{key} {value}" for key, value in stated), "dim")
    for number, paragraph in enumerate((tool.description or "").strip().splitlines()):
        add("description" if number == 0 else "", paragraph)
    arguments = tools_call.arguments_of(tool.definition.get("inputSchema"))
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


def _owner(owner: Owner) -> str:
    if owner.principal is UNSET:
        return owner.kind
    claimed = f", {owner.authority} ({'verified' if owner.verified else 'unverified'})" if owner.authority else ""
    return f"{owner.kind} {owner.principal}{claimed}"


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
    answer = invocation.node.call(LIST_ROUTES)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    rows = [
        (
            (name, "bold"),
            route.downstream_session,
            route.downstream_name,
            (local_time(route.registered_at) if route.registered_at else "-", "dim"),
        )
        for name, route in answer.as_(ToolRoutes).items()
    ]
    if rows:
        out.draw_table("NAME|SESSION|NAME THERE|REGISTERED", rows, shrink={2: 16, 1: 12, 0: 20})
    else:
        out.remark("no routes")


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
    answer = invocation.node.call(LIST_TOOLS)
    out = invocation.out
    tools = [tool for tool in answer.as_(Tools).tools if name == tool.original or tool.name.endswith(f".{name}")]
    if out.as_json:
        names = {tool.name for tool in tools}
        out.json({"tools": [tool for tool in answer.value["tools"] if tool["name"] in names]})
        return
    if not tools:
        raise Refused("not_found", f"no server lists {name} now", hint="interlock tools list")
    from interlock.names.protocol.judgement import absent_verdict

    rows: list[tuple[Cell, ...]] = []
    for tool in tools:
        verdict, why = absent_verdict(tool.original.rpartition(".")[2]).value, ""  # REG-4.2-7
        if tool.surface is not UNSET:
            verdict, why = tool.surface.verdict, tool.surface.warning
        rows.append(((tool.name, "bold"), tool.state, verdict, why))
    out.draw_table("TOOL|STATE|VERDICT|WHY", rows, shrink={3: 24, 0: 20})
    out.remark("by what servers list now; the registry of names does not say who offers a name")  # REG-7.1-2


tools_call.register(app)
tools_classify.register(app)

"""interlock tools list | show | routes | where | call (and classify, from its own file)"""

import contextlib
import json
import os
import sys
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET, Raw

from interlock.catalog.api import GET_TOOL, LIST_ROUTES, LIST_TOOLS, Owner, Tool, ToolDetail, ToolRoutes, Tools
from interlock.catalog.cli.classify import classify
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import tool_names
from interlock.cli.terminal.drawing import LABEL_WIDTH, Details, in_columns, labelled_lines
from interlock.cli.terminal.errors import EXIT_DONE, EXIT_REFUSED, EXIT_WAITS, BadUsage
from interlock.cli.terminal.output import shortened_line
from interlock.cli.terminal.text import first_sentence, local_time, one_line, safe_text
from interlock.gate.protocol.held_call import CONFIRMATION, REQUIRED
from interlock.wire.refusal import METHOD_NOT_FOUND, Refused, find_code

if TYPE_CHECKING:
    from rich.text import Text

    from interlock.cli.client.mcp import ListedTool, McpClient

SEARCHED_MAX = 20  # tools that --search shows
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


@verb(app, "list")
def list_tools(
    invocation: Invocation,
    pattern: Annotated[str | None, typer.Argument(metavar="PATTERN")] = None,
    search: Annotated[str | None, typer.Option("--search", metavar="WORDS")] = None,
    operations: Annotated[bool, typer.Option("--operations")] = False,
) -> None:
    """List the tools and what a call of each may change.

    Descriptions are cut to their first sentence; tools show and --json have them whole.

    Options:
        pattern: A glob of names, or a part of a name.
        search: The tools that match the words, the best match first.
        operations: Show the MCP-AQL category of each tool, and the rule that decided it.

    Examples:
        interlock tools list
        interlock tools list 'github.*'
        interlock tools list search
        interlock tools list --search "create an issue"
        interlock tools list --json | jq -r '.tools[].name'
    """
    answer = invocation.node.call(LIST_TOOLS)
    out = invocation.out
    if out.as_json and pattern is None and search is None:
        out.raw_json(answer.raw)
        return
    pairs = zip(answer.as_(Tools).tools, answer.value["tools"], strict=True)
    matching = [(tool, value) for tool, value in pairs if _matches(pattern, tool)]
    if search is not None:
        # The tools that match the words, ranked as in `introspect`.
        from interlock.aql.protocol.search import SearchIndex, term_weights

        # The original name is searched too if it is not ASCII.
        names = [tool.name if tool.original.isascii() else f"{tool.name} {tool.original}" for tool, _ in matching]
        texts = [tool.description or "" for tool, _ in matching]
        index = SearchIndex(list(map(term_weights, names, texts)))
        matching = [matching[place] for place in index.search(search, SEARCHED_MAX)]
    if out.as_json:
        out.json({"tools": [value for _, value in matching]})
        return
    tools = [tool for tool, _ in matching]
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


def _matches(pattern: str | None, tool: Tool) -> bool:
    if pattern is None:
        return True
    names = (tool.name, tool.alias or tool.name, tool.original)
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


@verb(app, "show")
def show(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="TOOL", autocompletion=tool_names)],
    caller: Annotated[str, typer.Option("--as", metavar="PRINCIPAL")] = "local",
) -> None:
    """Show one tool in full.

    Its definition, capability and route, and every check before a call runs, with its verdict.

    Options:
        name: Qualified name or alias.
        caller: The principal of the call: local, client:NAME, or another.

    Examples:
        interlock tools show time.get_current_time
        interlock tools show files.write_file --as client:ci
        interlock tools show time__get_current_time --json
    """
    if (tool := invocation.call_or_print(GET_TOOL, name=name, caller=caller)) is not None:
        console = invocation.out.console
        invocation.out.draw(*_detail(tool, console.width, console.options.ascii_only))


def _detail(tool: ToolDetail, width: int, ascii_only: bool) -> "list[Text]":
    from rich.text import Text

    from interlock.links.cli import state_text

    head = Text.assemble((one_line(tool.name), "bold"), "  ", state_text(tool.state, ascii_only=ascii_only))
    lines = Details(head, width)
    lines.add("withheld", tool.withheld, style="yellow")
    lines.add("changed", None if tool.changed is UNSET else tool.changed, style="yellow")
    if tool.schema_excess is not None:
        lines.add("schema", f"too large to be read, so it counts as object: {tool.schema_excess}", style="yellow")
    lines.add("title", tool.title)
    lines.add("alias", tool.alias)
    lines.add("route", (" -> " if ascii_only else " → ").join(tool.route))
    lines.add("era", tool.era)
    lines.add("hops", str(tool.hops))
    lines.add("owner", _owner(tool.owner) if tool.owner else None)
    if (surface := tool.surface) is not UNSET:
        status = f", {surface.status}, revision {surface.revision}" if surface.status else ""
        lines.add("name", f"{surface.name}: {surface.verdict}{status}")
        lines.add("", *(surface.differences or (surface.warning,)), style="yellow")
    lines.append(Text.assemble((f"  {'capability':<{LABEL_WIDTH}}", "dim"), _class_text(tool.capability)))
    stated = ((key, str(value).lower() if isinstance(value, bool) else value) for key, value in tool.capability.items())
    lines += labelled_lines("", one_line(", ".join(f"{key} {value}" for key, value in stated)), width, style="dim")
    for number, paragraph in enumerate((tool.description or "").strip().splitlines()):
        lines += labelled_lines("description" if number == 0 else "", one_line(paragraph), width)
    if arguments := arguments_of(tool.definition.get("inputSchema")):
        lines += [Text(), Text("  arguments (* required)", style="dim")]
        rows = [
            [
                Text(f"    {argument.name}{'*' if argument.required else ''}"),
                Text(argument.kind, style="cyan"),
                Text(argument.description),
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
                Text(check.name),
                Text(check.verdict, style=styles.get(check.verdict, "")),
                Text(check.reason),
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


@verb(app, "routes")
def routes(invocation: Invocation) -> None:
    """Show where every qualified name leads.

    Examples:
        interlock tools routes
        interlock tools routes --json
    """
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


@verb(app, "where")
def where(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A tool's name at its server.")],
) -> None:
    """Show which servers offer a name.

    By what servers list now: the registry of names says what a name means, not who offers it.

    Examples:
        interlock tools where search
        interlock tools where search --json
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


CALL_TIMEOUT_S = 300.0  # longer than the node's own, so that its named error arrives


@verb(app, "call")
def call(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="TOOL", autocompletion=tool_names)],
    *,
    arg: Annotated[list[str] | None, typer.Option("--arg", "-a", metavar="NAME=VALUE")] = None,
    args_json: Annotated[str | None, typer.Option("--args-json", metavar="JSON")] = None,
    token: Annotated[str | None, typer.Option("--token", metavar="TOKEN", show_default=False)] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1)] = (CALL_TIMEOUT_S),
) -> None:
    """Call a tool and print its result.

    It is called as any MCP client calls it, at the public endpoint; here --url is a node's public URL.

    Options:
        name: Qualified name or alias.
        arg: An argument; JSON unless the tool wants text.
        args_json: All arguments as one JSON object, or - for stdin.
        token: A client's token.  [env: INTERLOCK_TOKEN]
        timeout: How long to wait.

    Examples:
        interlock tools call time.get_current_time --arg timezone=Europe/Berlin
        interlock tools call files.write_file --arg path=a.txt --arg content=hi
        interlock tools call github.search --args-json '{"query": "is:open"}'
        interlock tools call time__get_current_time --json | jq .content
    """
    from interlock.cli.client.mcp import McpClient
    from interlock.operator.api import GET_STATUS, Status

    pairs = _parse_pairs(arg or [])
    whole = _whole(args_json)
    url = invocation.remote_url or invocation.node.call(GET_STATUS).as_(Status).node.mcp_url
    from_environment = os.environ.get("INTERLOCK_TOKEN")
    if not token and from_environment is not None and not from_environment.startswith("ilo_"):
        token = from_environment  # one of an operator is never sent to the public endpoint
    client = McpClient(url, token, timeout=timeout)
    client, tool, nearest = _find(client, name)
    arguments = whole | {key: argument_value(tool.input_schema, key, text) for key, text in pairs}
    try:
        with _Progress(invocation) as progress:
            result = client.call(tool, arguments, on_progress=progress.show)
    except Refused as refused:
        data = refused.details.get("data")
        is_withheld = isinstance(data, dict) and "because" in data  # the message says why
        if find_code(refused.details.get("code")) != METHOD_NOT_FOUND or is_withheld:
            raise
        message = f"there is no tool {name}"
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else "interlock tools list shows them"
        if _has_tool(invocation, name):
            message = f"{name} is not shown to this client"
            hint = "call it with --token of a client that may see it; tools of rooms are for those who may join one"
        raise Refused("tool_not_found", message, hint=hint, details={**refused.details, "nearest": nearest}) from None
    code = _show(invocation, bytes(result))
    if code != EXIT_DONE:
        raise typer.Exit(code)


def _parse_pairs(pairs: list[str]) -> list[tuple[str, str]]:
    split = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise BadUsage("usage", f"--arg {pair}: write it as name=value")
        split.append((key, text))
    return split


def _whole(args_json: str | None) -> dict[str, Any]:
    if args_json is None:
        return {}
    try:
        value = json.loads(sys.stdin.read() if args_json == "-" else args_json)
    except (ValueError, RecursionError) as error:
        raise BadUsage("usage", f"--args-json is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadUsage("usage", "--args-json must be a JSON object")
    return value


def _find(client: "McpClient", name: str) -> "tuple[McpClient, ListedTool, list[str]]":
    """Find the tool to call by its name. Return the client over which to call it, the tool, and similar names if the
    tool is not listed.

    Behind a segment, the tool may have its server's original name, which may not be a valid name in a list. A name that
    is not listed is called anyway, because the node decides whether it exists, and records the call.
    """
    from interlock.cli.client.mcp import ListedTool

    names: list[str] = []
    segment, _, own = name.partition(".")
    has_segment = False
    for tool in client.tools():
        if name in tool.names:
            return client, tool, []
        names.append(tool.names[0 if "__" in name else -1])  # one spelling of each, the one that was typed
        has_segment = has_segment or tool.names[-1].startswith(f"{segment}.")
    there = client.find_at_server(segment) if own and has_segment else None
    if there is not None:
        with contextlib.suppress(Refused):  # there is no such server
            for tool in there.tools():
                if tool.name == own:
                    return there, tool, []
    return client, ListedTool(name=name), get_close_matches(name, names, n=3)


def _has_tool(invocation: Invocation, name: str) -> bool:
    """Return whether the operator can see the tool. A remote node is not asked."""
    from interlock.catalog.api import LIST_TOOLS

    if invocation.remote_url is not None:
        return False
    tools = invocation.node.call(LIST_TOOLS).value["tools"]
    return any(name in (tool["name"], tool["alias"]) and not tool.get("withheld") for tool in tools)


class _Progress(contextlib.AbstractContextManager["_Progress"]):
    """The progress display of a call on stderr: one line that is redrawn on a terminal, otherwise a line for each
    report.
    """

    def __init__(self, invocation: Invocation) -> None:
        self._out = invocation.out
        self._redraws = sys.stderr.isatty()
        self._shown = False

    def __exit__(self, *_: object) -> None:
        if self._shown and self._redraws:
            self._out.progress()

    def show(self, progress: float, total: float | None, message: str | None) -> None:
        amount = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        line = f"{amount}: {message}" if message else amount
        self._shown = True
        if self._redraws:
            self._out.progress(line)
        else:
            self._out.remark(f"progress: {shortened_line(line, 200)}")


def _show(invocation: Invocation, raw: bytes) -> int:
    """Print a result and return the exit code of the command."""
    out = invocation.out
    try:
        result = msgspec.json.decode(raw, type=ShownResult)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused("unexpected_answer", "the result is not a tool's result") from None
    if out.as_json:
        out.raw_json(raw)
        return _code(result) if result.result_type != "input_required" else EXIT_REFUSED
    if result.result_type == "input_required":
        raise Refused("input_required", "the tool asks its caller for input, which this command cannot give")
    for block in result_blocks(result):
        out.lines(block)
    if result.held_id is not None:
        out.remark(f"it waits: interlock approvals show {result.held_id[:8]}")
    if result.is_error and not result.is_gated:
        out.remark("the tool reports an error")
    return _code(result)


def _code(result: "ShownResult") -> int:
    if result.waits:
        return EXIT_WAITS
    return EXIT_REFUSED if result.is_error else EXIT_DONE


class ShownResult(
    msgspec.Struct,
    frozen=True,
    rename={"structured": "structuredContent", "is_error": "isError", "result_type": "resultType", "meta": "_meta"},
):
    content: tuple[Any, ...] = ()
    structured: Raw = Raw()
    is_error: bool = False
    result_type: str = "complete"
    meta: dict[str, Any] = {}

    @property
    def waits(self) -> bool:
        """Return whether the call is held until a person decides (MCP-AX 11.3)."""
        held = self.meta.get(CONFIRMATION)
        return isinstance(held, dict) and held.get("status") == REQUIRED

    @property
    def is_gated(self) -> bool:
        """Return whether the result comes from the gate instead of the tool: the call waits, or a person denied it."""
        return isinstance(self.meta.get(CONFIRMATION), dict)

    @property
    def held_id(self) -> str | None:
        """Return the id of the approval for which a held call waits, or None."""
        id = self.meta[CONFIRMATION].get("confirmation_id") if self.waits else None
        return id if isinstance(id, str) else None


def result_blocks(result: ShownResult) -> list[str]:
    """Return the result of a call as blocks of text that are safe to print.

    For a result of the gate, only the text is returned, because the structured content repeats it.
    """
    blocks = [_block(block) for block in result.content]
    if bytes(result.structured) and not result.is_gated and not _repeats(result.content, result.structured):
        blocks.append(safe_text(msgspec.json.format(bytes(result.structured), indent=2).decode()))
    return blocks or ["(empty result)"]


def _block(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return _as_json(text) or safe_text(text)
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"({kind} {one_line(str(block.get('mimeType', '')))}, {_decoded_size(data)} bytes; --json has it)"
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            return f"(resource {one_line(uri)})\n{safe_text(text)}"
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)}}:
            return f"(resource {one_line(uri)}, {_decoded_size(blob)} bytes; --json has it)"
        case {"type": "resource_link", "uri": str(uri)}:
            return f"(link to {one_line(uri)})"
        case {"type": str(kind)}:
            return f"({one_line(kind)} content; --json has it)"
    return "(content of no known form; --json has it)"


def _as_json(text: str) -> str | None:
    """Return the text with indentation if it is one JSON object or list, or None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return safe_text(msgspec.json.format(text.encode(), indent=2).decode())
    except (msgspec.DecodeError, UnicodeError):
        return None


def _repeats(content: tuple[Any, ...], structured: Raw) -> bool:
    """Return whether the text content repeats the structured content. Servers repeat it for older clients."""
    match content:
        case ({"type": "text", "text": str(text)},):
            try:
                value = msgspec.json.decode(structured)
                if isinstance(value, dict) and list(value.values()) == [text]:
                    return True
                return bool(msgspec.json.decode(text) == value)
            except (msgspec.DecodeError, UnicodeError):
                return False
    return False


def _decoded_size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    required: bool
    description: str


def arguments_of(schema: Any) -> list[Argument]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return []
    required = schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    arguments = []
    for name, inner in properties.items():
        members = inner if isinstance(inner, dict) else {}
        kind = " or ".join(sorted(_types(members))) or "any"
        if isinstance(choices := members.get("enum"), list) and choices:
            kind = "|".join(str(choice) for choice in choices[:6]) + ("|…" if len(choices) > 6 else "")
        parts = [members["description"]] if isinstance(members.get("description"), str) else []
        if "default" in members:
            parts.append(f"[default: {json.dumps(members['default'])}]")
        arguments.append(Argument(name=name, kind=kind, required=name in needed, description=" ".join(parts)))
    return arguments


def argument_value(schema: Any, name: str, text: str) -> Any:
    """Return the value of `--arg name=text`.

    It is text if the schema allows only text. Otherwise it is decoded as JSON, or is text if it is not valid JSON.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    inner = properties.get(name) if isinstance(properties, dict) else None
    if _types(inner) == {"string"}:
        return text

    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    if isinstance(stated := schema.get("type"), str):
        return {stated}
    if isinstance(stated, list):
        return {str(name) for name in stated}
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        return {"string"}
    if isinstance(schema.get("const"), str):
        return {"string"}
    return set()


verb(app, "classify")(classify)

"""interlock tools call TOOL"""

import contextlib
import json
import os
import sys
from difflib import get_close_matches
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Raw

from interlock.cli.command import Invocation, verb
from interlock.cli.completion import tool_names
from interlock.cli.terminal.errors import EXIT_DONE, EXIT_REFUSED, EXIT_WAITS, BadUsage
from interlock.cli.terminal.output import shortened_line
from interlock.cli.terminal.text import one_line, printable
from interlock.gate.protocol.held_call import CONFIRMATION, REQUIRED
from interlock.wire.refusal import METHOD_NOT_FOUND, Refused, find_code

if TYPE_CHECKING:
    from interlock.cli.client.mcp import ListedTool, McpClient

CALL_TIMEOUT_S = 300.0  # longer than the node's own, so that its named error arrives


def register(app: typer.Typer) -> None:
    verb(
        app,
        "call",
        examples="""
        interlock tools call time.get_current_time --arg timezone=Europe/Berlin
        interlock tools call files.write_file --arg path=a.txt --arg content=hi
        interlock tools call github.search --args-json '{"query": "is:open"}'
        interlock tools call time__get_current_time --json | jq .content
        """,
    )(call)


def call(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="TOOL", help="Qualified name or alias.", autocompletion=tool_names)],
    *,
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", "-a", metavar="NAME=VALUE", help="An argument; JSON unless the tool wants text."),
    ] = None,
    args_json: Annotated[
        str | None,
        typer.Option("--args-json", metavar="JSON", help="All arguments as one JSON object, or - for stdin."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TOKEN", help="A client's token.  [env: INTERLOCK_TOKEN]", show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait.")] = (
        CALL_TIMEOUT_S
    ),
) -> None:
    """Call a tool and print its result.

    It is called as any MCP client calls it, at the public endpoint; here --url is a node's public URL.
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
        if find_code(refused.details.get("code")) != METHOD_NOT_FOUND:
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
    """Return the client with which to call a tool, and the tool. If it is not listed, also return names that resemble
    it.

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


class _Progress:
    """The progress display of a call on stderr: one line that is redrawn on a terminal, otherwise a line for each
    report.
    """

    def __init__(self, invocation: Invocation) -> None:
        self._out = invocation.out
        self._redraws = sys.stderr.isatty()
        self._shown = False

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._redraws:
            self._write("\r\x1b[K")

    def show(self, progress: float, total: float | None, message: str | None) -> None:
        amount = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        line = f"{amount}: {message}" if message else amount
        self._shown = True
        if self._redraws:
            self._write(f"\r\x1b[K{shortened_line(line, get_terminal_size().columns - 1)}")
        else:
            self._out.remark(f"progress: {shortened_line(line, 200)}")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


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
        out.line(block)
    if result.held_id is not None:
        out.remark(f"it waits: interlock approvals show {one_line(result.held_id[:8])}")
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
    """Return the printable blocks of a result.

    For a result of the gate, only the text is returned, because the structured content repeats it.
    """
    blocks = [_block(block) for block in result.content]
    if bytes(result.structured) and not result.is_gated and not _repeats(result.content, result.structured):
        blocks.append(printable(msgspec.json.format(bytes(result.structured), indent=2).decode()))
    return blocks or ["(empty result)"]


def _block(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return _as_json(text) or printable(text)
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"({kind} {one_line(str(block.get('mimeType', '')))}, {_decoded_size(data)} bytes; --json has it)"
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            return f"(resource {one_line(uri)})\n{printable(text)}"
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
        return printable(msgspec.json.format(text.encode(), indent=2).decode())
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
    return [
        Argument(name=name, kind=_kind_of(inner), required=name in needed, description=_description(inner))
        for name, inner in properties.items()
    ]


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


def _kind_of(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(choices := schema.get("enum"), list) and choices:
        return "|".join(str(choice) for choice in choices[:6]) + ("|…" if len(choices) > 6 else "")
    return " or ".join(sorted(_types(schema))) or "any"


def _description(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    parts = [str(schema["description"])] if isinstance(schema.get("description"), str) else []
    if "default" in schema:
        parts.append(f"[default: {json.dumps(schema['default'])}]")
    return " ".join(parts)

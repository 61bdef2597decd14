"""A tool's result as text: what is text as it is, structured content as JSON, everything else as a note. Pure."""

from typing import Any

import msgspec
from msgspec import Raw

from interlock.cli.terminal.text import one_line, printable
from interlock.gate.protocol.held_call import CONFIRMATION, REQUIRED


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
        """The call is held until a person decides (MCP-AX 11.3)."""
        held = self.meta.get(CONFIRMATION)
        return isinstance(held, dict) and held.get("status") == REQUIRED

    @property
    def is_gated(self) -> bool:
        """The gate answered, and not the tool: the call waits, or a person said no."""
        return isinstance(self.meta.get(CONFIRMATION), dict)

    @property
    def held_id(self) -> str | None:
        """Of a call that waits: what is to be decided."""
        id = self.meta[CONFIRMATION].get("confirmation_id") if self.waits else None
        return id if isinstance(id, str) else None


def result_blocks(result: ShownResult) -> list[str]:
    """Of the gate's answer the text alone: its structured content says the same to programs."""
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
    """Text that is one JSON object or list, indented; servers often answer so."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return printable(msgspec.json.format(text.encode(), indent=2).decode())
    except (msgspec.DecodeError, UnicodeError):
        return None


def _repeats(content: tuple[Any, ...], structured: Raw) -> bool:
    """A server of structured content repeats it as text, for older clients (MCP, tools: structured content)."""
    match content:
        case ({"type": "text", "text": str(text)},):
            try:
                said = msgspec.json.decode(structured)
                if isinstance(said, dict) and list(said.values()) == [text]:
                    return True
                return bool(msgspec.json.decode(text) == said)
            except (msgspec.DecodeError, UnicodeError):
                return False
    return False


def _decoded_size(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")

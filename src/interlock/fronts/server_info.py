"""What the node says of itself: capabilities that are true of the servers behind it, and their instructions, merged."""

from typing import Any

from msgspec import Raw

from interlock import __version__
from interlock.catalog.catalog import View
from interlock.mcp.methods import EXTENSION, TASKS_EXTENSION
from interlock.mcp.tasks import offers_cancelling
from interlock.wire.jsonrpc.codec import decode_object

SERVER_INFO = {"name": "interlock", "title": "Interlock", "version": __version__}
INSTRUCTIONS_CHARS_MAX = 100_000
EXPERIMENTAL_BYTES_MAX = 16 * 1024  # of one server; every client is told of it when it greets
INTRODUCTION = (
    "Interlock gathers several MCP servers. A tool's name begins with the server it belongs to; "
    "its annotations say whether it changes anything and whether that can be undone, and _meta['x-mcpax-capability'], "
    "where it has that, how fresh what it reads is (consistency)."
)

_WHATEVER_COMES: dict[str, Any] = {
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}


def capabilities(view: View, *, modern: bool, tasks: bool = True, upward: bool = False) -> dict[str, Any]:
    """Return the capabilities to offer for a view.

    `tasks` is whether the client's revision has tasks. `upward` is for a parent, which greets once although servers may
    be added later.
    """
    offered: dict[str, Any] = {"tools": {"listChanged": True}}
    facts = [link.facts.capabilities for link in view.links if link.facts is not None]
    if any("prompts" in declared for declared in facts):
        offered["prompts"] = {"listChanged": True}
    if any("resources" in declared for declared in facts):
        offered["resources"] = {"listChanged": True}
        if any(_has(declared.get("resources"), "subscribe") for declared in facts):
            offered["resources"]["subscribe"] = True
    for name in ("completions", "logging"):
        if any(name in declared for declared in facts):
            offered[name] = {}
    if upward:
        offered |= _WHATEVER_COMES
    experimental = _experimental(view, modern=modern)
    if experimental:
        offered["experimental"] = experimental
    offered.setdefault("extensions" if modern else "experimental", {})[EXTENSION] = {}
    makers = [link.facts for link in view.links if tasks and link.facts and link.tasks and link.modern == modern]
    if makers and modern:
        offered["extensions"][TASKS_EXTENSION] = {}
    elif makers:
        offered["tasks"] = {"list": {}, "requests": {"tools": {"call": {}}}}
        if any(offers_cancelling(facts.capabilities) for facts in makers):
            offered["tasks"]["cancel"] = {}
    return offered


def _experimental(view: View, *, modern: bool) -> dict[str, Any]:
    """Return the experimental capabilities of the servers of the client's era.

    Keys are `SEGMENT/KEY`, so that servers cannot be confused, or plain keys for a client that sees only one server.
    """
    offered: dict[str, Any] = {}
    for link in view.links:
        declared = link.facts.capabilities.get("experimental") if link.facts and link.modern == modern else None
        if declared is None or len(declared) > EXPERIMENTAL_BYTES_MAX or not view.shows(link):
            continue
        for key, value in (decode_object(declared) or {}).items():
            if bytes(value)[:1] == b"{" and key != EXTENSION:
                offered[key if view.is_of_one_server else f"{link.segment}/{key}"] = value
    return offered


def instructions(view: View, only: str | None) -> str:
    texts = [(link.segment, link.facts.instructions) for link in view.links if link.facts and link.facts.instructions]
    if only is not None:
        return "\n\n".join(text for _, text in texts if text)[:INSTRUCTIONS_CHARS_MAX]
    parts = [INTRODUCTION, *(f"## {segment}\n{text}" for segment, text in texts)]
    return "\n\n".join(parts)[:INSTRUCTIONS_CHARS_MAX]


def _has(raw: Raw | None, member: str) -> bool:
    settings = decode_object(raw) if raw is not None else None
    return settings is not None and bytes(settings.get(member, b"")) == b"true"

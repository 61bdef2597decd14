"""Every name that MCP-AX puts on the wire: metadata keys, methods, notifications, transport classes (MCP-AX 14).

This is the one list of them. docs/ax-reference.md is written from it, and tests/ax/pure/test_ax_keys.py fails when the
code writes a key or a method that is not here. Keys are legal MCP names without a prefix and therefore survive plain
servers; the extension's own identifier is dev.interlock/ax. `--check` compares the page and writes nothing.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol import messages
from interlock.ax.protocol.capability import PRIVATE_PREFIX, TRANSPORT_CLASSES, TransportClass

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/ax-reference.md")


class WireKey(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    place: str
    writer: str
    meaning: str
    source: str  # the draft's clause, or "ours"


class Method(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Literal["request", "notification"]
    direction: str
    meaning: str
    source: str
    params: dict[str, Any]  # JSON Schema
    result: dict[str, Any] | None = None


class Correspondence(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the draft's appendix A. `see` names methods of this list, `field` what to look for.

    That is a member of such a method, a metadata key, a member of the routing table or a setting.
    """

    agentx: str
    mcpax: str
    see: tuple[str, ...] = ()
    field: str = ""


_TOOL: Final = "_meta of a listed tool"
_REQUEST: Final = "params._meta of a request to an AX peer"
_RESULT: Final = "_meta of a result"
_NOTICE: Final = "params._meta of a notification"
_AGGREGATOR: Final = "every aggregator"

KEYS: Final = (
    WireKey(
        name="x-mcpax-caller",
        place=_REQUEST,
        writer="an aggregator, to an aggregator below that may hold the call",
        meaning="An opaque mark of the caller, each aggregator's own: an approval is good for that caller alone.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-capability",
        place=_TOOL,
        writer="the tool's server; its aggregator where it is silent",
        meaning="The capability annotation (9.1): ten keys from latency_class to schema_version.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-causal-parent",
        place=_NOTICE,
        writer="the sender of the event",
        meaning="The event that caused this one, or null. Opaque: passed as it is, never kept.",
        source="12",
    ),
    WireKey(
        name="x-mcpax-confirmation",
        place=_RESULT,
        writer="the aggregator whose gate holds the call",
        meaning="What is to be confirmed: status, tool, arguments, capability, route, caller, confirmation_id, expiry, "
        "digest. Taken out of every result that is not relayed from a proved aggregator.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-cursor",
        place=_REQUEST,
        writer=_AGGREGATOR,
        meaning="The position of the receiver's segment in the route.",
        source="7.2",
    ),
    WireKey(
        name="x-mcpax-declared",
        place=_TOOL,
        writer="the first aggregator that changes a value",
        meaning="Keys of the capability annotation and MCP hints as the owner declared them, where a hop changed them.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-device",
        place=_RESULT,
        writer="a gateway",
        meaning="What a device said of a call beside its result: status, fault.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-event-id",
        place=_NOTICE,
        writer="the sender of the event",
        meaning="The identity of the event. Opaque: passed as it is, never kept.",
        source="12",
    ),
    WireKey(
        name="x-mcpax-events",
        place="params._meta of subscriptions/listen",
        writer="a client",
        meaning="true: vendor notifications of the tree are wanted on this stream.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-gated",
        place=_TOOL,
        writer="an aggregator that gates the tool",
        meaning="true: calls are held for confirmation at some hop. No hop above takes it away.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-hops",
        place=_TOOL,
        writer=_AGGREGATOR,
        meaning="How many aggregators lie between the caller and the tool's server, the answering one included.",
        source="9.2",
    ),
    WireKey(
        name="x-mcpax-latency-ms",
        place=_RESULT,
        writer="every aggregator that has mcp.latency_meta on",
        meaning="Milliseconds from forwarding the call to its answer, at this hop.",
        source="7.2",
    ),
    WireKey(
        name="x-mcpax-name",
        place="_meta of a listed tool or prompt",
        writer="the aggregator a client talks to",
        meaning="The qualified name, where the listed one is an alias.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-origin",
        place=_NOTICE,
        writer=_AGGREGATOR,
        meaning="The segments of the way the notification came, joined by dots.",
        source="ours",
    ),
    WireKey(
        name="x-mcpax-route",
        place=_REQUEST,
        writer="the aggregator at which the request enters the tree",
        meaning="All segments from the root to the server, then the local name of the tool or prompt.",
        source="7.2",
    ),
    WireKey(
        name="x-mcpax-safety",
        place=_TOOL,
        writer=_AGGREGATOR,
        meaning='"irreversible_mutable" for a tool that changes something for good. No hop above takes it away.',
        source="11.2",
    ),
    WireKey(
        name="x-mcpax-subtree-ids",
        place="params of mcpax/register and mcpax/heartbeat",
        writer="an aggregator that registers",
        meaning="The aggregator_id of the registrant, then those of all aggregators below it.",
        source="5.3",
    ),
)


def _object(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": "object", "properties": properties}
    return {**shape, "required": list(required)} if required else shape


_TEXT: Final[dict[str, Any]] = {"type": "string"}
_UUID: Final = {"type": "string", "format": "uuid"}
_TIME: Final = {"type": "string", "format": "date-time"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_FLAG: Final = {"type": "boolean"}
_SEGMENT: Final = {"type": "string", "pattern": "^[a-z0-9_-]{1,63}$"}
_PATH: Final = {"type": "string", "maxLength": 255}
_UUIDS: Final = {"type": "array", "items": _UUID, "maxItems": 10000}
_SCOPE: Final = {"enum": ["read", "write", "admin"]}
_HELD: Final = {"type": "object", "additionalProperties": _UUID, "maxProperties": 1000}
_STATUS_OK: Final = _object(("status", "heartbeat_deadline_ms"), status={"const": "ok"}, heartbeat_deadline_ms=_COUNT)

_UP: Final = "subserver to aggregator"
_DOWN: Final = "aggregator to subserver"

METHODS: Final = (
    Method(
        name=messages.REGISTER,
        kind="request",
        direction=_UP,
        meaning="Ask for a segment and begin a session.",
        source="6.1",
        params={
            "type": "object",
            "required": ["subserver_id", "segment"],
            "properties": {
                "subserver_id": _UUID,
                "segment": _SEGMENT,
                "authority": {"type": ["string", "null"], "pattern": "^dns:"},
                "capabilities": _object(
                    tools=_FLAG, resources=_FLAG, notifications=_FLAG, prompts=_FLAG, completions=_FLAG
                ),
                "heartbeat_interval_ms": {"type": "integer", "minimum": 0, "maximum": 3600000},
                "transport_class": {"enum": [transport.id for transport in TRANSPORT_CLASSES]},
                "version": {"type": "string", "maxLength": 64},
                "endpoint": {"type": "string", "format": "uri"},
                "authority_proof": _object(("type", "token"), type={"const": "jwt"}, token=_TEXT),
                "auth_scope": _SCOPE,
                "parent_id": {"type": ["string", "null"], "format": "uuid"},
                "released_session": _TEXT,
                "tree": _TEXT,
                "x-mcpax-subtree-ids": _UUIDS,
            },
        },
        result=_object(
            ("status", "assigned_segment", "session_id", "heartbeat_deadline_ms", "budget"),
            status={"const": "registered"},
            assigned_segment=_SEGMENT,
            session_id=_TEXT,
            heartbeat_deadline_ms=_COUNT,
            budget=_object(
                max_calls_per_minute=_COUNT, max_mutable_calls_per_session=_COUNT, max_cost_units_per_session=_COUNT
            ),
            aggregator_id=_UUID,
            tree=_TEXT,
            auth_scope=_SCOPE,
            claims=_FLAG,
        ),
    ),
    Method(
        name=messages.HEARTBEAT,
        kind="request",
        direction=_UP,
        meaning="Say that the session is alive; also taken as a notification. On its own link it need not be named.",
        source="6.3",
        params={"type": "object", "properties": {"session_id": _TEXT, "x-mcpax-subtree-ids": _UUIDS}},
        result=_STATUS_OK,
    ),
    Method(
        name=messages.DEREGISTER,
        kind="request",
        direction=_UP,
        meaning="End the session in good order. On its own link it need not be named.",
        source="6.3",
        params=_object(session_id=_TEXT),
        result=_object(("status",), status={"const": "deregistered"}),
    ),
    Method(
        name=messages.CONFIRM,
        kind="request",
        direction="client or aggregator to the aggregator below",
        meaning="Release a held call with a proof; answered with the result of the call.",
        source="11.3",
        params=_object(
            ("confirmation_id",),
            confirmation_id=_UUID,
            proof={"anyOf": [_TEXT, _object(("token",), type=_TEXT, token=_TEXT)]},
            dispatch=_FLAG,
            redeem=_FLAG,
        ),
        result={"type": "object"},
    ),
    Method(
        name=messages.PARENT,
        kind="request",
        direction=_DOWN,
        meaning="Ask a registrant who its parent is, where no store is shared.",
        source="ours, for 13.4",
        params=_object(),
        result=_object(
            ("subserver_id", "parent_id"),
            subserver_id=_UUID,
            parent_id={"type": ["string", "null"], "format": "uuid"},
        ),
    ),
    Method(
        name=messages.CLAIM,
        kind="request",
        direction="aggregator to the aggregator above",
        meaning="Say which subservers the sender has, itself or below it; answered with those that another had before.",
        source="ours, for 13.4",
        params=_object(
            claims={
                "type": "array",
                "maxItems": 1000,
                "items": _object(
                    ("subserver_id", "aggregator_id", "session_hash"),
                    subserver_id=_UUID,
                    aggregator_id=_UUID,
                    session_hash={"type": "string", "pattern": "^[0-9a-f]{64}$"},
                ),
            },
            released={"type": "array", "items": _UUID, "maxItems": 1000},
            released_session=_TEXT,
        ),
        result=_object(("status", "held"), status={"const": "ok"}, held=_HELD),
    ),
    Method(
        name=messages.SUBSERVER_LOST,
        kind="notification",
        direction=_UP,
        meaning="A subserver's heartbeats stopped or its connection broke.",
        source="13.1",
        params=_object(
            ("segment", "reason", "since"),
            segment=_PATH,
            reason={"enum": ["heartbeat_timeout", "connection_lost"]},
            since=_TIME,
        ),
    ),
    Method(
        name=messages.OVERFLOW,
        kind="notification",
        direction=_UP,
        meaning="Notifications of a subserver were dropped; it stands before the first one after the gap.",
        source="12",
        params=_object(("segment", "dropped", "since"), segment=_PATH, dropped=_COUNT, since=_TIME),
    ),
    Method(
        name=messages.TOOLS_REFUSED,
        kind="notification",
        direction=_DOWN,
        meaning="Tools of this subserver are not listed; total counts them, the first hundred are named.",
        source="ours, for 4.2",
        params=_object(
            ("tools", "total"),
            tools={
                "type": "array",
                "maxItems": 100,
                "items": _object(("name", "reason", "detail"), name=_TEXT, reason=_TEXT, detail=_TEXT),
            },
            total=_COUNT,
        ),
    ),
    Method(
        name=messages.HELD_ELSEWHERE,
        kind="notification",
        direction="aggregator to the aggregator below",
        meaning="Subservers that were claimed are held by another aggregator of the tree: their sessions end.",
        source="ours, for 13.4",
        params=_object(("held",), held=_HELD),
    ),
)

# Table 3 of the draft.
AGENTX: Final = (
    Correspondence(agentx="Master Agent", mcpax="Root Aggregator", field="ax.root_segment"),
    Correspondence(agentx="Subagent", mcpax="Subserver", see=(messages.REGISTER,), field="subserver_id"),
    Correspondence(agentx="OID Subtree", mcpax="Namespace Prefix", see=(messages.REGISTER,), field="segment"),
    Correspondence(agentx="MIB Registration", mcpax="Tool Registration", see=(messages.REGISTER,)),
    Correspondence(agentx="ax.Register PDU", mcpax="mcpax/register", see=(messages.REGISTER,)),
    Correspondence(agentx="ax.Unregister PDU", mcpax="mcpax/deregister", see=(messages.DEREGISTER,)),
    Correspondence(agentx="ax.Get/GetNext/GetBulk", mcpax="tools/call (routed)", field="x-mcpax-route"),
    Correspondence(agentx="ax.Notify PDU", mcpax="MCP notification (prefixed)", field="x-mcpax-origin"),
    Correspondence(agentx="ax.Ping PDU", mcpax="mcpax/heartbeat", see=(messages.HEARTBEAT,)),
    Correspondence(agentx="ax.Response PDU", mcpax="JSON-RPC response", field="result"),
    Correspondence(agentx="Session ID", mcpax="session_id", see=(messages.REGISTER,), field="session_id"),
    Correspondence(agentx="Context", mcpax="Namespace segment", see=(messages.REGISTER,), field="assigned_segment"),
    Correspondence(agentx="sysUpTime", mcpax="registered_at timestamp", field="registered_at"),
    Correspondence(
        agentx="AgentX socket (unix/tcp)",
        mcpax="HTTP+SSE / stdio / bridged",
        see=(messages.REGISTER,),
        field="transport_class",
    ),
)


def check_classes(classes: list[TransportClass]) -> str | None:
    """Return why the registry of transport classes is inconsistent, or None."""
    ids = [transport_class.id for transport_class in classes]
    if len(set(ids)) < len(ids):
        return "a transport class is in the registry twice"
    for transport_class in classes:
        if transport_class.id.startswith(PRIVATE_PREFIX) is not (transport_class.status == "private"):
            return (
                f'transport class "{transport_class.id}": private classes, and only they, begin with "{PRIVATE_PREFIX}"'
            )
    return None


def page() -> str:
    lines = [
        "# MCP-AX on the wire",
        "",
        "Written by `python tools/ax_reference.py` from `interlock.ax.protocol`. Clauses are those of",
        "draft-abbott-mcp-ax-00; what it leaves open and we settled says *ours*.",
        "",
        "## Methods and notifications",
        "",
        "| name | kind | direction | meaning | source |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS:
        cells = (_link(method.name), method.kind, method.direction, method.meaning, method.source)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Any other method that begins with `mcpax/` is answered -32601."]
    for method in METHODS:
        lines += _method(method)
    lines += ["", "## Metadata keys", "", "| key | place | written by | meaning | source |", "|---|---|---|---|---|"]
    for key in KEYS:
        name = f'<a id="{key.name}"></a>`{key.name}`'
        lines.append(f"| {name} | {key.place} | {key.writer} | {key.meaning} | {key.source} |")
    lines += ["", "## Transport classes", "", "A private class begins with `x-`."]
    lines += ["", "| class | framing | payload | reference | status |", "|---|---|---|---|---|"]
    for one in TRANSPORT_CLASSES:
        lines.append(f"| `{one.id}` | {one.framing} | {one.payload} | {one.reference} | {one.status} |")
    lines += ["", "## From AgentX", "", "Appendix A of the draft, and where each concept is found here."]
    lines += ["", "| AgentX | MCP-AX | here |", "|---|---|---|"]
    lines += [f"| {row.agentx} | {row.mcpax} | {_here(row)} |" for row in AGENTX]
    return "\n".join(lines) + "\n"


def _method(method: Method) -> list[str]:
    lines = ["", f'### <a id="{_anchor(method.name)}"></a>`{method.name}`', "", "params:", "", *_schema(method.params)]
    if method.result is not None:
        lines += ["", "result:", "", *_schema(method.result)]
    return lines


def _schema(schema: dict[str, object]) -> list[str]:
    return ["```json", json.dumps(schema, indent=2), "```"]


def _link(method: str) -> str:
    return f"[`{method}`](#{_anchor(method)})"


def _anchor(name: str) -> str:
    return name.replace("/", "-")


def _here(row: Correspondence) -> str:
    found = [_link(method) for method in row.see]
    if row.field:
        found.append(f"[`{row.field}`](#{row.field})" if row.field.startswith("x-mcpax-") else f"`{row.field}`")
    return " ".join(found)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="tools/ax_reference.py", description="Write docs/ax-reference.md.")
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date; write nothing")
    check = parser.parse_args(arguments).check
    if wrong := check_classes(TRANSPORT_CLASSES):
        print(wrong, file=sys.stderr)
        return 2
    text = page()
    if check:
        if (root / PAGE).exists() and (root / PAGE).read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is out of date; run: python tools/ax_reference.py", file=sys.stderr)
        return 1
    (root / PAGE).parent.mkdir(exist_ok=True)
    (root / PAGE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

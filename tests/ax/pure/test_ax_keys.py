"""Is every name MCP-AX puts on the wire in the one list, and does the code write no other?"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.ax_reference import AGENTX, KEYS, METHODS, check_classes, page

from interlock.ax.protocol import messages
from interlock.ax.protocol.capability import TRANSPORT_CLASSES, TransportClass
from interlock.config.schema import sections

ROOT = Path(__file__).resolve().parents[3]
KEY = re.compile(r"x-mcpax-[a-z0-9]+(?:-[a-z0-9]+)*", re.IGNORECASE)
LISTED = {key.name for key in KEYS}
DRAFT = {"route", "cursor", "latency-ms", "subtree-ids", "hops", "safety", "event-id", "causal-parent"}
OURS = {"caller", "capability", "name", "declared", "gated", "confirmation", "origin", "device", "events"}


def unlisted(text: str) -> Iterator[str]:
    """Keys in the strings of a module that the list does not have, and keys that are put together from parts."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            yield from (key for key in KEY.findall(value) if key not in LISTED)
        elif isinstance(node, ast.JoinedStr):
            ends = [one.value for one in node.values if isinstance(one, ast.Constant)]
            yield from (end for end in ends if end.lower().endswith("x-mcpax-"))


@pytest.mark.req("AX-14-2")
def test_the_list_names_each_key_with_place_and_writer_and_the_code_writes_no_other() -> None:
    assert {f"x-mcpax-{name}" for name in DRAFT | OURS} == LISTED
    assert len(KEYS) == len(LISTED)
    assert {key.name for key in KEYS if key.source != "ours"} == {f"x-mcpax-{name}" for name in DRAFT}
    for key in KEYS:
        assert key.place
        assert key.writer
        assert key.meaning
    sources = {path.name: path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")}
    found = {name: list(unlisted(text)) for name, text in sources.items() if "mcpax" in text.lower()}
    assert {name: keys for name, keys in found.items() if keys} == {}


@pytest.mark.parametrize(
    "text",
    ['meta["x-mcpax-colour"] = 1', "m = {b'x-mcpax-colour': 1}", 'f"x-mcpax-{name}"', "s = 'see X-Mcpax-Name'"],
)
def test_an_unlisted_key_is_found(text: str) -> None:
    assert list(unlisted(text))


def test_a_listed_key_and_the_bare_prefix_are_no_breach() -> None:
    assert list(unlisted('meta["x-mcpax-hops"] = key.startswith("x-mcpax-")')) == []


@pytest.mark.req("AX-12-9")
def test_events_are_never_distinguished() -> None:
    """No structure can be keyed by an event id that no code reads (MCP-AX 12)."""
    reading = [
        path.name
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "notifications.py" and re.search("x-mcpax-(event-|causal)", path.read_text("utf-8"))
    ]
    assert reading == []
    notices = (ROOT / "src/interlock/ax/protocol/notifications.py").read_text("utf-8")
    assert notices.count("event-id") == 1  # where our own are written
    assert notices.count("causal-parent") == 0


@pytest.mark.req("AX-14-1")
def test_every_method_the_messages_know_is_listed_with_direction_and_schema() -> None:
    spoken = {
        value
        for value in vars(messages).values()
        if isinstance(value, str) and (value.startswith("mcpax/") or value.startswith("notifications/mcpax/"))
    }
    assert {method.name for method in METHODS} == spoken
    for method in METHODS:
        assert method.direction
        assert method.params["type"] == "object"
        assert (method.kind == "notification") is method.name.startswith("notifications/")
        assert (method.result is None) is (method.kind == "notification")


@pytest.mark.req("AX-14-1", "AX-14-3")
def test_the_page_is_written_from_the_list() -> None:
    text = page()
    assert (ROOT / "docs/ax-reference.md").read_text("utf-8") == text
    for name in (*LISTED, *(method.name for method in METHODS), *(one.id for one in TRANSPORT_CLASSES)):
        assert f"`{name}`" in text


@pytest.mark.req("AX-A-1")
def test_the_page_has_the_fourteen_rows_of_agentx_with_links_that_lead_somewhere() -> None:
    text = page()
    rows = text.split("## From AgentX")[1].strip().splitlines()[4:]
    expected = {
        "ax.Unregister PDU": "mcpax/deregister",
        "ax.Ping PDU": "mcpax/heartbeat",
        "ax.Response PDU": "JSON-RPC response",
        "ax.Notify PDU": "MCP notification (prefixed)",
        "Context": "Namespace segment",
        "sysUpTime": "registered_at timestamp",
        "ax.Get/GetNext/GetBulk": "tools/call (routed)",
        "AgentX socket (unix/tcp)": "HTTP+SSE / stdio / bridged",
    }
    table = {cells[1].strip(): cells[2].strip() for cells in (row.split("|") for row in rows)}
    assert len(rows) == len(table) == 14
    assert expected.items() <= table.items()
    for target in re.findall(r"\]\(#([^)]+)\)", text):
        assert f'<a id="{target}"></a>' in text
    known = {method.name: method for method in METHODS}
    for row in AGENTX:
        assert row.field or row.see
        members = {
            member
            for name in row.see
            for schema in (known[name].params, known[name].result or {})
            for member in schema.get("properties", {})
        }
        settings = {f"{name}.{key}" for name, section in sections().items() for key in section.keys}
        assert row.field in members | LISTED | settings | {"", "result", "registered_at"}


@pytest.mark.req("AX-14-3")
def test_there_is_one_registry_of_transport_classes() -> None:
    assert check_classes(TRANSPORT_CLASSES) is None


@pytest.mark.req("AX-14-3")
@pytest.mark.parametrize(("identifier", "status"), [("lora", "private"), ("x-lora", "draft")])
def test_private_classes_and_only_they_have_the_prefix(identifier: str, status: str) -> None:
    one = TransportClass(id=identifier, framing="f", payload="p", reference="r", status=status)  # type: ignore[arg-type]
    assert check_classes([*TRANSPORT_CLASSES, one]) is not None


@pytest.mark.req("AX-14-3")
def test_a_class_is_in_the_registry_once() -> None:
    assert check_classes([*TRANSPORT_CLASSES, TRANSPORT_CLASSES[0]]) is not None

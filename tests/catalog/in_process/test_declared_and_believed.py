"""Does a list say what a registrant declares, while the node believes what is safe (MCP-AX 9.2, 11.2)?"""

import msgspec
import pytest
from msgspec import Raw
from tests.catalog.in_process.test_link_items import AGGREGATOR, EVERYTHING, House, full, listing, tool

from interlock.ax.protocol.hop_metadata import Offer
from interlock.config.plan import GatePlan
from interlock.mcp.methods import Era


@pytest.mark.req("AX-9.2-1", "AX-11.3-17")
async def test_an_unproved_registrants_annotation_is_passed_on_as_declared_and_not_believed() -> None:
    house = House(require_proof="never", gate=GatePlan(mode="gated"))
    text = """{"idempotent":true, "reversible" : true,"mutable":true,"x-own":[1e2],"latency_class":"slow",
        "consistency":"strong","transport":"native","auth_scope":"write","cost_class":"free","availability":"always",
        "schema_version":"1.0.0"}"""
    hints = {"destructiveHint": False, "idempotentHint": True, "title": "T"}
    listed = listing(tool("t", annotations=hints))
    item = {**listed.tools.items[0][1], "_meta": Raw(b'{"x-mcpax-capability":%b}' % text.encode())}
    listed = msgspec.structs.replace(listed, tools=msgspec.structs.replace(listed.tools, items=(("t", item),)))
    await house.catalog.stock(house.link("l", Offer(kind="leaf", proved=False)), listed)
    page = house.catalog.namespace.view(EVERYTHING).page("tools/list", Era.MODERN, "")
    assert text.encode() in page.items
    shown = house.listed()["l.t"]
    assert hints.items() <= shown["annotations"].items()
    assert "x-mcpax-declared" not in shown["_meta"]
    assert shown["_meta"]["x-mcpax-gated"] is True
    route = house.routes()["l.t"]
    assert route.is_held and route.irreversible and route.gated


@pytest.mark.req("AX-11.2-1", "AX-9.2-1")
async def test_a_tool_that_an_aggregator_flags_changes_something_whatever_its_annotation_says() -> None:
    house = House(gate=GatePlan(mode="gated"))
    flagged = tool("a.t", full(mutable=False, reversible=True), meta={"x-mcpax-safety": "irreversible_mutable"})
    await house.catalog.stock(house.link("agg", AGGREGATOR), listing(flagged))
    route = house.routes()["agg.a.t"]
    assert route.is_held and route.irreversible and route.price.mutable and route.scope == "write"
    shown = house.listed()["agg.a.t"]["_meta"]
    assert shown["x-mcpax-capability"]["mutable"] is False
    assert shown["x-mcpax-safety"] == "irreversible_mutable"

"""What is said of tools whose server has no link yet, because a driver is being installed."""

from interlock.catalog.catalog import EVERYTHING, Namespace
from interlock.catalog.routes import ShownTools
from interlock.dispatch.absent_tools import AbsentServer, AbsentTools


def test_a_tool_of_a_driver_that_is_installed_is_known_by_its_contract_and_asks_for_patience() -> None:
    absent = AbsentTools({})
    servers = [AbsentServer(segment="fs", state="installing", detail="npm fetches /x", tools=frozenset({"read"}))]
    absent.add_source(lambda: servers)
    view = Namespace(0, (), "home", {}, ShownTools()).view(EVERYTHING)
    tool = absent.find(view, "home__fs__read")
    assert tool is not None
    refusal = tool.refusal
    assert refusal.message == "tool_degraded: its server is still being installed; try again in 5 s"
    assert refusal.details == {"reason": "installing", "outcome": "not_sent", "retry_after_ms": 5000}
    assert tool.detail == "fs is installing: npm fetches /x"
    assert absent.find(view, "home.fs.write") is None, "its contracts name all that it has"
    servers.clear()
    assert absent.find(view, "home.fs.read") is None

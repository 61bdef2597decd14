"""Two plans, and the keys in which they differ."""

from pathlib import Path

from interlock.config.difference import as_written, differences
from interlock.config.plan import AccessRule, Address, AxPlan, Dial, NodePlan, ParentPlan, Plan, ServerPlan

PLAN = Plan(workspace=Path("/w"), data=Path("/d"))


def server(segment: str, port: int = 1) -> ServerPlan:
    return ServerPlan(segment=segment, reach=Dial(url=f"http://127.0.0.1:{port}/mcp"))


def changed(**parts: object) -> Plan:
    return Plan(workspace=Path("/w"), data=Path("/d"), **parts)  # type: ignore[arg-type]


def test_equal_plans_do_not_differ() -> None:
    assert differences(changed(servers=(server("a"),)), changed(servers=(server("a"),))) == ()


def test_servers_are_named_one_by_one_and_their_order_is_no_difference_of_any() -> None:
    old = changed(servers=(server("a"), server("b"), server("c")))
    new = changed(servers=(server("d"), server("b", 2), server("a")))
    assert differences(old, new) == ("servers.b", "servers.c", "servers.d")
    assert differences(changed(servers=(server("a"), server("b"))), changed(servers=(server("b"), server("a")))) == ()


def test_keys_of_a_section_are_named_by_their_dotted_names() -> None:
    node = NodePlan(name="n", listen=Address("127.0.0.1", 1))
    ax = AxPlan(parents=(ParentPlan(url="ws://127.0.0.1:1/ax", segment="a"),))
    assert differences(PLAN, changed(node=node, ax=ax)) == ("node.name", "node.listen", "ax.parents")


def test_arrays_of_tables_are_shown_as_people_write_them() -> None:
    (key,) = differences(PLAN, changed(access=(AccessRule(who=("local",)),)))
    assert as_written(key) == "[[access]]"
    assert as_written("node.listen") == "node.listen"

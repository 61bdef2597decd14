"""Do people see what the registry of names says of a tool, and who offers a name?"""

import json

import pytest
from tests.cli.program import Inline
from tests.operator.fake_node import FakeOperations

SURFACE = {
    "name": "get_current_time",
    "verdict": "mismatch",
    "status": "Active",
    "digest": "sha256:aa",
    "registered": "sha256:bb",
    "revision": 2,
    "notes": ["unknown_revision"],
    "differences": ["`zone` is string in the specification and integer at the server"],
    "refused": True,
    "warning": "time.get_current_time is not what the registry says of get_current_time",
}


@pytest.fixture
def judged(node: FakeOperations) -> FakeOperations:
    for one in node.tool_list:
        if one["name"] == "time.get_current_time":
            one["surface"] = SURFACE
    return node


@pytest.mark.req("REG-8.1-2", "REG-2-1")
def test_a_verdict_is_shown_with_every_difference(inline: Inline, judged: FakeOperations) -> None:
    shown = inline("tools", "show", "time.get_current_time", COLUMNS="200").out
    assert "get_current_time: mismatch, Active, revision 2" in shown
    assert "`zone` is string in the specification and integer at the server" in shown


@pytest.mark.req("REG-7.1-2")
def test_servers_that_offer_a_name_are_found_by_their_lists(inline: Inline, judged: FakeOperations) -> None:
    told = inline("tools", "where", "get_current_time", COLUMNS="200")
    assert (told.code, "time.get_current_time" in told.out, "mismatch" in told.out) == (0, True, True)
    assert "by what servers list now" in told.err
    found = json.loads(inline("tools", "where", "get_current_time", "--json").out)["tools"]
    assert [one["surface"]["verdict"] for one in found] == ["mismatch"]
    nowhere = inline("tools", "where", "org_alter_handbook")
    assert (nowhere.code, "no server lists org_alter_handbook now" in nowhere.err) == (1, True)


@pytest.mark.req("REG-4.2-7", "REG-3-2", "REG-4.2-9")
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("get_time", "unregistered"),
        ("Org_Alter_Handbook", "unregistered"),
        ("get-time", "not_registrable"),
        ("2fa", "not_registrable"),
        ("list_2fa", "not_registrable"),
        ("a__b", "not_registrable"),
    ],
)
def test_an_unregistered_name_is_reported_as_registrable_or_not(
    inline: Inline, node: FakeOperations, name: str, verdict: str
) -> None:
    (one,) = [one for one in node.tool_list if one["name"] == "time.get_current_time"]
    one |= {"name": f"time.{name}", "original": name}
    told = inline("tools", "where", name, COLUMNS="200")
    assert (told.code, verdict in told.out.split()) == (0, True)

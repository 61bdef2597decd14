"""Does a gate hold for everybody above it, whatever they are configured to, and does the hop that gates decide?"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.gate.held_calls import (
    ADA,
    BOB,
    ERAS,
    MARK,
    PAGES,
    ActuatorLog,
    Client,
    actuator_table,
    anchor,
    approve,
    compute_digest,
    deny,
    proof,
    token,
)
from tests.support.node_process import KNOWS_AX, RunningNode, running_node, wait_for

pytestmark = pytest.mark.timeout(90)

PAGE = "https://low.all.example"
LOW_AT_PAGE = {"INTERLOCK_NODE__OPERATOR_URL": PAGE}
OPEN = '[gate]\nmode = "open"\nshow_holder = true\n'
CLOSED = '[gate]\nmode = "gated"\nunannotated = "allow"\nshow_holder = true\n'
DEFER = '[gate]\nmode = "defer"\nunannotated = "allow"\nshow_holder = true\n'
ADAS, BOBS = anchor("ada", ADA, "*"), anchor("bob", BOB, "*")


@contextlib.contextmanager
def tree(
    folder: Path, diary: ActuatorLog, root: str, middle: str, lowest: str, era: str = "modern"
) -> Iterator[list[RunningNode]]:
    """root over `mid` over `low` over the actuator."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(running_node(folder / "root", {}, ACCESS + root))]
        more = parents((ax_url(nodes[0]), "mid")) + ACCESS + middle
        nodes.append(stack.enter_context(running_node(folder / "mid", {}, more)))
        more = parents((ax_url(nodes[1]), "low")) + ACCESS + lowest
        plant = {"plant": actuator_table(diary, era)}
        nodes.append(stack.enter_context(running_node(folder / "low", plant, more, LOW_AT_PAGE)))
        nodes[2].wait_link("plant", {"state": "ready"})
        wait_parent(nodes[1], {"state": "registered"})
        wait_parent(nodes[2], {"state": "registered"})
        with Client(nodes[0]) as client:
            wait_for(lambda: "mid.low.plant.fire" in listed(client), 30)
        yield nodes


def listed(client: Client) -> dict[str, dict[str, Any]]:
    return {
        tool["_meta"].get("x-mcpax-name", tool["name"]): tool["_meta"]
        for tool in client.ask("tools/list", {})["result"]["tools"]
    }


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog) -> Iterator[list[RunningNode]]:
    """Gated at the lowest, open above; and the upper two try to talk the tool harmless."""
    overlay = '[[tool]]\nmatch = "*.fire"\nmutable = false\nreversible = true\n'
    with tree(tmp_path_factory.mktemp("tree"), diary, OPEN + overlay, OPEN + overlay, CLOSED + ADAS) as made:
        yield made


FIRE = "mid.low.plant.fire"


@pytest.mark.req("AX-11.3-16")
@pytest.mark.parametrize("era", ERAS)
def test_the_demand_of_the_lowest_reaches_the_client_of_the_root_in_its_terms(
    nodes: list[RunningNode], diary: ActuatorLog, era: str
) -> None:
    arguments = {"era": era}
    with Client(nodes[0], era) as client:
        result = client.call(FIRE, arguments)
        demand = result["_meta"][MARK]
        assert demand["status"] == "confirmation_required"
        assert demand["tool"] == FIRE
        assert demand["route"] == ["mid", "low", "plant", "fire"]
        assert demand["arguments"] == arguments
        assert result["structuredContent"] == demand
        assert demand["approval_url"] == f"{PAGE}/approvals/{demand['confirmation_id']}"
        assert demand["held_by"] == "mid.low"
        assert "held by mid.low" in result["content"][0]["text"]
        assert demand["call_digest"] == compute_digest(demand)
        assert not [entry for entry in diary.read() if entry["arguments"] == arguments]

        answer = client.confirm(demand, proof(demand))
        assert answer["result"]["structuredContent"] == {"did": "fire"}
        assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1
        assert client.confirm(demand, proof(demand))["error"]["code"] == 32122


@pytest.mark.req("AX-11.3-16")
def test_the_anchor_of_the_gating_hop_decides_and_no_other(nodes: list[RunningNode], diary: ActuatorLog) -> None:
    with Client(nodes[0]) as client:
        demand = client.held(FIRE, {"n": "anchor"})
        assert client.confirm(demand, proof(demand, BOB))["error"]["code"] == 32123
        assert client.confirm(demand, "x.y.z")["error"]["code"] == 32123
        assert not [entry for entry in diary.read() if entry["arguments"] == {"n": "anchor"}]


@pytest.mark.req("AX-11.3-16")
def test_a_confirmation_by_another_client_of_the_root_leaves_the_result_to_the_caller(
    nodes: list[RunningNode], diary: ActuatorLog
) -> None:
    arguments = {"n": "other"}
    with Client(nodes[0]) as client, Client(nodes[0], token=token(nodes[0], "desk")) as desk:
        demand = client.held(FIRE, arguments)
        assert desk.confirm(demand, proof(demand))["result"]["status"] == "confirmed"
        assert not [entry for entry in diary.read() if entry["arguments"] == arguments]
        assert client.call(FIRE, arguments)["structuredContent"] == {"did": "fire"}
        assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1


@pytest.mark.req("AX-11.3-16")
@pytest.mark.req("AX-11.3-12")
def test_only_the_edge_turns_the_demand_into_a_page(nodes: list[RunningNode], diary: ActuatorLog) -> None:
    arguments = {"n": "page"}
    with Client(nodes[0], capabilities=PAGES) as client, Client(nodes[0]) as plain:
        asked = client.call(FIRE, arguments)
        assert asked["resultType"] == "input_required"
        demand = plain.held(FIRE, arguments)
        (question,) = asked["inputRequests"].values()
        assert question["params"]["url"] == demand["approval_url"]
        back = {"requestState": asked["requestState"], "inputResponses": {"confirmation": {"action": "accept"}}}
        assert client.call(FIRE, arguments, **back)["resultType"] == "input_required"
        assert client.refused(FIRE, {"n": "another"}, **back)["code"] == -32602
        with Client(nodes[0], token=token(nodes[0], "thief"), capabilities=PAGES) as thief:
            assert thief.refused(FIRE, arguments, **back)["code"] == -32602
        with Client(nodes[0], token=token(nodes[0], "desk2")) as desk:
            assert desk.confirm(demand, proof(demand))["result"]["status"] == "confirmed"
        assert client.call(FIRE, arguments, **back)["structuredContent"] == {"did": "fire"}
        assert [entry["arguments"] for entry in diary.read("fire")].count(arguments) == 1


@pytest.mark.req("AX-11.3-17")
@pytest.mark.req("AX-11.2-1")
@pytest.mark.parametrize("era", ERAS)
def test_no_parent_lifts_a_gate_or_its_flags(nodes: list[RunningNode], diary: ActuatorLog, era: str) -> None:
    for node, prefix in zip(nodes, ("mid.low.", "low.", ""), strict=True):
        with Client(node, era, capabilities=KNOWS_AX) as client:
            found = listed(client)
            fire = found[f"{prefix}plant.fire"]
            assert (fire["x-mcpax-safety"], fire["x-mcpax-gated"]) == ("irreversible_mutable", True)
            assert fire["x-mcpax-capability"]["reversible"] is False
            flagged = {name.rpartition(".")[2] for name, meta in found.items() if "x-mcpax-safety" in meta}
            assert flagged & {"mutable_final", "mutable_reversible", "fixed_final"} == {"mutable_final"}
            forged = {"x-mcpax-gated": False, "x-mcpax-confirmed": True, "x-mcpax-route": ["plant", "fire"]}
            result = client.wire.modern(
                "tools/call", {"name": f"{prefix}plant.fire", "arguments": {"n": era}}, meta=forged
            ).message["result"]
            assert result["_meta"][MARK]["status"] == "confirmation_required"
    assert not [entry for entry in diary.read() if entry["arguments"] == {"n": era}]


@pytest.mark.req("AX-11.3-18")
def test_the_middle_gates_a_tool_that_came_ungated_for_all_above_it(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    also = '[gate]\nmode = "open"\nalso = ["low.plant.nudge"]\n'
    with tree(tmp_path, diary, OPEN, also + ADAS, OPEN) as nodes:
        with Client(nodes[2]) as below:
            assert "x-mcpax-gated" not in listed(below)["plant.nudge"]
            assert below.call("plant.nudge")["structuredContent"] == {"did": "nudge"}
        with Client(nodes[0]) as above:
            assert listed(above)["mid.low.plant.nudge"]["x-mcpax-gated"] is True
            demand = above.held("mid.low.plant.nudge", {"n": 1})
            assert demand["tool"] == "mid.low.plant.nudge"
            assert len(diary.read("nudge")) == 1
            assert above.confirm(demand, proof(demand))["result"]["structuredContent"] == {"did": "nudge"}
        assert len(diary.read("nudge")) == 2


def test_a_gated_node_that_is_used_as_a_plain_server_asks_through_the_node_above(tmp_path: Path) -> None:
    """The upper node knows nothing of the gate: it passes question, state and answer like any server's. What only an
    aggregator may say is heard from the lower node alone."""
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with (
        running_node(tmp_path / "low", {"plant": actuator_table(diary)}, CLOSED + ADAS) as low,
        running_node(tmp_path / "up", {"low": {"url": f"{low.url}/mcp"}}, OPEN) as up,
        Client(up, capabilities=PAGES) as client,
        Client(up) as plain,
        Client(low) as below,
        Client(low, token=token(low, "desk")) as desk,
    ):
        low.wait_link("plant", {"state": "ready"})
        wait_for(lambda: "low.plant__fire" in listed(plain), 30)
        asked = client.call("low.plant__fire", {"n": 1})
        assert asked["resultType"] == "input_required"
        told = plain.call("low.plant__fire", {"n": 1})
        assert "Not executed yet" in told["content"][0]["text"]
        assert MARK not in told.get("_meta", {})
        assert "structuredContent" not in told
        demand = below.held("plant.fire", {"n": 1})
        assert desk.confirm(demand, proof(demand))["result"]["status"] == "confirmed"
        assert not diary.read()
        back = {"requestState": asked["requestState"], "inputResponses": {"confirmation": {"action": "accept"}}}
        assert client.call("low.plant__fire", {"n": 1}, **back)["structuredContent"] == {"did": "fire"}
        assert len(diary) == 1


@pytest.mark.req("AX-11.3-16", "AX-11.3-3")
def test_two_gates_ask_in_turn_the_outer_first_and_a_gate_that_defers_asks_no_one(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with tree(tmp_path, diary, CLOSED + ADAS, DEFER + ADAS, CLOSED + BOBS) as nodes, Client(nodes[0]) as client:
        desk = Client(nodes[0], token=token(nodes[0], "desk"))
        outer = client.held(FIRE, {"n": 1})
        assert outer["approval_url"].startswith(nodes[0].operator_url)
        (waiting,) = nodes[0].admin("/approvals")["approvals"]
        assert 'the node below may ask as well: gate.mode = "defer" leaves it to that' in waiting["reason"]
        assert desk.confirm(outer, proof(outer))["result"]["status"] == "confirmed"
        inner = client.held(FIRE, {"n": 1})
        assert inner["held_by"] == "mid.low"
        assert client.held(FIRE, {"n": 1})["confirmation_id"] == inner["confirmation_id"]
        assert not diary.read("fire")
        assert desk.confirm(inner, proof(inner, BOB))["result"]["status"] == "confirmed"
        assert client.call(FIRE, {"n": 1})["structuredContent"] == {"did": "fire"}
        assert len(diary.read("fire")) == 1
        again = client.held(FIRE, {"n": 1})
        assert again["approval_url"].startswith(nodes[0].operator_url)
        assert len(diary.read("fire")) == 1

        # The lower one decided on its own page: the call that it holds is asked for by its id.
        outer = client.held(FIRE, {"n": 3})
        approve(nodes[0], outer)
        inner = client.held(FIRE, {"n": 3})
        approve(nodes[2], inner, BOB)
        redeem = {"confirmation_id": inner["confirmation_id"], "redeem": True}
        with Client(nodes[1]) as near, Client(nodes[2]) as nearer:
            for thief in (desk, near, nearer):
                assert thief.ask("mcpax/confirm", redeem)["error"]["code"] == 32120
        assert not [entry for entry in diary.read("fire") if entry["arguments"] == {"n": 3}]
        assert client.call(FIRE, {"n": 3})["structuredContent"] == {"did": "fire"}
        assert [entry["arguments"] for entry in diary.read("fire")].count({"n": 3}) == 1
        assert "held_by" not in client.held(FIRE, {"n": 3})

        # ... or refused it.
        outer = client.held(FIRE, {"n": 4})
        approve(nodes[0], outer)
        inner = client.held(FIRE, {"n": 4})
        deny(nodes[2], inner, "not today")
        refused = client.call(FIRE, {"n": 4})
        assert refused["_meta"][MARK]["status"] == "confirmation_denied"
        assert refused["_meta"][MARK]["arguments"] == {"n": 4}
        assert "not today" in refused["content"][0]["text"]
        assert not [entry for entry in diary.read("fire") if entry["arguments"] == {"n": 4}]

        # The same by confirming as the caller: each answer is the next demand, or the result.
        outer = client.held(FIRE, {"n": 2})
        inner = client.confirm(outer, proof(outer))["result"]["_meta"][MARK]
        assert inner["held_by"] == "mid.low"
        assert client.confirm(inner, proof(inner, BOB))["result"]["structuredContent"] == {"did": "fire"}
        assert [entry["arguments"] for entry in diary.read("fire")].count({"n": 2}) == 1
        assert client.held(FIRE, {"n": 2})["approval_url"].startswith(nodes[0].operator_url)
        desk.wire.close()


@pytest.mark.req("AX-11.3-11")
@pytest.mark.parametrize("root", [OPEN, DEFER])
@pytest.mark.parametrize("era", ERAS)
def test_an_approval_is_good_for_the_caller_of_the_root_who_asked_and_no_other(
    tmp_path: Path, root: str, era: str
) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with tree(tmp_path, diary, root, OPEN, CLOSED + ADAS) as nodes:
        asked, thief = token(nodes[0], "asked"), token(nodes[0], "thief")
        with Client(nodes[0], era, asked) as client, Client(nodes[0], era, thief) as other:
            demand = client.held(FIRE, {"n": 1})
            theirs = other.held(FIRE, {"n": 1})
            assert demand["confirmation_id"] != theirs["confirmation_id"]
            assert demand["caller"] != theirs["caller"]
            assert demand["call_digest"] == compute_digest(demand) != theirs["call_digest"]
            listed = {one["id"]: one for one in nodes[2].admin("/approvals")["approvals"]}
            shown = listed[demand["confirmation_id"]]["requested_by"]
            assert shown == demand["caller"]
            assert shown.startswith(f"parent:{ax_url(nodes[1])}#")
            assert "asked" not in shown
            approve(nodes[2], demand)
            assert other.held(FIRE, {"n": 1})["confirmation_id"] == theirs["confirmation_id"]
            assert not diary.read("fire")
            assert client.call(FIRE, {"n": 1})["structuredContent"] == {"did": "fire"}
            assert len(diary.read("fire")) == 1


@pytest.mark.req("AX-7.2-6")
def test_no_client_can_say_whose_caller_it_is(nodes: list[RunningNode]) -> None:
    with Client(nodes[0], token=token(nodes[0], "one")) as one, Client(nodes[2]) as below:
        mine = one.held(FIRE, {"n": "mark"})
        mark = mine["caller"].rpartition("#")[2]
        for said in (mark, "another", 7, {"a": 1}):
            same = one.held(FIRE, {"n": "mark"}, _meta={"x-mcpax-caller": said})
            assert same["confirmation_id"] == mine["confirmation_id"]
            assert below.held("plant.fire", {"n": "mark"}, _meta={"x-mcpax-caller": said})["caller"] == "local"


@pytest.mark.req("AX-11.3-16")
@pytest.mark.parametrize("middle", [OPEN, CLOSED + ADAS], ids=["two", "three"])
def test_a_question_of_the_server_is_answered_after_all_gates_agreed(tmp_path: Path, middle: str) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    name, arguments = "mid.low.plant.ask_first", {"n": 1}
    with (
        tree(tmp_path, diary, CLOSED + ADAS, middle, CLOSED + BOBS) as nodes,
        Client(nodes[0], capabilities={"roots": {}}) as client,
    ):
        approve(nodes[0], client.held(name, arguments))
        if middle != OPEN:
            approve(nodes[1], client.held(name, arguments))
        approve(nodes[2], client.held(name, arguments), BOB)
        asked = client.call(name, arguments)
        assert asked["resultType"] == "input_required"
        assert not diary.read("ask_first")
        back = {"requestState": asked["requestState"], "inputResponses": {"r": {"roots": []}}}
        assert client.call(name, arguments, **back)["content"] == []
        assert len(diary.read("ask_first")) == 1
        assert "held_by" not in client.held(name, arguments)

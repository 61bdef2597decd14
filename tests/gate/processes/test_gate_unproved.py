"""What does a client of an open root learn when a child that has not proved its authority holds a call?"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.gate.held_calls import ADA, ERAS, MARK, ActuatorLog, Client, actuator_table, anchor, approve
from tests.support.node_process import RunningNode, running_node, wait_for

pytestmark = pytest.mark.timeout(90)

UNPROVED = '[ax]\nrequire_proof = "never"\n[[access]]\nwho = ["local"]\nscope = "admin"\n'
OPEN = '[gate]\nmode = "open"\n'
CLOSED = '[gate]\nmode = "gated"\nunannotated = "allow"\n'


@contextlib.contextmanager
def tree(folder: Path, diary: ActuatorLog, *, has_middle: bool) -> Iterator[list[RunningNode]]:
    """An open root over a gated node whose authority is not proved, with a proved and open node between them or not."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(running_node(folder / "root", {}, OPEN + (ACCESS if has_middle else UNPROVED)))]
        if has_middle:
            more = parents((ax_url(nodes[0]), "mid")) + OPEN + UNPROVED
            nodes.append(stack.enter_context(running_node(folder / "mid", {}, more)))
            wait_parent(nodes[1], {"state": "registered"})
        more = parents((ax_url(nodes[-1]), "low"), authority=None) + CLOSED + anchor("ada", ADA, "*")
        nodes.append(
            stack.enter_context(running_node(folder / "low", {"plant": actuator_table(diary, "modern")}, more))
        )
        nodes[-1].wait_link("plant", {"state": "ready"})
        wait_parent(nodes[-1], {"state": "registered"})
        yield nodes


@pytest.mark.req("AX-11.3-19")
@pytest.mark.parametrize("has_middle", [False, True], ids=["child", "grandchild"])
def test_the_gate_of_an_unproved_child_reaches_the_roots_client_as_its_word(tmp_path: Path, has_middle: bool) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with tree(tmp_path, diary, has_middle=has_middle) as nodes:
        way = ["mid", "low", "plant", "fire"] if has_middle else ["low", "plant", "fire"]
        name = ".".join(way)
        for era in ERAS:
            arguments = {"b": 1, "a": era}
            with Client(nodes[0], era) as client:
                wait_for(lambda: name in str(client.ask("tools/list", {})), 30)
                listed = client.ask("tools/list", {})["result"]["tools"]
                assert any(tool["_meta"].get("x-mcpax-safety") == "irreversible_mutable" for tool in listed)
                result = client.call(name, arguments)
                demand = result["_meta"][MARK]
                assert result["isError"] is True
                assert demand["status"] == "confirmation_required"
                assert demand["tool"] == name
                assert demand["route"] == way
                assert demand["arguments"] == arguments
                canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":")).encode()
                assert demand["arguments_digest"] == hashlib.sha256(canonical).hexdigest()
                assert demand["capability"]["mutable"] is True
                assert demand["word_of"] == ".".join(way[:-2])
                assert "has not proved its authority" in result["content"][0]["text"]
                # Nothing that a program could sign, and no page that a person could open.
                assert not {"confirmation_id", "call_digest", "nonce", "approval_url"} & demand.keys()
                assert not [entry for entry in diary.read("fire") if entry["arguments"] == arguments]
                (waiting,) = nodes[-1].admin("/approvals?status=pending&kind=call")["approvals"]
                shown = nodes[-1].admin(f"/approvals/{waiting['id']}")
                keys = {"confirmation_id": shown["id"], "aggregator_id": shown["aggregator_id"]}
                approve(nodes[-1], {**keys, "call_digest": shown["digest"]})
                assert client.call(name, arguments)["structuredContent"] == {"did": "fire"}

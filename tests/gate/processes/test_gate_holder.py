"""What does a client of the root learn of the node below that holds its call?"""

from pathlib import Path

import pytest
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.gate.held_calls import ADA, ERAS, MARK, PAGES, ActuatorLog, Client, actuator_table, anchor, approve
from tests.support.node_process import running_node, wait_for

PAGE = {"INTERLOCK_NODE__OPERATOR_URL": "https://low.all.example"}
CLOSED = '[gate]\nmode = "gated"\nunannotated = "allow"\n'


@pytest.mark.req("AX-3.2-4", "AX-11.3-16")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("shown", [False, True])
def test_clients_learn_its_place_in_the_namespace_and_no_more_unless_configured(
    tmp_path: Path, era: str, shown: bool
) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    root = f'{ACCESS}[gate]\nmode = "open"\nshow_holder = {str(shown).lower()}\n'
    with running_node(tmp_path / "root", {}, root) as above:
        more = parents((ax_url(above), "low")) + ACCESS + CLOSED + anchor("ada", ADA, "*")
        with running_node(tmp_path / "low", {"plant": actuator_table(diary, era)}, more, PAGE) as low:
            wait_parent(low, {"state": "registered"})
            inside = (low.status_at_start["node"]["aggregator_id"], "https://low.all.example", ax_url(above))
            with Client(above, era) as client, Client(above, era, capabilities=PAGES) as able:
                wait_for(lambda: "low.plant.fire" in str(client.ask("tools/list", {})), 30)
                result = client.call("low.plant.fire", {"n": 1})
                demand = result["_meta"][MARK]
                assert (demand["held_by"], demand["tool"]) == ("low", "low.plant.fire")
                assert [word in str(result) for word in inside] == [shown] * 3
                assert ("https://low.all.example" in str(able.call("low.plant.fire", {"n": 1}))) is shown
                approve(low, demand | {"aggregator_id": inside[0]})  # who decides there knows the node
                assert client.call("low.plant.fire", {"n": 1})["structuredContent"] == {"did": "fire"}
        assert len(diary.read("fire")) == 1

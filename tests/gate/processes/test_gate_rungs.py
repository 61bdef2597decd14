"""Does an operator see, rung by rung, what a call of somebody would meet, before anybody makes it?"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.gate.held_calls import ANCHORED, ActuatorLog, Client, approve, gated_node, token
from tests.support.node_process import RunningNode

ACCESS = (
    '[[access]]\nwho = ["client:reader"]\nscope = "read"\n[[access]]\nwho = ["client:few"]\ntools = ["plant.look"]\n'
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("rungs")
    with gated_node(folder / "node", ActuatorLog(folder / "diary.jsonl"), ANCHORED + ACCESS) as running:
        yield running


def verdicts(node: RunningNode, tool: str, who: str = "local") -> dict[int, tuple[str, str]]:
    found: dict[str, Any] = node.admin(f"/admin/tools/{tool}?as={who}")
    return {one["rung"]: (one["verdict"], one["reason"]) for one in found["rungs"]}


def test_the_checks_show_which_calls_pass_and_which_are_held(node: RunningNode) -> None:
    plain, held, silent = (verdicts(node, f"plant.{name}") for name in ("look", "fire", "silent"))
    assert {rung: verdict for rung, (verdict, _) in plain.items()} == {
        4: "pass",
        6: "pass",
        7: "pass",
        8: "pass",
        9: "pass",
        10: "pass",
        11: "pass",
        12: "later",
    }
    assert held[10] == ("hold", "the server says: irreversible; proof by ada")
    assert (held[7][0], held[11][0]) == ("later", "later")
    assert silent[10] == ("hold", "no operator has said yet what it does: the first call asks")


def test_the_verdicts_of_the_checks_depend_on_the_caller(node: RunningNode) -> None:
    assert verdicts(node, "plant.fire", "client:reader")[4][0] == "refuse"
    assert "needs scope write" in verdicts(node, "plant.fire", "client:reader")[4][1]
    assert verdicts(node, "plant.look", "client:reader")[4][0] == "pass"
    assert verdicts(node, "plant.fire", "client:few")[4] == (
        "refuse",
        "tool_not_found: [[access]] of client:few does not name it",
    )


def test_a_waiting_call_is_named_to_its_caller_only(node: RunningNode) -> None:
    with Client(node, token=token(node, "agent")) as client:
        demand = client.held("plant.fire")
    assert demand["confirmation_id"] not in verdicts(node, "plant.fire")[10][1]
    assert verdicts(node, "plant.fire", "client:agent")[10][1].endswith(f"{demand['confirmation_id']} pending")
    approve(node, demand)
    assert verdicts(node, "plant.fire", "client:agent")[10][1].endswith(f"{demand['confirmation_id']} approved")


def test_the_command_prints_them(node: RunningNode) -> None:
    shown = node.cli("tools", "show", "plant.fire", "--as", "client:reader").stdout
    assert "checks before a call by client:reader runs" in shown
    assert "refuse" in shown
    assert "proof by ada" in shown

"""Tasks at servers that know people: a task lives on its user's link, so none is made, and that is said by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw, serving
from tests.support.authority import authority
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.oauth_consent import give_consent, visit
from tests.support.task_servers import DECLARED, EXTENSION

ERAS = ("legacy", "modern")


class Office:
    """A node in front of a server of each era that makes tasks and knows people, and a user who has agreed to both."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node
        self.ada = str(node.admin("/admin/tokens", "POST", {"name": "ada", "for": "client"})["token"])
        for segment in ERAS:
            give_consent(node, segment, "the operator")
            refused = self.modern(f"{segment}__book")["error"]
            assert visit(refused["data"]["url"], "ada").status == 200

    def modern(self, tool: str, capabilities: Any = None, **arguments: Any) -> Any:
        with Wire(self.node, token=self.ada) as wire:
            params = {"name": tool, "arguments": arguments}
            return wire.modern("tools/call", params, capabilities=capabilities).message

    def legacy(self, tool: str, **params: Any) -> Any:
        with Wire(self.node, token=self.ada) as wire:
            wire.initialize()
            return wire.legacy("tools/call", {"name": tool, "arguments": {}, **params}).message

    def book(self, segment: str) -> Any:
        return self.modern(f"{segment}__book")["result"]["structuredContent"]


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    folder: Path = tmp_path_factory.mktemp("office")
    with (
        authority() as corp,
        serving(raw("tasks", "--era", "legacy", "--guard", corp.url)) as old,
        serving(raw("tasks", "--era", "modern", "--guard", corp.url)) as new,
    ):
        servers = {name: {"url": url, "auth": {"per": "user"}} for name, url in zip(ERAS, (old, new), strict=True)}
        with running_node(folder, servers, '[auth]\nanonymous = "never"\n') as node:
            yield Office(node)


def test_a_call_that_asks_for_a_task_is_refused_by_name_before_it_reaches_the_server(office: Office) -> None:
    error = office.legacy("legacy__job", task={})["error"]
    assert (error["code"], error["data"]["reason"]) == (-32601, "task_per_user")
    assert office.book("legacy")["tasks"] == {}
    assert "result" in office.legacy("legacy__job")  # without a task it is a call like any other


def test_a_client_that_takes_tasks_gets_the_plain_result(office: Office) -> None:
    result = office.modern("modern__job", DECLARED)["result"]
    assert result["resultType"] == "complete"
    said = result["structuredContent"]["plain"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert said == {**DECLARED, "extensions": {}}
    assert office.book("modern")["tasks"] == {}


def test_a_tool_that_runs_only_as_a_task_is_refused_by_name(office: Office) -> None:
    error = office.modern("modern__must", DECLARED)["error"]
    assert (error["code"], error["data"]["reason"]) == (-32601, "task_per_user")


def test_a_task_that_no_client_requested_is_cancelled_at_its_server_and_its_id_is_not_shown(office: Office) -> None:
    error = office.modern("modern__job", DECLARED, id="unbidden", unasked=True)["error"]
    assert (error["code"], error["data"]) == (-32603, {"reason": "malformed_answer"})
    assert "unbidden" not in str(error)
    wait_for(lambda: office.book("modern")["tasks"]["unbidden"]["status"] == "cancelled")


def test_a_server_that_distinguishes_people_does_not_count_as_a_server_with_tasks(office: Office) -> None:
    with Wire(office.node, token=office.ada) as wire:
        discovered = wire.modern("server/discover").message["result"]["capabilities"]
        assert EXTENSION not in discovered["extensions"]
        assert "tasks" not in wire.initialize().message["result"]["capabilities"]
        listed = wire.legacy("tools/list").message["result"]["tools"]
        (job,) = [tool for tool in listed if tool["name"] == "legacy__job"]
        assert "taskSupport" not in job["execution"]
        asked = wire.legacy("tasks/list").message["error"]
        assert asked["code"] == -32601

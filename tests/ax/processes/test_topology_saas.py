"""The topology C.1 of the draft: one root over three servers of either era that nobody changed, by configuration."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.start import raw, serving
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

from mcp import Client

pytestmark = [
    pytest.mark.req("AX-C.1-1"),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
ERAS = {"google_drive": "legacy", "jira": "modern", "salesforce": "legacy"}
SECRETS = {service: f"the-secret-of-{service}" for service in ERAS}
MODES = ["legacy", "2026-07-28"]


def command(service: str, *options: str) -> list[str]:
    return raw("echo,recorder", "--era", ERAS[service], "--name", service, *options)


class Saas:
    def __init__(self, node: RunningNode, jira: contextlib.ExitStack, jira_port: int) -> None:
        self.node, self.jira, self.jira_port = node, jira, jira_port

    def seen(self, service: str) -> Any:
        with Wire(self.node) as wire:
            answer = wire.modern("tools/call", {"name": f"{service}.seen", "arguments": {}}).message
        return answer["result"]["structuredContent"]


def dialled(service: str, url: str) -> dict[str, Any]:
    return {"url": url, "headers": {"Authorization": f"Bearer {SECRETS[service]}"}}


@pytest.fixture(scope="module")
def saas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saas]:
    with contextlib.ExitStack() as stack:
        urls = {}
        jira = stack.enter_context(contextlib.ExitStack())
        for service, where in (("google_drive", stack), ("jira", jira)):
            urls[service] = where.enter_context(serving(command(service, "--token", SECRETS[service])))
        tables = {service: dialled(service, url) for service, url in urls.items()}
        tables["salesforce"] = {"command": command("salesforce"), "env": {"TOKEN": SECRETS["salesforce"]}}
        node = stack.enter_context(running_node(tmp_path_factory.mktemp("saas"), tables))
        for service in ERAS:
            node.wait_link(service, {"state": "ready"})
        yield Saas(node, jira, int(urls["jira"].rpartition(":")[2].partition("/")[0]))


@pytest.mark.parametrize("mode", MODES)
async def test_the_names_are_those_drawn_and_clashing_local_names_stay_apart(saas: Saas, mode: str) -> None:
    async with Client(f"{saas.node.url}/mcp", mode=mode) as client:
        tools = {one.meta["x-mcpax-name"]: one for one in (await client.list_tools()).tools}
        local = {"echo", "exact", "fail", "refuse", "seen"}
        assert set(tools) == {f"{service}.{name}" for service in ERAS for name in local}
        for service in ERAS:
            spelled = tools[f"{service}.echo"].name
            assert spelled == f"{service}__echo"
            answer = await client.call_tool(spelled, {"to": service, "from": mode})
            assert answer.structured_content == {"to": service, "from": mode}
    for service in ERAS:
        calls = [json.loads(one["text"]) for one in saas.seen(service)["messages"] if one["method"] == "tools/call"]
        mine = [one["params"]["arguments"] for one in calls if one["params"]["name"] == "echo"]
        assert {"to": service, "from": mode} in mine
        assert {one["to"] for one in mine} == {service}


def test_no_credential_of_one_server_reaches_another_server(saas: Saas) -> None:
    for service in ERAS:
        text = json.dumps(saas.seen(service))
        known = {one for one in ERAS if SECRETS[one] in text}
        assert known == {service}


async def test_a_killed_server_leaves_the_others_working_and_comes_back(saas: Saas) -> None:
    async with Client(f"{saas.node.url}/mcp", mode="2026-07-28") as client:
        await client.call_tool("jira__echo", {"to": "jira"})
        saas.jira.close()
        with pytest.raises(Exception, match="tool_degraded"):
            await client.call_tool("jira__echo", {"to": "jira"})
        for service in ("google_drive", "salesforce"):
            answer = await client.call_tool(f"{service}__echo", {"to": service})
            assert answer.structured_content == {"to": service}
        listed = {one.name for one in (await client.list_tools()).tools}
        assert {f"{service}__echo" for service in ERAS} <= listed  # a lost server's names stay, as degraded
    with serving(command("jira", "--token", SECRETS["jira"]), saas.jira_port), Wire(saas.node) as wire:
        call = {"name": "jira__echo", "arguments": {"to": "jira"}}
        wait_for(lambda: "result" in wire.modern("tools/call", call).message, 20)

"""Does a client that somebody else wrote, the one of the `mcp` SDK, meet servers of the other era without noticing?"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from tests.support.fleet import LEGACY_LINKS, MODERN_LINKS, era, stdio_front, tool, uri
from tests.support.two_era_node import ELICIT, ROOTS, SAMPLE, Tree, asks, interview, label, question, start_tree

from mcp import Client, MCPError, StdioServerParameters, types

# The SDK warns of everything the next revision will remove; these tests are about that as well.
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

FRONTS = ["http legacy", "sse legacy", "stdio legacy", "http 2026-07-28", "http auto", "stdio auto"]
OTHERS = {"legacy": MODERN_LINKS, "2026-07-28": LEGACY_LINKS, "auto": LEGACY_LINKS}
# What the conformance fixture, itself on the SDK, asks for and what it makes of the answers below.
ASKED = {
    "test_input_required_result_elicitation": "Hello, Which",
    "test_input_required_result_sampling": "because",
    "test_input_required_result_list_roots": "file:///srv/shop",
    "test_input_required_result_request_state": "state-ok",
    "test_input_required_result_multiple_inputs": "All three arrived.",
    "test_input_required_result_multi_round": "Both steps are done.",
}


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return start_tree(request, tmp_path_factory)


class Person:
    """Answers everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(ELICIT)
        values = {"string": "Which", "boolean": True, "integer": 7}
        content = {name: values[one["type"]] for name, one in params.requested_schema["properties"].items()}
        return types.ElicitResult(action="accept", content=content)

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append(SAMPLE)
        said = types.TextContent(type="text", text="because")
        return types.CreateMessageResult(role="assistant", content=said, model="m")

    async def roots(self, context: Any) -> types.ListRootsResult:
        self.asked.append(ROOTS)
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv/shop", name="shop")])

    @property
    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.roots,
        }


@contextlib.asynccontextmanager
async def client(tree: Tree, front: str, **options: Any) -> AsyncIterator[Client]:
    pipe, mode = front.split()
    where: Any = f"{tree.node.url}/mcp"
    if pipe == "sse":
        where = sse_client(f"{tree.node.url}/sse")
    elif pipe == "stdio":
        command = stdio_front(tree.node.config, tree.node.data)
        where = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))
    async with Client(where, mode=mode, **options) as opened:
        yield opened


@pytest.mark.parametrize("front", FRONTS)
async def test_the_sdk_client_answers_every_question_of_servers_of_the_other_era(tree: Tree, front: str) -> None:
    person = Person()
    rounds = [asks(question(ELICIT), question(SAMPLE)), asks(question(ROOTS))]
    async with client(tree, front, **person.callbacks) as opened:
        for link in OTHERS[front.split()[1]]:
            person.asked.clear()
            given = interview(*rounds)
            told = (await opened.call_tool(tool(link, "interview"), given)).structured_content
            first, second = told["answers"]
            assert first["q1"] == {"action": "accept", "content": {"colour": "Which"}}
            assert first["q2"]["content"]["text"] == "because"
            assert second["q1"]["roots"] == [{"uri": "file:///srv/shop", "name": "shop"}]
            # The roots of a server that is shared are the operator's; one of 2026-07-28 hears those of each request.
            assert sorted(person.asked) == sorted([ELICIT, SAMPLE] + [ROOTS] * (era(link) == "modern"))
            counts = (await opened.call_tool(tool(link, "tally"), {})).structured_content
            assert counts["begun"][given["label"]] == (1 if era(link) == "legacy" else 3)


@pytest.mark.parametrize("front", ["http legacy", "stdio legacy", "http 2026-07-28", "stdio auto"])
async def test_with_the_sdk_on_both_sides_every_question_is_answered(tree: Tree, front: str) -> None:
    link = "sdk_new" if front.endswith("legacy") else "sdk_old"
    person = Person()
    async with client(tree, front, **person.callbacks) as opened:
        for name, wanted in ASKED.items():
            result = await opened.call_tool(tool(link, name), {})
            assert wanted in result.content[0].text, name
        result = await opened.get_prompt(tool(link, "test_input_required_result_prompt"))
        assert result.messages[0].content.text == "The context is Which."
        assert len(person.asked) == (10 if link == "sdk_new" else 8)  # roots of an older server are the operator's


@pytest.mark.parametrize("front", ["http legacy", "http auto"])
async def test_without_callbacks_it_is_not_asked_and_the_call_says_why(tree: Tree, front: str) -> None:
    async with client(tree, front) as opened:
        for link in OTHERS[front.split()[1]]:
            for method in (ELICIT, SAMPLE):
                given = interview(asks(question(method)))
                if front == "http legacy":
                    with pytest.raises(MCPError, match=method):
                        await opened.call_tool(tool(link, "interview"), given)
                else:
                    told = (await opened.call_tool(tool(link, "interview"), given)).structured_content
                    assert method in told["answers"][0]["q1"]["message"]


@pytest.mark.parametrize("front", FRONTS)
async def test_the_sdk_client_receives_progress_and_logs_of_servers_of_the_other_era(tree: Tree, front: str) -> None:
    steps: list[float] = []
    logged: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params.data)

    mode = front.split()[1]
    level: dict[str, Any] = {} if mode == "legacy" else {"log_level": "info"}
    async with client(tree, front, logging_callback=on_log, **level) as opened:
        if mode == "legacy":
            await opened.set_logging_level("info")
        for link in OTHERS[mode]:
            steps.clear()
            await opened.call_tool(tool(link, "progress"), {"steps": 3}, progress_callback=on_progress)
            assert steps == [1, 2, 3]
            for _ in range(2):  # over HTTP the server may hear of the level and of the first call in either order
                await opened.call_tool(tool(link, "log"), {"level": "error", "data": link})
            await opened.call_tool(tool(link, "log"), {"level": "debug", "data": "too low"})
        async with asyncio.timeout(5):
            while set(logged) < set(OTHERS[mode]):
                await opened.call_tool(tool(OTHERS[mode][0], "echo"), {})
        assert set(logged) == set(OTHERS[mode])


@pytest.mark.parametrize("front", ["http 2026-07-28", "stdio auto"])
@pytest.mark.parametrize("link", LEGACY_LINKS)
async def test_the_sdk_client_listens_to_a_legacy_server(tree: Tree, front: str, link: str) -> None:
    text, name = uri(link, "raw://text"), label()
    async with (
        client(tree, front) as opened,
        opened.listen(tools_list_changed=True, resource_subscriptions=[text]) as events,
        asyncio.timeout(10),
    ):
        await opened.call_tool(tool(link, "touch"), {"uri": "raw://text"})
        assert type(await anext(events)).__name__ == "ResourceUpdated"
        for _ in range(2):
            await opened.call_tool(tool(link, "change"), {"kind": "tools", "name": name})
            assert type(await anext(events)).__name__ == "ToolsListChanged"


@pytest.mark.parametrize("front", ["http legacy", "stdio legacy"])
async def test_the_sdk_client_subscribes_to_a_modern_server(tree: Tree, front: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        heard.put_nowait(type(message).__name__)

    async with client(tree, front, message_handler=on_message) as opened:
        for _ in range(2):
            await opened.subscribe_resource(uri("new_stdio", "raw://text"))
            async with asyncio.timeout(10):
                await opened.call_tool(tool("new_stdio", "touch"), {"uri": "raw://text"})
                assert await heard.get() == "ResourceUpdatedNotification"
            await opened.unsubscribe_resource(uri("new_stdio", "raw://text"))
        await opened.send_ping()
        assert heard.empty()


@pytest.mark.parametrize("front", ["http legacy", "http auto"])
async def test_a_call_it_gives_up_is_cancelled_at_a_server_of_the_other_era(tree: Tree, front: str) -> None:
    async with client(tree, front) as opened:
        for link in OTHERS[front.split()[1]]:
            given = interview({"gate": "never"})
            with pytest.raises(MCPError):
                await opened.call_tool(tool(link, "interview"), given, read_timeout_seconds=0.2)
            async with asyncio.timeout(10):
                while (
                    not (await opened.call_tool(tool(link, "tally"), {}))
                    .structured_content["cancelled"]
                    .get(given["label"])
                ):
                    pass

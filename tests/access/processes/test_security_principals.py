"""Two principals share one server and nothing else: what belongs to the call of one never reaches the other."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.servers.start import raw, serving
from tests.support.node_process import LEGACY, Answer, RunningNode, running_node, wait_for
from tests.support.raw_client import RawConnection, ask, assert_discreet, legacy, legacy_headers, message, request

ABLE = {"sampling": {}, "elicitation": {"form": {}}, "roots": {"listChanged": True}}
QUESTION = {"message": "whose?", "mode": "form", "requestedSchema": {"type": "object", "properties": {}}}
SECRET = "said-in-confidence"
NAMED = '[auth]\nanonymous = "never"\n'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with serving(raw("all", "--era", "legacy")) as url:
        table = {"command": raw("all", "--era", "legacy"), "share": "node"}  # what clients of one process hear
        servers = {"pipe": table, "web": {"url": url, "share": "node"}}
        with running_node(tmp_path_factory.mktemp("two"), servers, NAMED) as started:
            yield started
            assert started.process.poll() is None


class Principal:
    """A legacy client with its own token, every capability, and a stream on which everything it hears is kept."""

    def __init__(self, node: RunningNode, name: str) -> None:
        self.node = node
        made = node.admin("/admin/tokens", "POST", {"name": name, "for": "client"})
        self.authorization = f"Bearer {made['token']}"
        hello = {"protocolVersion": LEGACY, "capabilities": ABLE, "clientInfo": {"name": name, "version": "1"}}
        body = message("initialize", hello)
        answer = ask(node, request("POST", "/mcp", legacy_headers(None, authorization=self.authorization), body))
        self.session = answer.headers["mcp-session-id"]
        self.request("logging/setLevel", {"level": "debug"})
        self.heard: list[Any] = []
        self.stream = RawConnection(node, 60.0)
        headers = legacy_headers(self.session, authorization=self.authorization)
        self.stream.send(request("GET", "/mcp", headers)).stream_head()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, AssertionError, ValueError):
            while (event := self.stream.event()) is not None:
                self.heard.append(event)

    def data(self, method: str, params: Any, request_id: Any = 1) -> bytes:
        return legacy(self.session, method, params, request_id=request_id, authorization=self.authorization)

    def request(self, method: str, params: Any = None, request_id: Any = 1) -> Answer:
        return ask(self.node, self.data(method, params, request_id))

    def call(self, tool: str, arguments: Any = None, request_id: Any = 1, token: Any = None) -> Answer:
        params = {"name": tool, "arguments": arguments or {}}
        return self.request(
            "tools/call", params if token is None else {**params, "_meta": {"progressToken": token}}, request_id
        )

    def listened(self) -> list[Any]:
        """Everything heard up to now: something that surely comes last on its stream has come."""
        count = len(self._updates())
        self.request("resources/subscribe", {"uri": "mcpax://pipe/raw://blob"})
        self.call("pipe__touch", {"uri": "raw://blob"})
        wait_for(lambda: len(self._updates()) > count)
        return self.heard

    def _updates(self) -> list[Any]:
        return [event for event in self.heard if event.get("params", {}).get("uri") == "mcpax://pipe/raw://blob"]

    def waiting(self, segment: str) -> RawConnection:
        """A call under way that never ends by itself."""
        rude = RawConnection(self.node).send(self.data("tools/call", {"name": f"{segment}__wait", "arguments": {}}, 77))
        wait_for(lambda: self.node.admin("/admin/status")["calls"]["in_flight"] >= 1)
        return rude

    def close(self) -> None:
        self.stream.socket.shutdown(socket.SHUT_RDWR)  # a socket that a thread reads is not closed by `close`
        self.listener.join(10)
        self.stream.socket.close()
        ask(self.node, request("DELETE", "/mcp", legacy_headers(self.session, authorization=self.authorization)))


@pytest.fixture
def two(node: RunningNode) -> Iterator[tuple[Principal, Principal]]:
    with contextlib.closing(Principal(node, "alice")) as alice, contextlib.closing(Principal(node, "bob")) as bob:
        yield alice, bob
    wait_for(lambda: node.admin("/admin/status")["calls"]["in_flight"] == 0)


@pytest.mark.parametrize("segment", ["pipe", "web"])
@pytest.mark.parametrize("busy", [False, True], ids=["bob idle", "bob calling"])
def test_a_log_message_of_one_call_does_not_reach_another_principal(
    two: tuple[Principal, Principal], segment: str, busy: bool
) -> None:
    alice, bob = two
    with bob.waiting(segment) if busy else contextlib.nullcontext():
        answer = alice.call(f"{segment}__log", {"level": "error", "data": SECRET})
        assert answer.message["result"]
        if not busy or segment == "web":
            assert SECRET in json.dumps(answer.events[:-1]) + json.dumps(alice.heard)
    assert SECRET not in json.dumps(bob.listened())


@pytest.mark.parametrize("segment", ["pipe", "web"])
def test_a_question_of_one_call_is_not_asked_of_another_principal(
    two: tuple[Principal, Principal], segment: str
) -> None:
    alice, bob = two
    asks = {"method": "elicitation/create", "params": {**QUESTION, "message": SECRET}}
    with bob.waiting(segment), RawConnection(alice.node) as rude:
        rude.send(alice.data("tools/call", {"name": f"{segment}__ask", "arguments": asks}, 5))
        if segment == "web":  # HTTP tells whose it is: alice is asked, and answers
            assert rude.stream_head().status == 200
            asked = rude.event()
            assert asked["params"]["message"] == SECRET
            said = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}).encode()
            headers = legacy_headers(bob.session, authorization=bob.authorization)
            # Bob cannot answer in her place, even knowing the id.
            assert ask(bob.node, request("POST", "/mcp", headers, said)).status == 400
            headers = legacy_headers(alice.session, authorization=alice.authorization)
            assert ask(alice.node, request("POST", "/mcp", headers, said)).status == 202
            assert rude.event()["result"]["structuredContent"]["answers"] == [{"action": "decline"}]
        else:  # a shared pipe does not: nobody is asked, and the server is told so
            answer = rude.answer().message
            assert "answers" in answer["result"]["structuredContent"]
            assert "accept" not in json.dumps(answer)
    assert SECRET not in json.dumps(bob.listened())


@pytest.mark.parametrize("segment", ["pipe", "web"])
def test_equal_ids_and_progress_tokens_of_two_principals_do_not_meet(
    two: tuple[Principal, Principal], segment: str
) -> None:
    answers: dict[int, Answer] = {}

    def run(number: int, steps: int) -> None:
        answers[number] = two[number].call(f"{segment}__progress", {"steps": steps, "ms": 40}, 9, "same")

    threads = [threading.Thread(target=run, args=(number, steps)) for number, steps in enumerate((3, 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, steps in enumerate((3, 5)):
        *before, last = answers[number].events
        progress = [event["params"] for event in before if event["method"] == "notifications/progress"]
        assert [one["progress"] for one in progress] == list(range(1, steps + 1))
        assert {one["progressToken"] for one in progress} == {"same"}
        assert (last["id"], last["result"]["content"][0]["text"]) == (9, f"{steps} steps")


@pytest.mark.parametrize("segment", ["pipe", "web"])
def test_one_principal_cannot_cancel_the_call_of_another(two: tuple[Principal, Principal], segment: str) -> None:
    alice, bob = two
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}
    with alice.waiting(segment) as rude:
        headers = legacy_headers(bob.session, authorization=bob.authorization)
        for request_id in (77, "77", *range(1, 30)):
            cancel["params"] = {"requestId": request_id}
            assert ask(bob.node, request("POST", "/mcp", headers, json.dumps(cancel).encode())).status == 202
        assert alice.node.admin("/admin/status")["calls"]["in_flight"] == 1
        rude.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            rude.socket.recv(1)


def test_updates_of_a_resource_reach_those_who_asked_for_them(two: tuple[Principal, Principal]) -> None:
    alice, bob = two
    uri = "mcpax://pipe/raw://text"
    assert "result" in alice.request("resources/subscribe", {"uri": uri}).json
    assert bob.call("pipe__touch", {"uri": "raw://text"}).message["result"]
    wait_for(lambda: any(event["method"] == "notifications/resources/updated" for event in alice.heard))
    assert not [event for event in bob.listened() if event.get("params", {}).get("uri") == uri]
    assert_discreet(json.dumps(alice.heard).encode())

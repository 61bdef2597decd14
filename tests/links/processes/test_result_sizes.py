"""A result over the limit fails its call alone, whatever the transport; the link reads on."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import serving
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.raw_client import ask, call, legacy, legacy_session, modern

SERVER = [sys.executable, str(Path(__file__).parents[2] / "servers" / "bulky.py")]
MIB = 1024 * 1024
LIMIT, OVER = 16 * MIB, 17 * MIB
TRANSPORTS = ("stdio", "json", "stream", "sse")
SECONDS = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    command = [*SERVER, "--bytes", str(OVER)]
    with contextlib.ExitStack() as stack:
        servers: dict[str, dict[str, Any]] = {"stdio": {"command": command}}
        for transport in TRANSPORTS[1:]:
            servers[transport] = {"url": stack.enter_context(serving([*command, "--transport", transport]))}
        servers["small"] = {"command": command, "result_bytes": MIB}
        servers["large"] = {"command": command, "result_bytes": "32Mi"}
        node = stack.enter_context(running_node(tmp_path_factory.mktemp("sizes"), servers))
        for segment in servers:
            node.wait_link(segment, {"state": "ready"})
        yield node


def bulky(node: RunningNode, segment: str, shape: str, size: int = OVER, **more: Any) -> Any:
    arguments = {"bytes": size, "shape": shape, **more}
    with Wire(node) as wire:
        return wire.modern("tools/call", {"name": f"{segment}__bulky", "arguments": arguments}).json


def assert_too_large(answer: Any, limit: int = LIMIT) -> None:
    error = answer["error"]
    assert (error["code"], error["message"]) == (32132, "result_too_large")
    data = error["data"]
    assert (data["reason"], data["limit_bytes"], data["outcome"]) == ("result_too_large", limit, "unknown")
    assert "retry_after_ms" not in data
    assert "less" in data["next"] and "result_bytes" not in data["next"]


def said(answer: Any) -> Any:
    return json.loads(answer["result"]["content"][0]["text"])


def resident(node: RunningNode) -> int:
    text = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.parametrize("shape", ["first", "last", "decoy", "escaped"])
@pytest.mark.parametrize("segment", TRANSPORTS)
def test_only_the_call_whose_result_is_too_large_fails(node: RunningNode, segment: str, shape: str) -> None:
    before = node.link(segment)
    with ThreadPoolExecutor() as pool:
        held = pool.submit(ask, node, call(f"{segment}__held"), SECONDS)
        wait_for(lambda: node.link(segment)["in_flight"] > before["in_flight"])
        assert_too_large(bulky(node, segment, shape, after_held=True))
        assert said(held.result().json) == "held"
    assert said(ask(node, call(f"{segment}__echo", {"n": 1})).json) == {"n": 1}
    after = node.link(segment)
    assert (after["state"], after["restarts"], after.get("pid")) == ("ready", before["restarts"], before.get("pid"))


@pytest.mark.parametrize("shape", ["notification", "request", "text", "endless id"])
@pytest.mark.parametrize("segment", ["stdio", "stream", "sse"])
def test_a_message_that_answers_no_call_is_skipped_and_the_call_goes_on(
    node: RunningNode, segment: str, shape: str
) -> None:
    assert said(bulky(node, segment, shape)) == "small"
    if shape == "request":
        answered = said(ask(node, call(f"{segment}__answered")).json)
        assert answered["id"] == "ours"
        assert answered["error"]["data"]["reason"] == "message_too_large"


@pytest.mark.parametrize("segment", TRANSPORTS)
def test_resources_and_prompts_have_the_same_limit(node: RunningNode, segment: str) -> None:
    session = legacy_session(node)
    prompt = ask(node, modern("prompts/get", {"name": f"{segment}__bulk"}), SECONDS).json
    assert_too_large(prompt)
    listed = ask(node, legacy(session, "resources/list")).json["result"]["resources"]
    (uri,) = [one["uri"] for one in listed if one["name"].startswith(segment) or segment in one["uri"]][:1]
    assert_too_large(ask(node, legacy(session, "resources/read", {"uri": uri}), SECONDS).json)


def test_a_line_without_end_fails_its_call_before_its_server_has_ended(node: RunningNode) -> None:
    before = node.link("stdio")
    assert_too_large(bulky(node, "stdio", "endless"))
    assert node.link("stdio")["pid"] == before["pid"]
    os.kill(before["pid"], signal.SIGKILL)
    node.wait_link("stdio", {"state": "ready", "restarts": before["restarts"] + 1})
    assert said(ask(node, call("stdio__echo", {"n": 2})).json) == {"n": 2}


def test_each_server_may_have_its_own_limit(node: RunningNode) -> None:
    assert_too_large(bulky(node, "small", "last", 2 * MIB), MIB)
    assert said(bulky(node, "small", "notification", 2 * MIB)) == "small"
    text = bulky(node, "large", "last", 20 * MIB)["result"]["content"][0]["text"]
    assert len(text) == 20 * MIB
    assert_too_large(bulky(node, "large", "last", 33 * MIB), 32 * MIB)


def test_results_that_are_left_out_are_not_kept(node: RunningNode) -> None:
    """The first of them may be stored up to the limit; what follows must not add to it."""
    assert_too_large(bulky(node, "stdio", "last"))
    before = resident(node)
    assert_too_large(bulky(node, "stdio", "last", 200 * MIB))
    assert_too_large(bulky(node, "stream", "last", 200 * MIB))
    assert resident(node) - before < 3 * LIMIT

"""Does a driver.py do what its hooks say, for clients of a real node, and nothing else?"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.drivers.driver_node import Workspace, alive, wait_states
from tests.servers.caging import needs_sandbox
from tests.support.node_process import LEGACY, RunningNode, running_node, wait_for
from tests.support.peers import HttpPeer

pytestmark = needs_sandbox

DEFINE = "from interlock import define_driver\n"
# Contract demo.NAME by driver NAME-mcp. SECRET: a file outside of every folder.
ENTRIES = {
    "built": """
        import json
        def build_arguments(args):
            print("a word on standard output")
            seen = {"input": args.input, "context": args.context, "tool": [args.tool_id, args.tool_name]}
            return {**args.mapped, "until": json.dumps(seen)}
        driver = define_driver(build_arguments=build_arguments)
    """,
    "wrong": """
        import os, socket, time
        ways = {
            1: lambda: [],
            2: lambda: 1 / 0,
            3: lambda: socket.socket(),
            4: lambda: {"until": open("SECRET").read()},
            5: lambda: {"n": "no integer"},
            6: lambda: os._exit(1),
            7: lambda: time.sleep(60),
        }
        define_driver(build_arguments=lambda args: ways.get(args.input["n"], lambda: {"n": 0})())
    """,
    "slow": """
        import time
        def build_arguments(args):
            time.sleep(3)
            return args.mapped
        define_driver(build_arguments=build_arguments)
    """,
    "parsed": """
        import time
        def parse(args):
            result = args.result["structuredContent"]
            ways = {
                1: {"ok": True, "value": {"twice": result["n"] * 2, "of": [args.tool_id, args.tool_name]}},
                2: {"ok": False, "error": {"code": "card_declined", "message": "no money", "retryable": False}},
                3: {"ok": False, "error": {"code": "auth_failed", "message": "who?"}},
                4: {"ok": True, "value": "no object"},
                5: {"ok": "maybe"},
            }
            return ways[result["n"]]
        define_driver(parse_tool_result=parse)
    """,
    "conflicting": """
        define_driver(id="conflicting-mcp", transport="http", version="7.0.0", build_arguments=lambda args: args.mapped)
    """,
    "transformed": """
        def tenfold(value):
            return value * 10
        define_driver()
    """,
}
REFUSED = {
    "reaching": ("import socket\nsocket.create_connection(('127.0.0.1', 1))\ndefine_driver()\n", "entry_invalid"),
    "reading": ("open('SECRET').read()\ndefine_driver()\n", "entry_invalid"),
    "executing": ("define_driver(execute={'demo.other': print})\n", "execute_binding_mismatch"),
    "untransformed": ("define_driver()\n", "transform_missing"),
}


def entry(folder: Path, text: str, secret: Path) -> None:
    lines = text.strip("\n").splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    whole = "\n".join(line[margin:] for line in lines).replace("SECRET", str(secret))
    (folder / "driver.py").write_text(f"{DEFINE}{whole}\n")


def mapping(folder: Path, transform: str) -> None:
    """Of the only binding, whose input n goes through a transform."""
    file = folder / "DRIVER.md"
    head, _, rest = file.read_text().partition("implements:\n")
    first, _, others = rest.partition("  version:")
    file.write_text(
        f"{head}implements:\n{first}  mapping: {{n: {{from: n, transform: {transform}}}}}\n  version:{others}"
    )


def workers(folder: Path) -> list[int]:
    """Processes that run the hooks of drivers below it."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            words = (path / "cmdline").read_bytes().split(b"\0") if path.name.isdigit() else []
        except OSError:
            continue
        if any(b"worker.py" in word for word in words) and any(os.fsencode(folder) in word for word in words):
            found.append(int(path.name))
    return [pid for pid in found if alive(pid)]


class Scene:
    def __init__(self, workspace: Workspace, node: RunningNode) -> None:
        self.workspace, self.node = workspace, node

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        async with await HttpPeer(f"{self.node.url}/mcp", LEGACY).greet() as peer:
            result: dict[str, Any] = (await peer.call(f"demo__{name}", arguments)).result
        return result

    def sent(self, name: str) -> int:
        """How many calls its server has had."""
        return self.workspace.calls(f"{name}-mcp")

    def shown(self, name: str) -> dict[str, Any]:
        one: dict[str, Any] = self.node.admin(f"/admin/drivers/{name}-mcp")
        return one


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("hooked")
    secret = folder / "secret"
    secret.write_text("for nobody's eyes")
    workspace = Workspace(folder)
    for name, said in {**ENTRIES, **{name: said for name, (said, _) in REFUSED.items()}}.items():
        made = workspace.add(f"{name}-mcp", tools={"echo": f"demo.{name}"})
        entry(made, said, secret)
        if "transformed" in name:
            mapping(made, "tenfold")
    foreign = workspace.add("foreign-mcp", tools={"echo": "demo.foreign"})
    (foreign / "driver.ts").write_text("throw new Error('run')")
    with workspace.node() as node:
        wait_states(node, "ready", "foreign-mcp", *(f"{name}-mcp" for name in ENTRIES))
        wait_states(node, "rejected", *(f"{name}-mcp" for name in REFUSED))
        offered = {f"demo.{name}" for name in ("foreign", *ENTRIES)}
        wait_for(lambda: offered <= {tool["name"] for tool in node.admin("/admin/tools")["tools"]})
        yield Scene(workspace, node)


def code_of(result: dict[str, Any]) -> str:
    assert result["isError"] is True, result
    code: str = result["_meta"]["dev.interlock/error"]["code"]
    return code


@pytest.mark.req("AIP-define-2", "AIP-file-4")
async def test_the_server_receives_what_build_arguments_returns(scene: Scene) -> None:
    value = (await scene.call("built", n=7))["structuredContent"]
    assert value["n"] == 7
    seen = json.loads(value["until"])
    assert (seen["input"], seen["tool"]) == ({"n": 7}, ["demo.built", "echo"])
    assert set(seen["context"]) == {"tenant_id", "user_id", "workspace_id"}


@pytest.mark.req("AIP-define-2", "AIP-define-5")
@pytest.mark.parametrize(
    ("way", "code"),
    [(1, "internal"), (2, "internal"), (3, "internal"), (4, "internal"), (5, "contract_mismatch"), (6, "internal")],
    ids=["no dict", "raises", "a socket", "a file outside", "not as the server takes it", "exits"],
)
async def test_nothing_is_sent_where_build_arguments_fails(scene: Scene, way: int, code: str) -> None:
    before = scene.sent("wrong")
    result = await scene.call("wrong", n=way)
    assert code_of(result) == code
    assert "eyes" not in json.dumps(result)
    assert scene.sent("wrong") == before
    assert (await scene.call("wrong", n=0))["structuredContent"]["n"] == 0


@pytest.mark.req("AIP-define-2")
async def test_a_hook_that_takes_more_than_five_seconds_ends_the_call_and_sends_nothing(scene: Scene) -> None:
    before, began = scene.sent("wrong"), time.monotonic()
    assert code_of(await scene.call("wrong", n=7)) == "internal"
    assert 5 <= time.monotonic() - began < 9
    assert scene.sent("wrong") == before


@pytest.mark.req("AIP-define-5")
async def test_the_node_answers_others_while_a_hook_sleeps(scene: Scene) -> None:
    began = time.monotonic()
    slow = asyncio.create_task(scene.call("slow", n=1))
    for n in range(5):
        assert (await scene.call("foreign", n=n))["structuredContent"]["n"] == n
        assert (await scene.call("built", n=n))["structuredContent"]["n"] == n
    assert not slow.done() and time.monotonic() - began < 3
    assert (await slow)["structuredContent"]["n"] == 1


@pytest.mark.req("AIP-define-3")
async def test_the_value_or_the_error_is_what_parse_tool_result_returns(scene: Scene) -> None:
    assert (await scene.call("parsed", n=1))["structuredContent"] == {"twice": 2, "of": ["demo.parsed", "echo"]}
    declined = await scene.call("parsed", n=2)
    assert code_of(declined) == "parsed-mcp:card_declined"
    assert declined["content"][0]["text"].endswith("no money")
    assert code_of(await scene.call("parsed", n=3)) == "auth_failed"
    assert code_of(await scene.call("parsed", n=4)) == "output_parse_failed"
    assert code_of(await scene.call("parsed", n=5)) == "internal"
    assert code_of(await scene.call("parsed", n=6)) == "internal"


@pytest.mark.req("AIP-map-4")
async def test_a_transform_of_driver_py_runs_before_the_server_is_called(scene: Scene) -> None:
    assert (await scene.call("transformed", n=4))["structuredContent"]["n"] == 40


@pytest.mark.req("AIP-define-4")
async def test_the_file_wins_over_the_entry_and_the_fields_are_named(scene: Scene) -> None:
    shown = scene.shown("conflicting")
    found = {each["field"] for each in shown["problems"] if each["code"] == "entry_conflict"}
    assert found == {"/transport", "/version"}
    assert {each["severity"] for each in shown["problems"] if each["code"] == "entry_conflict"} == {"warning"}
    assert (shown["version"], shown["state"]) == ("1.0.0", "ready")
    assert (await scene.call("conflicting", n=1))["structuredContent"]["n"] == 1


@pytest.mark.req("AIP-define-1", "AIP-define-5")
@pytest.mark.parametrize("name", REFUSED)
def test_a_driver_whose_entry_does_not_fit_is_rejected_and_its_server_serves_nothing(scene: Scene, name: str) -> None:
    shown = scene.shown(name)
    assert REFUSED[name][1] in [each["code"] for each in shown["problems"] if each["severity"] == "error"]
    if REFUSED[name][1] == "entry_invalid":
        assert "PermissionError" in json.dumps(shown)
        assert scene.workspace.lines(f"{name}-mcp") == []


@pytest.mark.req("AIP-file-4")
async def test_a_driver_ts_is_never_run_and_the_file_alone_serves(scene: Scene) -> None:
    (warning,) = [each for each in scene.shown("foreign")["problems"] if each["code"] == "entry_not_run"]
    assert "driver.ts" in warning["message"]
    assert (await scene.call("foreign", n=1))["structuredContent"]["n"] == 1
    assert workers(scene.workspace.path / ".drivers" / "foreign-mcp") == []


@pytest.mark.req("AIP-define-5")
def test_an_entry_runs_when_its_folder_is_trusted_and_not_before(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = workspace.add("waiting-mcp", tools={"echo": "demo.waiting"})
    entry(folder, "define_driver(build_arguments=lambda args: args.mapped)", tmp_path)
    with running_node(tmp_path, {}, '[drivers]\nsandbox = { waiting-mcp = "off" }\n') as node:
        wait_states(node, "untrusted", "waiting-mcp")
        assert workers(tmp_path) == []
        digest = node.admin("/admin/drivers/waiting-mcp")["digest"]
        node.admin("/admin/drivers/waiting-mcp/trust", "POST", {"digest": digest})
        wait_states(node, "ready", "waiting-mcp")
        assert workers(tmp_path) != []
        entry(folder, "define_driver(build_arguments=lambda args: {'n': 1})", tmp_path)
        wait_states(node, "untrusted", "waiting-mcp")
        wait_for(lambda: workers(tmp_path) == [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_no_hooks_outlive_the_node(tmp_path: Path, number: signal.Signals) -> None:
    workspace = Workspace(tmp_path)
    folder = workspace.add("hooked-mcp", tools={"echo": "demo.hooked"})
    entry(folder, "define_driver(build_arguments=lambda args: args.mapped)", tmp_path)
    with workspace.node() as node:
        wait_states(node, "ready", "hooked-mcp")
        assert workers(tmp_path) != []
        os.kill(node.process.pid, number)
        wait_for(lambda: workers(tmp_path) == [], 10)

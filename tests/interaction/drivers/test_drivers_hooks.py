"""Does a driver.py do what its hooks say, for clients of a real node, and nothing else?"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interaction.drivers.driving import Workspace, wait_states
from tests.interaction.harness import LEGACY, RunningNode
from tests.interaction.peers import HttpPeer
from tests.servers.caging import needs_sandbox

pytestmark = needs_sandbox

SECRET = "for nobody's eyes"
ENTRIES = {
    # Contract demo.NAME by driver NAME-mcp.
    "built": """
        from interlock import define_driver

        def build_arguments(args):
            print("a word on standard output")
            seen = {"input": args.input, "context": sorted(args.context), "tool": [args.tool_id, args.tool_name]}
            return {**args.mapped, "until": __import__("json").dumps(seen)}

        driver = define_driver(build_arguments=build_arguments)
    """,
}


def entry(folder: Path, text: str) -> None:
    lines = text.strip("\n").splitlines()
    margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    (folder / "driver.py").write_text("\n".join(line[margin:] for line in lines))


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


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("hooked")
    (folder / "secret").write_text(SECRET)
    workspace = Workspace(folder)
    for name, text in ENTRIES.items():
        entry(
            workspace.add(f"{name}-mcp", tools={"echo": f"demo.{name}"}), text.replace("SECRET", str(folder / "secret"))
        )
    with workspace.node() as node:
        wait_states(node, "ready", *(f"{name}-mcp" for name in ENTRIES))
        yield Scene(workspace, node)


def code_of(result: dict[str, Any]) -> str:
    assert result["isError"] is True, result
    code: str = result["_meta"]["dev.interlock/error"]["code"]
    return code


@pytest.mark.req("AIP-define-2", "AIP-file-4")
async def test_the_server_receives_what_build_arguments_returns(scene: Scene) -> None:
    result = await scene.call("built", n=7)
    value = result["structuredContent"]
    assert value["n"] == 7
    seen = json.loads(value["until"])
    assert (seen["input"], seen["tool"]) == ({"n": 7}, ["demo.built", "echo"])
    assert "user_id" in seen["context"]

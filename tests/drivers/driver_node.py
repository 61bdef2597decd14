"""A real node with drivers in its workspace, whose servers are real processes that write down what they are told."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.drivers.driver_texts import binding, contract, driver, text
from tests.support.node_process import RunningNode, running_node, wait_for

SERVER = Path(__file__).parents[1] / "servers" / "driven.py"
OBJECT = {"type": "object"}
INPUTS = {"type": "object", "properties": {"n": {"type": "integer"}, "until": {"type": "string"}}}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Workspace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: list[str] = []
        self.path = folder / "workspace"

    def add(self, id: str, *args: str, tools: Mapping[str, str], server: Any = None, **changed: Any) -> Path:
        """`tools`: the server's tool -> the contract's id."""
        self.ids.append(id)
        folder = self.path / ".drivers" / id
        bindings = []
        for tool, named in tools.items():
            place = folder / "tools" / named
            place.mkdir(parents=True, exist_ok=True)
            said = contract(id=named, inputs=INPUTS, outputs=OBJECT)
            (place / "TOOL.md").write_bytes(text(said))
            bindings.append(binding(tool=f"./tools/{named}/TOOL.md", metadata={"mcp": {"tool_name": tool}}))
        command = [str(SERVER), "--log", str(self.log(id)), *args]
        server = server or {"kind": "binary", "path": sys.executable, "args": command}
        (folder / "DRIVER.md").write_bytes(text(driver(id=id, server=server, implements=bindings, **changed)))
        return folder

    def tools(self, *names: str) -> tuple[str, str]:
        path = self.folder / "tools.json"
        listed = [{"name": name, "inputSchema": INPUTS, "outputSchema": OBJECT} for name in names]
        path.with_suffix(".new").write_text(json.dumps(listed))
        path.with_suffix(".new").replace(path)
        return "--tools", str(path)

    def log(self, id: str) -> Path:
        return self.folder / f"{id}.log"

    def lines(self, id: str) -> list[dict[str, Any]]:
        written = self.log(id).read_text().splitlines() if self.log(id).exists() else []
        return [json.loads(line) for line in written]

    def pids(self, id: str) -> list[int]:
        """Of everything that was started, forks included."""
        return list(dict.fromkeys(line["pid"] for line in self.lines(id)))

    def calls(self, id: str) -> int:
        return sum(line.get("got", {}).get("method") == "tools/call" for line in self.lines(id))

    @contextlib.contextmanager
    def node(self, sooner: Mapping[str, Any] | None = None, **settings: Any) -> Iterator[RunningNode]:
        """`sooner`: as `settings` of `running_node`; `settings`: keys of [drivers]."""
        off = ", ".join(f'"{id}" = "off"' for id in self.ids)
        said = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        extra = f"[drivers]\ntrust_workspace = true\nsandbox = {{ {off} }}\n{said}"
        with running_node(self.folder, {}, extra, settings=sooner) as node:
            yield node


async def until(check: Callable[[], Any], seconds: float = 20.0) -> None:
    """As `wait_for`, where clients run in this loop."""
    async with asyncio.timeout(seconds):
        while True:
            if check():
                return
            await asyncio.sleep(0.01)


def states(node: RunningNode) -> dict[str, str]:
    return {one["id"]: one["state"] for one in node.admin("/admin/drivers")["drivers"]}


def wait_states(node: RunningNode, wanted: str, *ids: str, seconds: float = 30.0) -> None:
    wait_for(lambda: all(states(node).get(id) == wanted for id in ids), seconds)

"""Is a newer release of a driver's server shown before it is used, and used only then?"""

import json
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.program import Inline, Interlock
from tests.drivers.driver_files import contract, driver, text

PROGRAM = """
import json, sys

TOOLS = {tools}

def main():
    for line in sys.stdin:
        asked = json.loads(line)
        method, params = asked.get("method"), asked.get("params", {{}})
        if "id" not in asked:
            continue
        if method == "initialize":
            result = {{"protocolVersion": params["protocolVersion"], "capabilities": {{"tools": {{}}}}}}
            result["serverInfo"] = {{"name": "tool", "version": "{version}"}}
        elif method == "tools/list":
            result = {{"tools": TOOLS}}
        elif method == "tools/call":
            result = {{"content": [], "structuredContent": {{"release": "{version}"}}}}
        else:
            error = {{"code": -32601, "message": "no"}}
            print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "error": error}}), flush=True)
            continue
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}), flush=True)
"""
READ = {
    "name": "read_file",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    "outputSchema": {"type": "object"},
}


def put_wheel(shelf: Path, version: str, *tools: dict[str, Any]) -> None:
    info = f"tool-{version}.dist-info"
    files = {
        "tool_program.py": PROGRAM.format(tools=json.loads(json.dumps(list(tools))), version=version),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tool\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntool = tool_program:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(shelf / f"tool-{version}-py3-none-any.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)


@pytest.mark.timeout(180)
@pytest.mark.req("AIP-30.install-3")
def test_an_update_shows_what_the_tools_become_and_then_switches(interlock: Interlock, inline: Inline) -> None:
    shelf = interlock.folder / "shelf"
    shelf.mkdir()
    put_wheel(shelf, "1.0.0", READ)
    folder = interlock.folder / ".drivers" / "tool-mcp"
    (folder / "tools/fs-read").mkdir(parents=True)
    (folder / "DRIVER.md").write_text(text(driver("tool-mcp", server={"kind": "pypi", "package": "tool"})))
    (folder / "tools/fs-read/TOOL.md").write_text(text(contract()))
    (interlock.folder / "interlock.toml").write_text(
        '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n[drivers]\nsandbox = { tool-mcp = "off" }\n'
    )

    def release() -> str:
        """Which one answers."""
        said = inline("tools", "call", "tools.fs-read", "--arg", "path=x", "--json")
        return next((one for one in ("1.0.0", "2.0.0") if f'"{one}"' in said.out), said.out)

    def until_ready() -> None:
        end = time.monotonic() + 90
        while (one := inline("drivers", "list", "--json").json["drivers"][0])["state"] != "ready":
            assert time.monotonic() < end, one
            time.sleep(0.2)

    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf), "UV_OFFLINE": "1"}
    with interlock.start("serve", COLUMNS="80", **offline) as running:
        while "Ctrl-C stops the node" not in running.next_line():
            pass
        refused = inline("drivers", "update", "tool-mcp", "--json")
        assert (refused.code, refused.json["error"]) == (1, "not_running")
        assert inline("drivers", "trust", "tool-mcp", "--yes").code == 0
        until_ready()
        assert release() == "1.0.0"
        same = inline("drivers", "update", "tool-mcp")
        assert (same.code, "is the newest: 1.0.0" in same.out) == (0, True)
        more = {**READ, "name": "write_file"}
        put_wheel(shelf, "2.0.0", {**READ, "description": "Reads a file."}, more)
        looked = inline("drivers", "update", "tool-mcp")
        assert (looked.code, "nothing was done" in looked.err) == (1, True)
        for word in ("version 1.0.0 -> 2.0.0", "new tools", "write_file", '+  "description": "Reads a file."'):
            assert word in looked.out
        assert release() == "1.0.0"
        assert inline("links", "restart", "tool-mcp@1").code == 0
        until_ready()
        assert release() == "1.0.0"  # as it was recorded
        done = inline("drivers", "update", "tool-mcp", "--yes", "--json")
        assert (done.code, done.json["from"], done.json["to"], done.json["switched"]) == (0, "1.0.0", "2.0.0", True)
        until_ready()
        assert release() == "2.0.0"
        from interlock.cli.client.operator import OperatorClient
        from interlock.drivers.api import UPDATE_DRIVER
        from interlock.wire.refusal import Refused

        with pytest.raises(Refused) as unseen:
            node = OperatorClient.of_data(interlock.data)
            node.call(UPDATE_DRIVER, name="tool-mcp", body={"candidate": "0" * 64})
        assert unseen.value.code == "not_looked_at"
        packages = interlock.data / "packages" / "drivers" / "tool-mcp@1"
        assert packages.is_dir()
        assert inline("drivers", "remove", "tool-mcp", "--yes", "--forget").code == 0
        assert not packages.exists()

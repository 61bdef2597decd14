"""How a client is connected to a node, as text to copy. Pure but for asking how this program was started."""

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from interlock.mcp.eras import LATEST_MODERN
from interlock.mcp.methods import META_CAPABILITIES, META_VERSION, TOOLS_LIST

INSPECTOR: Final = "npx @modelcontextprotocol/inspector"
# Under Node.js 20, npx takes a release that knows no --header: this brings the Node.js that the newer one wants.
INSPECTOR_2: Final = "npx -y -p node@22 -p @modelcontextprotocol/inspector@2 mcp-inspector"


def ways_to_connect(
    url: str, *, config: str | None, data: str | None, token_command: str | None
) -> list[tuple[str, str]]:
    """(title, text) for each client; the text can be copied whole. `token_command`: what makes the token it needs."""
    needs_token = token_command is not None
    ways = []
    header, inspector = "", INSPECTOR
    if needs_token:
        inspector = INSPECTOR_2
        ways.append(("A token first", f"export INTERLOCK_TOKEN=$({token_command})"))
        header = ' --header "Authorization: Bearer $INTERLOCK_TOKEN"'
    where = shlex.quote(url)
    ways += [
        (
            "Inspector",
            f"{inspector} --cli {where} \\\n  --transport http --method {TOOLS_LIST}{header}",
        ),
        ("Claude Code", f"claude mcp add --transport http interlock {where}{header}"),
        ("Claude Desktop (claude_desktop_config.json)", _desktop_entry(config, data)),
        ("curl", _curl(where, needs_token)),
    ]
    return ways


def stdio_command(config: str | None, data: str | None, *, only: str | None = None) -> list[str]:
    """What a client starts. It does so in a folder of its own, with a short PATH and none of this environment."""
    command = [*_program(), "serve", "--stdio"]
    if config is not None:
        command += ["--config", str(Path(config).absolute())]
    if data is not None:
        command += ["--data", str(Path(data).absolute())]
    return command if only is None else [*command, "--only", only]


def _desktop_entry(config: str | None, data: str | None) -> str:
    program, *arguments = stdio_command(config, data)
    return json.dumps({"mcpServers": {"interlock": {"command": program, "args": arguments}}}, indent=2)


def _program() -> list[str]:
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return [sys.executable, "-m", "interlock"]
    found = shutil.which(str(started))
    return [str(Path(found).absolute())] if found else ["interlock"]


def _curl(where: str, needs_token: bool) -> str:
    token = '  -H "Authorization: Bearer $INTERLOCK_TOKEN" \\\n' if needs_token else ""
    return (
        f"curl -s {where} \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        "  -H 'Accept: application/json, text/event-stream' \\\n"
        f"  -H 'MCP-Protocol-Version: {LATEST_MODERN}' -H 'Mcp-Method: {TOOLS_LIST}' \\\n"
        f"{token}"
        f'  -d \'{{"jsonrpc": "2.0", "id": 1, "method": "{TOOLS_LIST}", "params": {{"_meta": {{\n'
        f'    "{META_VERSION}": "{LATEST_MODERN}",\n'
        f'    "{META_CAPABILITIES}": {{}}}}}}}}\''
    )

"""The table of MCP clients: in which files each stores its servers, under which key, and in which format
(AIP-import-1).

A place is a base folder and a path below it. Which folder a base is depends on the system and the environment. `shape`
names the reader of an entry if its format differs from the common one.
"""

from collections.abc import Iterator
from typing import Final, Literal, cast

import msgspec

Format = Literal["json", "toml", "yaml"]
Base = Literal[
    "home",
    "xdg",  # $XDG_CONFIG_HOME or ~/.config
    "support",  # ~/Library/Application Support
    "appdata",
    "localappdata",
    "claude",  # $CLAUDE_CONFIG_DIR or the home
    "codex",  # $CODEX_HOME or ~/.codex
    "copilot",  # $COPILOT_HOME or ~/.copilot
    "project",
]
System = Literal["linux", "darwin", "win32"]
Shape = Literal["common", "vscode", "gemini", "codex", "opencode", "goose", "continue"]
EVERYWHERE: Final[tuple[System, ...]] = ("linux", "darwin", "win32")


class ConfigPlace(msgspec.Struct, frozen=True):
    """A file in which a client stores servers, and the operating systems on which it does so."""

    base: Base
    path: str
    systems: tuple[System, ...] = EVERYWHERE

    @property
    def scope(self) -> Literal["global", "project"]:
        """Return whether the file applies to all of the user's projects or to one."""
        return "project" if self.base == "project" else "global"


# The files of each client, as a base and a path. `base@systems` limits a file to some systems. `app` is the settings
# folder of a desktop application on each system, and `extension` that of a VS Code or Cursor extension.
_PLACES: Final = {
    "claude-desktop": "app Claude/claude_desktop_config.json, xdg@linux claude/claude_desktop_config.json",
    "claude-code": "claude .claude.json, project .mcp.json",
    "cursor": "home .cursor/mcp.json, project .cursor/mcp.json",
    "vscode": "app Code/User/mcp.json, project .vscode/mcp.json",
    "copilot-cli": "copilot mcp-config.json",
    "windsurf": "home .codeium/windsurf/mcp_config.json",
    "antigravity": "home .gemini/antigravity/mcp_config.json",
    "gemini-cli": "home .gemini/settings.json, project .gemini/settings.json",
    "codex": "codex config.toml, project .codex/config.toml",
    "cline": "extension saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
    "roo": "extension rooveterinaryinc.roo-cline/settings/mcp_settings.json",
    "zed": "xdg zed/settings.json, appdata@win32 Zed/settings.json, project .zed/settings.json",
    "opencode": "xdg opencode/opencode.json, xdg opencode/opencode.jsonc, project opencode.json",
    "goose": "xdg@linux+darwin goose/config.yaml, appdata@win32 Block/goose/config/config.yaml",
    "continue": "home .continue/config.yaml",
    "lm-studio": "home .lmstudio/mcp.json, home .cache/lm-studio/mcp.json",
    "kiro": "home .kiro/settings/mcp.json, project .kiro/settings/mcp.json",
    "amazon-q": "home .aws/amazonq/mcp.json",
    "crush": "xdg@linux+darwin crush/crush.json, localappdata@win32 crush/crush.json, project .crush.json",
    "mcporter": "home .mcporter/mcporter.json, home .mcporter/mcporter.jsonc, project config/mcporter.json",
}
_APPLICATION: Final = ("xdg@linux", "support@darwin", "appdata@win32")


class ClientProgram(msgspec.Struct, frozen=True):
    """An MCP client: where it stores its servers, and in which format."""

    name: str  # as --for and --as take it
    title: str
    form: Format = "json"
    root: tuple[str, ...] = ("mcpServers",)
    shape: Shape = "common"
    url_key: str = "url"
    http_type: str | None = None  # what an entry has as `type` for streamable HTTP; None: no type
    stdio_type: str | None = None
    stdio_only: bool = False
    expands: str | None = None  # how it writes a variable of the environment: ${VAR}; None: it expands none

    @property
    def places(self) -> Iterator[ConfigPlace]:
        """Yield the files in which the client stores servers, read from its row in `_PLACES`."""
        for place in _PLACES[self.name].split(", "):
            bases, _, path = place.partition(" ")
            paths = [path]
            if bases == "extension":
                paths = [f"{editor}/User/globalStorage/{path}" for editor in ("Code", "Cursor")]
            for each in paths:
                for base in _APPLICATION if bases in ("app", "extension") else (bases,):
                    name, _, systems = base.partition("@")
                    only = cast("tuple[System, ...]", tuple(systems.split("+"))) if systems else EVERYWHERE
                    yield ConfigPlace(cast(Base, name), each, only)


CLIENTS: Final[tuple[ClientProgram, ...]] = (
    ClientProgram("claude-desktop", "Claude Desktop", stdio_only=True),
    ClientProgram("claude-code", "Claude Code", http_type="http", stdio_type="stdio", expands="${VAR}"),
    ClientProgram("cursor", "Cursor", expands="${env:VAR}"),
    ClientProgram("vscode", "VS Code", "json", ("servers",), "vscode", "url", "http", "stdio", expands="${env:VAR}"),
    ClientProgram("copilot-cli", "Copilot CLI", http_type="http", stdio_type="local", expands="${VAR}"),
    ClientProgram("windsurf", "Windsurf", url_key="serverUrl", expands="${env:VAR}"),
    ClientProgram("antigravity", "Antigravity", url_key="serverUrl"),
    ClientProgram("gemini-cli", "Gemini CLI", shape="gemini", url_key="httpUrl", expands="${VAR}"),
    ClientProgram("codex", "Codex", "toml", ("mcp_servers",), "codex"),
    ClientProgram("cline", "Cline", http_type="streamableHttp"),
    ClientProgram("roo", "Roo Code", http_type="streamable-http", expands="${env:VAR}"),
    ClientProgram("zed", "Zed", root=("context_servers",)),
    ClientProgram("opencode", "opencode", "json", ("mcp",), "opencode", "url", "remote", "local", expands="{env:VAR}"),
    ClientProgram("goose", "Goose", "yaml", ("extensions",), "goose", "uri", "streamable_http", "stdio"),
    ClientProgram("continue", "Continue", "yaml", shape="continue", http_type="streamable-http", stdio_type="stdio"),
    ClientProgram("lm-studio", "LM Studio"),
    ClientProgram("kiro", "Kiro", expands="${VAR}"),
    ClientProgram("amazon-q", "Amazon Q"),
    ClientProgram("crush", "Crush", root=("mcp",), http_type="http", stdio_type="stdio", expands="$VAR"),
    ClientProgram("mcporter", "MCPorter", expands="${VAR}"),
)

BY_NAME: Final = {client.name: client for client in CLIENTS}
OTHER_NAMES: Final = {
    "claude": "claude-desktop",
    "code": "vscode",
    "vs-code": "vscode",
    "gemini": "gemini-cli",
    "copilot": "copilot-cli",
    "lmstudio": "lm-studio",
    "amazonq": "amazon-q",
}


def find_client(name: str) -> ClientProgram | None:
    """Return the client with this name, in any common spelling, or None if no client has it."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    return BY_NAME.get(OTHER_NAMES.get(key, key))

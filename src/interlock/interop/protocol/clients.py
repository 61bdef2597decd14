"""The table of MCP clients: in which files each stores its servers, under which key, and in which format
(AIP-import-1).

A place is a base folder and a path below it. Which folder a base is depends on the system and the environment. `shape`
names the reader of an entry if its format differs from the common one.
"""

from typing import Final, Literal

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


class ClientProgram(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP client: where it stores its servers, and in which format."""

    name: str  # as --for and --as take it
    title: str
    places: tuple[ConfigPlace, ...]
    form: Format = "json"
    root: tuple[str, ...] = ("mcpServers",)
    shape: Shape = "common"
    url_key: str = "url"
    http_type: str | None = None  # what an entry has as `type` for streamable HTTP; None: no type
    stdio_type: str | None = None
    stdio_only: bool = False
    expands: str | None = None  # how it writes a variable of the environment: ${VAR}; None: it expands none


def _linux(base: Base, path: str) -> ConfigPlace:
    return ConfigPlace(base, path, ("linux",))


def _windows(path: str) -> ConfigPlace:
    return ConfigPlace("appdata", path, ("win32",))


def _application(folder: str, file: str) -> tuple[ConfigPlace, ...]:
    """Return the places of a file in the settings folder of a desktop application, one for each system."""
    path = f"{folder}/{file}"
    return _linux("xdg", path), ConfigPlace("support", path, ("darwin",)), _windows(path)


def _home_and_project(path: str, project: str | None = None) -> tuple[ConfigPlace, ...]:
    return ConfigPlace("home", path), ConfigPlace("project", project or path)


def _extension(path: str) -> tuple[ConfigPlace, ...]:
    """Return the places of a configuration file of a VS Code or Cursor extension."""
    return tuple(place for editor in ("Code", "Cursor") for place in _application(f"{editor}/User/globalStorage", path))


CLIENTS: Final[tuple[ClientProgram, ...]] = (
    ClientProgram(
        name="claude-desktop",
        title="Claude Desktop",
        places=(
            *_application("Claude", "claude_desktop_config.json"),
            _linux("xdg", "claude/claude_desktop_config.json"),
        ),
        stdio_only=True,
    ),
    ClientProgram(
        name="claude-code",
        title="Claude Code",
        places=(ConfigPlace("claude", ".claude.json"), ConfigPlace("project", ".mcp.json")),
        http_type="http",
        stdio_type="stdio",
        expands="${VAR}",
    ),
    ClientProgram(name="cursor", title="Cursor", places=_home_and_project(".cursor/mcp.json"), expands="${env:VAR}"),
    ClientProgram(
        name="vscode",
        title="VS Code",
        places=(*_application("Code/User", "mcp.json"), ConfigPlace("project", ".vscode/mcp.json")),
        root=("servers",),
        shape="vscode",
        http_type="http",
        stdio_type="stdio",
        expands="${env:VAR}",
    ),
    ClientProgram(
        name="copilot-cli",
        title="Copilot CLI",
        places=(ConfigPlace("copilot", "mcp-config.json"),),
        http_type="http",
        stdio_type="local",
        expands="${VAR}",
    ),
    ClientProgram(
        name="windsurf",
        title="Windsurf",
        places=(ConfigPlace("home", ".codeium/windsurf/mcp_config.json"),),
        url_key="serverUrl",
        expands="${env:VAR}",
    ),
    ClientProgram(
        name="antigravity",
        title="Antigravity",
        places=(ConfigPlace("home", ".gemini/antigravity/mcp_config.json"),),
        url_key="serverUrl",
    ),
    ClientProgram(
        name="gemini-cli",
        title="Gemini CLI",
        places=_home_and_project(".gemini/settings.json"),
        shape="gemini",
        url_key="httpUrl",
        expands="${VAR}",
    ),
    ClientProgram(
        name="codex",
        title="Codex",
        places=(ConfigPlace("codex", "config.toml"), ConfigPlace("project", ".codex/config.toml")),
        form="toml",
        root=("mcp_servers",),
        shape="codex",
    ),
    ClientProgram(
        name="cline",
        title="Cline",
        places=_extension("saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
        http_type="streamableHttp",
    ),
    ClientProgram(
        name="roo",
        title="Roo Code",
        places=_extension("rooveterinaryinc.roo-cline/settings/mcp_settings.json"),
        http_type="streamable-http",
        expands="${env:VAR}",
    ),
    ClientProgram(
        name="zed",
        title="Zed",
        places=(
            ConfigPlace("xdg", "zed/settings.json"),
            _windows("Zed/settings.json"),
            ConfigPlace("project", ".zed/settings.json"),
        ),
        root=("context_servers",),
    ),
    ClientProgram(
        name="opencode",
        title="opencode",
        places=(
            ConfigPlace("xdg", "opencode/opencode.json"),
            ConfigPlace("xdg", "opencode/opencode.jsonc"),
            ConfigPlace("project", "opencode.json"),
        ),
        root=("mcp",),
        shape="opencode",
        http_type="remote",
        stdio_type="local",
        expands="{env:VAR}",
    ),
    ClientProgram(
        name="goose",
        title="Goose",
        places=(
            ConfigPlace("xdg", "goose/config.yaml", ("linux", "darwin")),
            _windows("Block/goose/config/config.yaml"),
        ),
        form="yaml",
        root=("extensions",),
        shape="goose",
        url_key="uri",
        http_type="streamable_http",
        stdio_type="stdio",
    ),
    ClientProgram(
        name="continue",
        title="Continue",
        places=(ConfigPlace("home", ".continue/config.yaml"),),
        form="yaml",
        shape="continue",
        http_type="streamable-http",
        stdio_type="stdio",
    ),
    ClientProgram(
        name="lm-studio",
        title="LM Studio",
        places=(ConfigPlace("home", ".lmstudio/mcp.json"), ConfigPlace("home", ".cache/lm-studio/mcp.json")),
    ),
    ClientProgram(name="kiro", title="Kiro", places=_home_and_project(".kiro/settings/mcp.json"), expands="${VAR}"),
    ClientProgram(name="amazon-q", title="Amazon Q", places=(ConfigPlace("home", ".aws/amazonq/mcp.json"),)),
    ClientProgram(
        name="crush",
        title="Crush",
        places=(
            ConfigPlace("xdg", "crush/crush.json", ("linux", "darwin")),
            ConfigPlace("localappdata", "crush/crush.json", ("win32",)),
            ConfigPlace("project", ".crush.json"),
        ),
        root=("mcp",),
        http_type="http",
        stdio_type="stdio",
        expands="$VAR",
    ),
    ClientProgram(
        name="mcporter",
        title="MCPorter",
        places=(
            ConfigPlace("home", ".mcporter/mcporter.json"),
            ConfigPlace("home", ".mcporter/mcporter.jsonc"),
            ConfigPlace("project", "config/mcporter.json"),
        ),
        expands="${VAR}",
    ),
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

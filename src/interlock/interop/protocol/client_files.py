"""Entries of clients' configuration files: read for an import, and written for an export.

`read_client_file` returns a `FileReading`, or raises UnreadableFile and nothing else (AIP-import-2, -3, -10).

Clients write the same settings in many ways. Each entry is read in three steps, whichever client wrote it: how the
server is started or reached (`_read_reach`), then its limits and approvals (`_take_limits`), then notes about settings
that are not imported. Reading a field removes it from `Fields`, so that the remaining fields can be reported. An entry
that contradicts itself is refused. A setting that would relax an approval is ignored, with a note.

`stdio_entry`, `http_entry` and `with_token` write an entry in the format of a client (AIP-export-1). `driver_entry`
lets a client start or dial the server of a driver directly, without Interlock (AIP-export-2). Secrets become variables
of the client's environment, in the client's notation. A client that does not expand variables gets no such entry, and
runs the driver through Interlock instead.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from interlock.drivers.protocol.files.inventory import secret_for
from interlock.drivers.protocol.files.plaintext import SECRET
from interlock.drivers.protocol.kinds import LocalServer, RemoteServer
from interlock.drivers.protocol.model import Driver, SecretInventory
from interlock.interop.protocol.clients import ClientProgram
from interlock.interop.protocol.model import (
    ENTRIES_MAX,
    FileReading,
    ImportNote,
    PersonInput,
    ServerEntry,
    Style,
    Transport,
    without_empty,
)
from interlock.interop.protocol.text_edits import UnreadableFile, is_server_group, read_data
from interlock.wire.jsontext.canonical import quoted

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
KEYS_TOLD_MAX: Final = 8
TIMEOUT_MS_MIN: Final = 100
TIMEOUT_MS_MAX: Final = 24 * 3600 * 1000


class Fields:
    """The fields of an entry in a client's file. It records which fields were read, so that the others
    can be reported.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self._left = {str(key): value for key, value in raw.items()}

    def take(self, *keys: str) -> Any:
        """Return the value of the first of these fields that is present, or None. All of these fields count as read."""
        values = [self._left.pop(key) for key in keys if key in self._left]
        return values[0] if values else None

    def put(self, key: str, value: Any) -> None:
        """Add a field that the client's file contains inside another field. Do nothing if the value is None."""
        if value is not None:
            self._left.setdefault(key, value)

    def rest(self) -> tuple[str, ...]:
        """Return the names of the first unread fields that have a value, in quotes."""
        unused = [key for key, value in self._left.items() if value not in (None, "", [], {})]
        return tuple(quoted(key) for key in sorted(unused)[:KEYS_TOLD_MAX])


def text(value: Any) -> str | None:
    """Return the value if it is a text without control characters, otherwise None."""
    return value if isinstance(value, str) and not _CONTROL.search(value) else None


def section(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping in this field. It is empty if the field is absent or is no mapping."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def texts(value: Any) -> dict[str, str]:
    """Return a mapping of names to texts. Numbers and booleans are written as in a shell, and nulls are left out."""
    result = {}
    for name, each in value.items() if isinstance(value, Mapping) else ():
        if isinstance(each, bool):
            each = "true" if each else "false"
        elif isinstance(each, int | float):
            each = str(each)
        if text(each) is not None and text(name):
            result[name] = each
    return result


def names(value: Any) -> tuple[str, ...]:
    """Return the texts in a list. Numbers are converted to text, and other values are left out."""
    if not isinstance(value, list | tuple):
        return ()
    numbers_as_text = (str(each) if type(each) in (int, float) else text(each) for each in value)
    return tuple(each for each in numbers_as_text if each is not None)


def milliseconds(value: Any, unit_ms: int) -> int | None:
    """Return a timeout in milliseconds, moved into the range from TIMEOUT_MS_MIN to TIMEOUT_MS_MAX. Return None if the
    value is not a positive number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return int(min(max(value * unit_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX))


TYPES: Final[dict[str, Transport]] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamablehttp": "http",
    "streamable_http": "http",
    "remote": "http",
    "sse": "sse",
}
URL_KEYS: Final = ("url", "serverUrl", "httpUrl", "uri")
HELPERS: Final = ("headersHelper", "commandFunction")  # code or commands that would have to be run
# Keys that let calls pass without being asked about. They are never carried over.
RELAXING: Final = ("trust", "alwaysAllow", "autoApprove")
# Types of entries that are part of the client itself.
BUILT_IN: Final = frozenset({"builtin", "platform", "frontend", "inline_python"})
# Keys that are left out without a note.
SILENT: Final = frozenset(
    {"name", "display_name", "description", "alwaysLoad", "bundled", "source", "dev", "$schema", "enabled", "disabled"}
)

_STYLES: Final[dict[str, Style]] = {"gemini": "gemini", "opencode": "opencode", "continue": "continue"}


def read_client_file(data_untrusted: bytes, client: ClientProgram) -> FileReading:
    """Read the configuration file of a client and return its entries. Raise UnreadableFile if it cannot be read."""
    data = read_data(data_untrusted, client.form)
    if not isinstance(data, Mapping):
        raise UnreadableFile("it holds no fields")
    notes: list[ImportNote] = []
    entries: list[ServerEntry] = []
    written = data.get("inputs")
    inputs = {
        input_id: PersonInput(
            description=text(each.get("description")) or "",
            secret=each.get("password") is True,
            default=text(each.get("default")),
        )
        for each in (written if isinstance(written, list) else ())
        if isinstance(each, Mapping) and (input_id := text(each.get("id"))) is not None
    }
    for index, (name, raw, project) in enumerate(_raw_entries(data, client, notes)):
        if index >= ENTRIES_MAX:
            notes.append(ImportNote(code="too_many", text=f"only the first {ENTRIES_MAX} servers are read"))
            break
        entries.append(_entry(name, raw, project, client, inputs))
    return FileReading(entries=tuple(entries), notes=tuple(notes))


def _raw_entries(
    data: Mapping[str, Any], client: ClientProgram, notes: list[ImportNote]
) -> Iterator[tuple[str, Any, str | None]]:
    """Yield the name and the value of each server in a client's file, with the project folder to which it belongs, or
    None.
    """
    root = _at(data, client.root)
    if client.shape == "vscode" and root is None:
        root = _at(data, ("mcp", "servers"))
        if root is None and (root := data.get("mcpServers")) is not None:
            notes.append(ImportNote(code="root_key", text="VS Code itself reads servers, not mcpServers, in this file"))
    if client.shape == "opencode" and isinstance(root, Mapping) and is_server_group(root.get("servers")):
        root = root["servers"]
    if isinstance(root, list):
        for each in root:
            named = text(each.get("name")) if isinstance(each, Mapping) else None
            if named is None:
                notes.append(ImportNote(code="nameless", text="a server without a name is left out"))
            else:
                yield named, each, None
    elif isinstance(root, Mapping):
        yield from ((str(name), raw, None) for name, raw in root.items())
    elif root is not None:
        notes.append(ImportNote(code="root_key", text=f"{'.'.join(client.root)} holds no servers"))
    if client.name == "claude-code":
        for folder in (projects := section(data, "projects")):
            servers = section(section(projects, folder), "mcpServers")
            yield from ((str(name), raw, str(folder)) for name, raw in servers.items())


def _at(data: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = data
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _entry(
    name: str, raw: Any, project: str | None, client: ClientProgram, inputs: Mapping[str, PersonInput]
) -> ServerEntry:
    if not isinstance(raw, Mapping):
        return ServerEntry(name=name).refuse("malformed", "it is not written as keys and values")
    fields = Fields(raw)
    entry = _read_reach(name, fields, client)
    for key in SILENT:
        fields.take(key)
    entry = _take_limits(entry, fields, client)
    notes = list(entry.notes)
    for key in HELPERS:
        if fields.take(key) is not None:
            notes.append(ImportNote(code="helper_not_run", text=f"{key} is code to run and is not imported"))
    if rest := fields.rest():
        notes.append(ImportNote(code="key_ignored", text=f"not carried over: {', '.join(rest)}"))
    disabled = None
    if raw.get("bundled") is True:
        disabled = "the client brings it itself"
    elif raw.get("disabled") is True or raw.get("enabled") is False:
        disabled = "it is disabled there"
    return msgspec.structs.replace(
        entry,
        style=_STYLES.get(client.shape, "gemini" if client.name == "crush" else "common"),
        project=project,
        inputs=inputs,
        disabled=disabled,
        notes=tuple(notes),
    )


def _read_reach(name: str, fields: Fields, client: ClientProgram) -> ServerEntry:
    """Return an entry with the command that starts the server or the address at which it is reached. If these fields
    contradict each other, the entry is marked as refused.
    """
    kind = text(fields.take("type", "transport", "transportType"))
    program = _take_command(fields)
    addresses = [(key, address) for key in URL_KEYS if (address := text(fields.take(key))) is not None]
    env = fields.take("env", "environment", "envs")
    headers = texts(fields.take("headers", "http_headers"))
    options = fields.take("requestOptions")
    headers |= texts(options.get("headers")) if isinstance(options, Mapping) else {}
    entry = ServerEntry(
        name=name,
        title=text(fields.raw.get("display_name")) or text(fields.raw.get("name")),
        description=text(fields.raw.get("description")),
        command=program,
        env=texts(env),
        env_file=text(fields.take("envFile", "env_file")),
        env_unset=names(fields.take("env_keys")),
        cwd=text(fields.take("cwd", "workingDirectory", "working_dir")),
        headers=headers,
    )
    if kind is not None and kind in BUILT_IN:
        return entry.refuse("built_in", f"it is part of {client.title} itself")
    if program and addresses:
        return entry.refuse("ambiguous", "it has both a command and a url; remove one of the two")
    if not program and not addresses:
        if fields.raw.get("source") == "extension" or "settings" in fields.raw:
            return entry.refuse("built_in", "an extension brings it, and the file does not say how")
        return entry.refuse("nothing_to_start", "it has neither a command nor a url")
    if len(addresses) > 1:
        return entry.refuse("ambiguous", f"it has {' and '.join(key for key, _ in addresses)}; keep one")
    gemini_sse = client.shape == "gemini" and bool(addresses) and addresses[0][0] == "url"
    usual: Transport = "stdio" if program else "sse" if gemini_sse else "http"
    transport = usual if kind is None else TYPES.get(kind.lower())
    if transport is None:
        return entry.refuse("transport_unknown", "its type is none that is known")
    if (transport == "stdio") != bool(program):
        return entry.refuse("ambiguous", "its type does not fit its command or url")
    entry = msgspec.structs.replace(entry, transport=transport, url=addresses[0][1] if addresses else None)
    entry = _take_codex_fields(entry, fields) if client.shape == "codex" else entry
    return _take_oauth(entry, fields)


def _take_command(fields: Fields) -> tuple[str, ...]:
    command = fields.take("command", "cmd")
    args = fields.take("args")
    if isinstance(command, Mapping):  # Zed, as it was
        fields.put("env", command.get("env"))
        args = command.get("args") if args is None else args
        command = command.get("path")
    if isinstance(command, list):
        return (*names(command), *names(args))
    program = text(command)
    if not program or not program.strip():
        return ()
    return (program, *names(args))


def _take_codex_fields(entry: ServerEntry, fields: Fields) -> ServerEntry:
    headers = dict(entry.headers)
    variable = text(fields.take("bearer_token_env_var"))
    if variable is not None:
        headers["Authorization"] = f"Bearer ${{{variable}}}"
    headers |= {name: f"${{{variable}}}" for name, variable in texts(fields.take("env_http_headers")).items()}
    passed = []
    written = fields.take("env_vars")
    for each in written if isinstance(written, list) else ():
        named = text(each.get("name")) if isinstance(each, Mapping) else text(each)
        passed += [named] if named else []
    return msgspec.structs.replace(entry, headers=headers, env_passed=tuple(passed))


def _take_oauth(entry: ServerEntry, fields: Fields) -> ServerEntry:
    block = fields.take("oauth", "auth")
    if not isinstance(block, Mapping) or entry.url is None:
        return entry
    values = Fields(block)
    client_id = text(values.take("clientId", "client_id", "CLIENT_ID"))
    secret = text(values.take("clientSecret", "client_secret", "CLIENT_SECRET"))
    scopes = block.get("scopes", block.get("scope"))
    wanted = scopes.split() if isinstance(scopes, str) else list(names(scopes))
    auth = without_empty({"type": "oauth", "client_id": client_id, "scopes": wanted})
    return msgspec.structs.replace(entry, auth=auth, client_secret=secret)


def _take_limits(entry: ServerEntry, fields: Fields, client: ClientProgram) -> ServerEntry:
    connect, call = _take_timeouts(fields, client)
    notes = list(entry.notes)
    asks_tools: list[str] = []
    asks = False
    tools = fields.take("tools")
    only = names(fields.take("enabled_tools", "includeTools", "available_tools"))
    if isinstance(tools, Mapping):
        for tool in tools:
            mode = text(section(tools, tool).get("approval_mode"))
            if mode == "prompt":
                asks_tools.append(str(tool))
            elif mode == "approve":
                notes.append(_relaxed_note(f"tools.{tool}.approval_mode"))
    elif (listed := names(tools)) and listed != ("*",):
        only = (*only, *listed)
    mode = text(fields.take("default_tools_approval_mode"))
    if mode == "prompt":
        asks = True
    elif mode == "approve":
        notes.append(_relaxed_note("default_tools_approval_mode"))
    for key in RELAXING:
        if fields.take(key) not in (None, False, []):
            notes.append(_relaxed_note(key))
    # The hosts that the source allows, in the format of VS Code's sandbox or Docker.
    fields.take("sandboxEnabled")
    sandbox = section(section({"sandbox": fields.take("sandbox")}, "sandbox"), "network")
    network_is_off = fields.take("disableNetwork") is True
    hosts = sandbox.get("allowedDomains", fields.take("allowHosts"))
    egress = host_names(names(hosts)) if isinstance(hosts, list) else None
    return msgspec.structs.replace(
        entry,
        connect_timeout_ms=connect,
        call_timeout_ms=call,
        only_tools=only or None,
        without_tools=names(fields.take("disabled_tools", "excludeTools", "disabledTools")),
        asks=asks,
        asks_tools=tuple(asks_tools),
        egress=() if network_is_off else egress,
        notes=tuple(notes),
    )


def _relaxed_note(key: str) -> ImportNote:
    return ImportNote(code="approval_ignored", text=f"{key} is not carried over: calls are asked about as here")


def _take_timeouts(fields: Fields, client: ClientProgram) -> tuple[int | None, int | None]:
    """Return the timeouts for connecting and for a call, in milliseconds. Each is None if it is not set."""
    startup = milliseconds(fields.take("startup_timeout_sec"), 1000)
    startup = startup or milliseconds(fields.take("startup_timeout_ms"), 1)
    call = milliseconds(fields.take("tool_timeout_sec"), 1000)
    written = fields.take("timeout")
    if isinstance(written, Mapping):  # opencode v2
        return milliseconds(written.get("startup"), 1), milliseconds(written.get("request"), 1)
    if client.shape == "opencode":
        return milliseconds(written, 1), call
    unit = 1000 if client.name in {"goose", "cline", "roo", "crush"} else 1
    return startup, call or milliseconds(written, unit)


def host_names(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the hosts without their ports, because an allow list contains only hosts."""
    return tuple(dict.fromkeys(host.rpartition(":")[0] or host for host in hosts))


GOOSE_TIMEOUT_S = 300  # the default of Goose, which Goose writes to its files


def stdio_entry(client: ClientProgram, name: str, command: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Return an entry with which a client starts the server as a program."""
    program, *args = command
    fields: dict[str, Any] = {"command": program, "args": args, **without_empty({"env": dict(env)})}
    if client.shape == "opencode":
        fields = {"command": [program, *args], **without_empty({"environment": dict(env)})}
    elif client.shape == "goose":
        fields = {"cmd": program, "args": args, **without_empty({"envs": dict(env)})}
    return _with_common_fields(client, name, client.stdio_type, fields)


def with_token(client: ClientProgram, name: str, url: str, variable: str) -> dict[str, Any] | None:
    """Return an entry that sends a bearer token, which the client reads from a variable of its environment.

    Return None if the client does not expand variables, because the token itself would have to be in the file, or if
    it cannot connect to a URL.
    """
    if client.shape == "codex":
        return {"url": url, "bearer_token_env_var": variable}
    if client.expands is None or client.stdio_only:
        return None
    return http_entry(client, name, url, {"Authorization": f"Bearer {client.expands.replace('VAR', variable)}"})


def http_entry(
    client: ClientProgram, name: str, url: str, headers: Mapping[str, str], *, sse: bool = False
) -> dict[str, Any]:
    """Return an entry with which a client connects to a URL. The client must not be `stdio_only`."""
    http_type = "sse" if sse and client.http_type is not None and client.shape != "opencode" else client.http_type
    key = "url" if sse and client.shape == "gemini" else client.url_key
    sent = without_empty({"http_headers" if client.shape == "codex" else "headers": dict(headers)})
    if client.shape == "continue":
        sent = without_empty({"requestOptions": sent})
    return _with_common_fields(client, name, http_type, {key: url, **sent})


def _with_common_fields(
    client: ClientProgram, name: str, kind: str | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an entry with the type and the other fields that every entry of this client has."""
    entry = {**({"type": kind} if kind is not None else {}), **fields}
    match client.shape:
        case "opencode":
            return {**entry, "enabled": True}
        case "goose":
            return {"name": name, **entry, "enabled": True, "timeout": GOOSE_TIMEOUT_S}
        case "continue":
            return {"name": name, **entry}
    around = {"source": "custom"} if client.name == "zed" else {}
    return {**around, **entry, **({"tools": ["*"]} if client.name == "copilot-cli" else {})}


_ENVIRONMENT = "env://"


def driver_entry(
    driver: Driver, secrets: SecretInventory | None, client: ClientProgram, name: str
) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Return the entry with which a client runs a driver, and the variables of the client's environment that it needs.

    Return None if the file would contain a secret, the client cannot connect to the URL or log in there, or the driver
    sets defaults for variables of the environment, which an entry cannot express.
    """
    if driver.secret_names and client.expands is None:  # AIP-export-2
        return None
    if isinstance(driver.server, RemoteServer) and (client.stdio_only or driver.server.auth is not None):
        return None
    if driver.sandbox is not None and driver.sandbox.env is not None and driver.sandbox.env.set:
        return None  # an entry has no place for defaults
    variables = {}
    for secret_name in driver.secret_names:
        secret = secret_for(secret_name, driver.id, secrets, ())
        backend = (secret.backend if secret is not None else None) or ""
        is_variable = backend.startswith(_ENVIRONMENT)
        variables[secret_name] = backend.removeprefix(_ENVIRONMENT) if is_variable else secret_name
    spelling = client.expands or ""

    def filled(text: str) -> str:
        return SECRET.sub(lambda match: spelling.replace("VAR", variables[match[1]]), text)

    server = driver.server
    if isinstance(server, RemoteServer):
        url = server.url
        if server.query:
            # A placeholder is for the client to fill in and stays as it is written.
            pairs = "&".join(f"{urlencode({key: ''})}{filled(value)}" for key, value in server.query.items())
            url += ("&" if "?" in url else "?") + pairs
        headers = {key: filled(value) for key, value in server.headers.items()}
        entry = http_entry(client, name, url, headers, sse=driver.transport == "sse")
    elif isinstance(server, LocalServer):
        env = {key: filled(value) for key, value in server.env.items()}
        command = server.client_command([filled(each) for each in server.args], list(env))
        entry = stdio_entry(client, name, command, env)
    else:
        raise TypeError(f"a server of kind {server.kind} is neither dialled nor started")
    return entry, tuple(dict.fromkeys(variables.values()))

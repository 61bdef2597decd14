"""DRIVER.md of kind mcp: turns the bytes of the file into a Driver, or into the problems of the file.

`read_driver` works in stages and stops after the first stage that finds an error:

1. Read the frontmatter. If it has no inline server block, use server.json instead (AIP-file-5).
2. Apply the schemas of AIP-30 and AIP-32 to the same data, in this order (AIP-compat-1).
3. Convert the server block and every other field to the values of `model`.
4. Check in `_check_driver` what no schema can express: conflicting fields, ranges, patterns, commands, paths.

A valid driver of another kind is refused as kind_unsupported, without affecting other drivers. This module does not
check whether the files and contracts that a driver names exist; `interlock.drivers.workspace` does.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.files.frontmatter import Frontmatter, read_frontmatter
from interlock.drivers.protocol.files.schemas import DRIVER_SCHEMA, EXTENSION_KEYS, MCP_SCHEMA, check_schema
from interlock.drivers.protocol.files.server_block import read_server, secrets_taken, server_from_json
from interlock.drivers.protocol.files.versions import PROTOCOL_VERSIONS, is_range, protocol_version
from interlock.drivers.protocol.kinds import SERVERS, BlockContext
from interlock.drivers.protocol.model import KINDS, Driver, Extensions, ToolBinding
from interlock.drivers.protocol.problems import FileFindings, FileProblem, ParsedFile, Places, Severity
from interlock.drivers.protocol.result_path import PathFault, read_path, read_pattern
from interlock.net.protocol.egress import ENTRY as EGRESS_ENTRY
from interlock.net.protocol.egress import permits, port_of
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.budget import PATTERN_CHARS_MAX

DRIVER_FILE: Final = "DRIVER.md"
ENTRY: Final = "driver.py"
LIMITS: Final = ("memory_mb", "cpu_ms")  # of a runner
INSTALL_NEEDS: Final[dict[str, tuple[str, ...]]] = {  # AIP-29, and docker, which is ours
    **dict.fromkeys(("brew", "apt", "dnf", "pacman", "choco", "scoop", "npm", "pip", "cargo", "go"), ("package",)),
    "curl": ("url",),
    "download": ("url", "extract_bin"),
    "vendored": ("path",),
    "docker": ("image",),
}

_KNOWN_TOP: Final = frozenset(DRIVER_SCHEMA["properties"]) | frozenset(MCP_SCHEMA["properties"]) | {"spec", "schema"}
_ORDER: Final = {"error": 0, "warning": 1, "note": 2}
_SHELL = re.compile(r"[;&|<>`$\n\r(){}*?!#~\\]")


def read_driver(
    data_untrusted: bytes,
    file: str,
    *,
    folder: str | None = None,
    beside: Collection[str] = (),
    server_json: bytes | None = None,
    insecure_hosts: Collection[str] = (),
) -> ParsedFile[Driver]:
    """Parse a DRIVER.md, and check everything that can be checked without starting its server.

    `file` is the name used in problems. `folder` is the name of the driver's folder, or None if it has none yet,
    `beside` the names of the other files in the folder, and `server_json` the content of its server.json.
    """
    reading = read_frontmatter(data_untrusted, file)
    if reading.value is None:
        return ParsedFile(problems=reading.problems)
    front = reading.value
    findings = FileFindings(front.places)
    if server_json is not None:
        if "server" in front.data:  # AIP-file-5: both are there
            message = "the server block of this file is used and server.json is not"
            findings.add("/server", "server_json_ignored", message, "remove one of the two", "warning")
        elif (server := server_from_json(server_json, front.data.get("transport"), findings)) is not None:
            front = Frontmatter(data={**front.data, "server": server}, places=front.places)
    # AIP-compat-1: both schemas, in this order
    refused = check_schema(front, "AIP-30")
    kind = front.data.get("kind")
    if kind == "mcp" or kind not in KINDS:  # AIP-30.front-2
        # AIP-compat-1, AIP-front-2, AIP-front-9
        refused += check_schema(front, "AIP-32")
    findings.problems += (_with_better_hint(each, front.data) for each in _without_repeats(refused))
    driver = None
    if not findings.refused and kind != "mcp":  # AIP-30.front-2
        message = f"drivers of kind {kind} are not run here"
        findings.add("/kind", "kind_unsupported", message, "use a driver of kind mcp, or another host for this one")
    elif not findings.refused:
        _check_surroundings(front, folder, beside, findings)
        driver = _convert(front, findings, insecure_hosts)
        if driver is not None:
            _check_driver(driver, findings)
    problems = tuple(sorted(findings.problems, key=lambda each: _ORDER[each.severity]))
    return ParsedFile(value=None if findings.refused else driver, problems=problems)


def check_published(data_untrusted: bytes, file: str) -> tuple[FileProblem, ...]:
    """Check a DRIVER.md only against the published schemas, as other hosts do (AIP-compat-1).

    Return the problems that a host without Interlock's extensions would report.
    """
    reading = read_frontmatter(data_untrusted, file)
    if reading.value is None:
        return reading.problems
    first = check_schema(reading.value, "AIP-30")
    return _without_repeats((*first, *check_schema(reading.value, "AIP-32", published=True)))


def _without_repeats(problems: tuple[FileProblem, ...]) -> tuple[FileProblem, ...]:
    """Keep only the first problem of each field, because two schemas may report the same field."""
    first: dict[str, FileProblem] = {}
    for each in problems:
        first.setdefault(each.field, each)  # AIP-compat-1
    return tuple(first.values())


def _with_better_hint(problem: FileProblem, data: Mapping[str, Any]) -> FileProblem:
    """Give a problem a better hint if it comes from a common mistake.

    The mistakes are those of AIP-front-3, -9 and -10, AIP-server-9 and AIP-compat-1.
    """
    field = problem.field
    hint = message = None
    if field == "/version" and isinstance(data.get("version"), int | float):  # AIP-front-10: three parts
        hint = "write three parts: 1.0.0"
    # AIP-front-3: the two other spellings
    elif field == "/transport" and str(data.get("transport")).replace("_", "-") == "streamable-http":
        hint = "write http, which is Streamable HTTP"
    elif field == "/server" and ("server_ref" in data or "mcp_tools" in data):  # AIP-compat-1: the older form
        hint = "the older server_ref and mcp_tools became server and implements[].metadata.mcp.tool_name"
    elif field == "/server" and "server" not in data:
        hint = "add server with kind and what it needs, or a server.json beside this file"
    elif field == "/server/kind":  # AIP-server-9
        hint = f"write one of {', '.join(SERVERS)}"
    elif field.startswith("/server/"):  # AIP-server-9; with another kind, nothing but the kind is wrong
        kind = data["server"]["kind"]
        hint = f"kind {kind} takes {', '.join(SERVERS[kind].keys)}; the first of them is required"
    elif field.startswith("/implements/") and "/metadata" in field and problem.message.endswith("is missing"):
        # Only the entry of a list has a field below it, so the list has an entry of this index.
        entry = data["implements"][int(field.split("/")[2])]
        if isinstance(entry, Mapping) and isinstance(entry.get("tool"), str):  # AIP-front-9: the entry is named
            message = f"{problem.message} in the entry for {quoted(entry['tool'])}"
            hint = "name the server's tool in metadata.mcp.tool_name"
    return msgspec.structs.replace(problem, message=message or problem.message, hint=hint or problem.hint)


def _check_surroundings(
    front: Frontmatter, folder: str | None, beside: Collection[str], findings: FileFindings
) -> None:
    """Check a driver's id against its folder (AIP-file-2 to -4), and report keys that Interlock does not read."""
    identifier = front.data["id"]
    if folder is not None and folder != identifier:  # AIP-file-2
        message = f"the folder is {quoted(folder)} and the id {quoted(identifier)}"
        findings.add("/id", "folder_name", message, "give both the same name", "warning")
    if not identifier.endswith("-mcp"):  # AIP-file-3
        findings.add("/id", "id_suffix", "the id does not end with -mcp", f"write {identifier}-mcp", "warning")
    foreign = next((name for name in ("driver.ts", "driver.js", "driver.mjs") if name in beside), None)
    if foreign is not None and ENTRY not in beside:  # AIP-file-4
        findings.add("", "entry_not_run", f"{foreign} is not run here", f"write the hooks in {ENTRY}", "warning")
    for key in front.data:
        if key not in _KNOWN_TOP:  # AIP-30.front-4: an unknown key
            message = f"the key {quoted(key)} is not read here"
            findings.add(f"/{pointer_step(key)}", "unknown_key", message, "fix it if it is one of ours", "note")


def _convert(front: Frontmatter, findings: FileFindings, insecure_hosts: Collection[str]) -> Driver | None:
    """Convert frontmatter that has passed the schemas to a Driver. Return None if a value is invalid.

    Every field has the type that `Driver` declares for it. Keys of the file that are not fields of `Driver` are
    ignored. A field that the file does not contain takes its default.
    """
    data = front.data
    try:
        extensions = msgspec.convert(data.get("metadata", {}).get("interlock", {}), Extensions)
        context = BlockContext(transport=data["transport"], findings=findings, insecure_hosts=insecure_hosts)
        server = read_server(data["server"], extensions, context)
        if server is None:
            return None
        # The keys of the file that AIP-32 does not define. `EXTENSION_KEYS` has the order of the documentation.
        extension_keys = {f"server.{key}" for key in data["server"]} | ({"sandbox"} & data.keys())
        extension_keys |= {f"metadata.interlock.{key}" for key in data.get("metadata", {}).get("interlock", {})}
        for entry in data["implements"]:
            own_keys = entry["metadata"].get("interlock", {})
            extension_keys |= {f"implements[].metadata.interlock.{key}" for key in own_keys}
        fields = {
            **data,
            "protocol_version": _read_protocol_version(data, findings),
            "implements": [
                # The blocks metadata.mcp and metadata.interlock hold fields of the binding under their own names.
                {**entry, **entry["metadata"]["mcp"], **entry["metadata"].get("interlock", {}), "index": index}
                for index, entry in enumerate(data["implements"])
            ],
            "install": [
                {"method": entry["method"], "options": {key: value for key, value in entry.items() if key != "method"}}
                for entry in data.get("install", [])
            ],
            "interlock": extensions,
            "secret_names": secrets_taken(data["server"]),
            "extension_keys": tuple(key for key in EXTENSION_KEYS if key in extension_keys),  # AIP-front-11
            "places": front.places,
        }
        converted = {
            field.name: msgspec.convert(fields[field.encode_name], field.type)
            for field in msgspec.structs.fields(Driver)
            if field.encode_name in fields and field.name != "server"
        }
        return Driver(server=server, **converted)
    except (msgspec.ValidationError, ValueError):
        # The schemas are closed over everything converted here; a gap between the two is refused, not raised.
        findings.add_invalid("", "a value has the wrong form", "compare the file with the documentation")
        return None


def _read_protocol_version(data: Mapping[str, Any], findings: FileFindings) -> str | None:
    """Return the supported MCP version that the file names, or None for the latest."""
    written = data.get("protocol_version")
    if written is None:
        return None
    version = protocol_version(written)
    if version is None:  # AIP-proto-2
        message = f"{quoted(written)} is no MCP version, so the latest is targeted"
        hint = "write one like 2025-11-25, or leave it out"
        findings.add("/protocol_version", "protocol_version_unknown", message, hint, "warning")
    elif version != written:  # AIP-proto-2
        message = f"{quoted(written)} is read as {version}"
        findings.add("/protocol_version", "protocol_version_partial", message, f"write {version}", "warning")
    return version


def _check_driver(driver: Driver, findings: FileFindings) -> None:
    """Check the rules for a driver that no JSON Schema can express."""
    if driver.transport == "sse":  # AIP-transport-9
        message = "MCP has given up HTTP+SSE; Streamable HTTP carries both directions"
        hint = "write transport: http when the server offers it"
        findings.add("/transport", "transport_deprecated", message, hint, "note")
    refresh = driver.auth.refresh if driver.auth is not None else None
    for pointer, repeated in (("/auth/refresh", refresh), ("/health_check", driver.health_check)):
        if repeated is not None and repeated.every is not None and repeated.every_s is None:  # AIP-30.health-1
            message, hint = "this is no ISO 8601 duration", "write one like PT5M or P1D"
            findings.add_invalid(f"{pointer}/every", message, hint)
    contracts: dict[str, int] = {}
    for binding in driver.implements:
        _check_binding(driver, binding, contracts, findings)
    for index, prompt in enumerate(driver.prompts):
        # AIP-prompts-3
        if prompt.integrate_as == "skill_block" and (not prompt.skill_ref or escapes(prompt.skill_ref)):
            message, hint = "a skill_block names the SKILL.md it belongs to", "add skill_ref: ./skills/NAME/SKILL.md"
            findings.add(f"/prompts/{index}/skill_ref", "skill_ref_invalid", message, hint)
    for index, resource in enumerate(driver.resources):
        if resource.integrate_as == "ref_kind" and resource.ref_kind_id is None:  # AIP-resources-2
            pointer = f"/resources/{index}/ref_kind_id"
            findings.add_invalid(pointer, "ref_kind_id is missing", "add ref_kind_id: my_files")
    for index, version in enumerate(driver.interlock.protocol_versions):
        if version not in PROTOCOL_VERSIONS:  # AIP-proto-5
            pointer = f"/metadata/interlock/protocol_versions/{index}"
            hint = f"write one of {', '.join(PROTOCOL_VERSIONS)}"
            findings.add_invalid(pointer, f"{quoted(version)} is no MCP version", hint)
    if "roots" in driver.interlock.client_capabilities and driver.interlock.isolation != "user":
        message = "roots are one user's, and this server is shared"
        hint = "add isolation: user, or remove roots"
        findings.add_invalid("/metadata/interlock/client_capabilities", message, hint)
    _check_install(driver, findings)
    if (check := driver.version_check) is not None:  # AIP-30.version-1
        _check_command("/version_check/cmd", check.cmd, findings)
        if not is_range(check.range):  # AIP-30.version-1
            message, hint = "this is not a range of versions", "write one like >=2.40 <3"
            findings.add("/version_check/range", "range_invalid", message, hint)
        try:
            has_group = len(check.parse) <= PATTERN_CHARS_MAX and re.compile(check.parse).groups >= 1
        except (re.error, OverflowError, RecursionError):
            has_group = False
        if not has_group:  # AIP-30.version-1
            message, hint = "this is no pattern with a group", "put the version in parentheses: v(\\S+)"
            findings.add("/version_check/parse", "pattern_invalid", message, hint)
    if (health := driver.health_check) is not None:
        if health.method == "exec" and health.cmd is None:
            findings.add_invalid("/health_check/cmd", "cmd is missing", "add the command to run")
        elif health.method == "exec" and health.cmd is not None:
            _check_command("/health_check/cmd", health.cmd, findings)
        if health.method == "http" and health.http is None:
            findings.add_invalid("/health_check/http", "http is missing", "add http: {method: GET, url: …}")
    _check_auth(driver, findings)
    if isinstance(driver.runner, str):
        if escapes(driver.runner):
            findings.add("/runner", "path_escape", "the runner's path leaves the folder", "write ./RUNNER.md")
    elif driver.runner is not None:
        for pointer, message, hint in runner_faults(driver.runner):
            findings.add_invalid(f"/runner{pointer}", message, hint)
    _check_egress(driver, findings)


def _check_binding(driver: Driver, binding: ToolBinding, contracts: dict[str, int], findings: FileFindings) -> None:
    """Check one entry of implements[] (AIP-30.implements-2 and -3).

    `contracts` maps the contracts that earlier entries bind to the indexes of these entries.
    """
    findings.problems += check_reading(driver.places, binding)
    pointer = f"{binding.pointer}/tool"
    if escapes(binding.tool):  # AIP-30.implements-2
        message = "the contract's path leaves the workspace"
        findings.add(pointer, "path_escape", message, "write a path below the workspace")
    elif not binding.tool:
        findings.add_invalid(pointer, "this is empty", "name a TOOL.md or a contract's id")
    contract = "/".join(part for part in binding.tool.split("/") if part not in {"", "."})
    if contract in contracts:  # AIP-30.implements-2
        message = f"entries {contracts[contract]} and {binding.index} bind the same contract"
        findings.add(pointer, "duplicate_binding", message, "keep one of the two")
    contracts.setdefault(contract, binding.index)
    if not is_range(binding.version):  # AIP-30.implements-3
        message = f"{quoted(binding.version)} is not a range of versions"
        findings.add(f"{binding.pointer}/version", "range_invalid", message, "write one like ^1.0.0")
    if not binding.tool_name:
        findings.add_invalid(f"{binding.pointer}/metadata/mcp/tool_name", "this is empty", "name the server's tool")


def check_reading(places: Places, binding: ToolBinding) -> Iterator[FileProblem]:
    """Check result_extract and result_parse of a binding, as far as this is possible without the contract
    (AIP-extract-3 and -8).
    """
    path = read_path(binding.result_extract)
    if isinstance(path, PathFault):  # AIP-extract-3
        message = f"at character {path.position}: {path.reason}"
        hint = "write a path like $.content, $.rows[0] or $.items[*].name"
        pointer = f"{binding.pointer}/metadata/mcp/result_extract"
        yield places.problem(pointer, "extract_path_invalid", message, hint)
    parse = binding.result_parse
    if parse is None or (parse.form != "records" and parse.pattern is None):
        return
    if parse.pattern is None:
        reason: object = "records are made by a pattern, and there is none"
    elif parse.form != "records":
        reason = "a pattern is for as: records alone"
    else:
        reason = read_pattern(parse.pattern)
    if isinstance(reason, str):
        pointer = f"{binding.pointer}/metadata/interlock/result_parse"
        hint = "write as: records with a pattern like ^(?P<name>.*)$"
        yield places.problem(pointer, "pattern_invalid", reason, hint)


def escapes(path: str) -> bool:
    """Return whether a path is written so that it cannot be relative to the driver's folder: it is absolute, starts in
    a home folder, or contains a backslash or a drive.

    The registry checks where `..` leads, because it knows the folders and their symbolic links.
    """
    return path.startswith(("/", "~")) or "\\" in path or re.match(r"[A-Za-z]:", path) is not None


def _check_install(driver: Driver, findings: FileFindings) -> None:
    """Check that each entry of install has a known method and the options that the method needs."""
    if driver.install and driver.server.address is not None:  # AIP-server-7
        findings.add("/install", "install_ignored", "a remote server is not installed", "remove install", "warning")
        return
    for index, entry in enumerate(driver.install):
        pointer = f"/install/{index}"
        message = f"{quoted(entry.method)} is no method of installing known here"
        if entry.method not in INSTALL_NEEDS and entry.options.get("experimental") is True:  # AIP-30.install-2
            findings.add(f"{pointer}/method", "install_method_unknown", message, "it is skipped", "warning")
        elif entry.method not in INSTALL_NEEDS:
            findings.add_invalid(f"{pointer}/method", message, f"write one of {', '.join(INSTALL_NEEDS)}")
        for key in INSTALL_NEEDS.get(entry.method, ()):
            if not isinstance(entry.options.get(key), str):
                findings.add_invalid(f"{pointer}/{key}", f"{key} is missing", f"add {key}")


def _check_command(pointer: str, command: str, findings: FileFindings) -> None:
    if not command.strip() or _SHELL.search(command):  # AIP-30.version-1
        hint = "write one program with its arguments, without ; & | < > or $"
        findings.add(pointer, "command_invalid", "commands are run without a shell", hint)


def _check_auth(driver: Driver, findings: FileFindings) -> None:
    """Check the block auth of a driver: the file that describes its secrets, the secrets that its login stores, and the
    rule that detects an expired login.

    Its state.env names secrets that a login needs. These secrets are not passed to the server.
    """
    auth = driver.auth
    if auth is None:
        return
    if auth.ref is not None and escapes(auth.ref):
        findings.add("/auth/ref", "path_escape", "the inventory's path leaves the folder", "write ./SECRETS.md")
    is_remote = driver.server.address is not None
    for index, name in enumerate(auth.state.env):
        message = f"{quoted(name)} is not given to the server"
        hint = f'write {name}: "${{secrets.{name}}}" below server.env if the server reads it'
        if is_remote:
            message = f"{quoted(name)} is not sent to the server: nothing says in which header"
            hint = f"write server.auth: {{type: bearer, secret: {name}}}, or ${{secrets.{name}}} in server.headers"
        if name not in driver.secret_names:
            severity: Severity = "warning" if is_remote else "note"
            findings.add(f"/auth/state/env/{index}", "state_env_unused", message, hint, severity)
    detect = auth.expiry.detect if auth.expiry is not None else None
    if detect is not None and not detect.startswith(("http_status:", "exit_code:", "exception:", "header:")):
        message = "this way of noticing an expiry is not known here, so none is noticed"
        hint = "write http_status:401, exit_code:N, exception:NAME or header:NAME:VALUE"
        findings.add("/auth/expiry/detect", "detect_unknown", message, hint, "warning")


def _check_egress(driver: Driver, findings: FileFindings) -> None:
    """Check the hosts in network.egress, as far as this is possible from the file alone (AIP-security-3 and -4)."""
    listed = driver.network.egress if driver.network is not None else ()
    for index, entry in enumerate(listed):
        pointer = f"/network/egress/{index}"
        if not is_egress(entry):  # AIP-security-3
            hint = "write api.example.com, api.example.com:443 or *.example.com, without path or network mask"
            findings.add_invalid(pointer, "this is not the name of a host", hint)
        elif entry.partition(":")[0] == "*":  # AIP-security-3
            findings.add(pointer, "egress_open", "any public host can be reached", "name the hosts", "warning")
    if driver.server.address is None:
        return
    host, port = "", 0
    with suppress(ValueError):
        parts = urlsplit(driver.server.address)
        host, port = parts.hostname or "", port_of(parts)
    if "/network/egress" not in driver.places.lines:  # AIP-security-4
        message = f"{host} is reached because the url says so"
        findings.add("/server/url", "egress_implied", message, "nothing to do", "note")
    elif permits(host, port, listed) is None:  # AIP-security-4
        findings.add("/server/url", "egress_denied", f"{host} is not in network.egress", "add it there")


def is_egress(entry: str) -> bool:
    """Return whether a text is valid in network.egress: a host, *.suffix or *, each with an optional port.

    Paths and network masks are not allowed.
    """
    return EGRESS_ENTRY.fullmatch(entry) is not None


def runner_faults(block: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the errors in the runner block of a DRIVER.md (AIP-30.front-6).

    Each fault is a pointer relative to the block, a message and a hint. A runner (AIP-17) describes how the process of
    a driver is run and which resources it may use. An MCP server can only use the engine that runs a process.
    """
    if block.get("engine") == "in-process":  # AIP-30.front-6
        yield "/engine", "an MCP server is a process of its own", "write subprocess"
    limits = block.get("limits", {})
    if not isinstance(limits, dict):
        yield "/limits", "limits is a mapping", "write limits: {memory_mb: 512}"
        return
    for name in LIMITS:
        if name in limits and not _is_limit(limits[name]):
            yield f"/limits/{name}", f"{name} is a whole number above 0", "write it without a unit, or leave it out"


def runner_limits(block: object) -> dict[str, int]:
    """Return the limits, such as memory_mb, that the runner block of a DRIVER.md sets for all processes of its server
    together.

    A limit that is absent or invalid is left out. If `block` is the name of a RUNNER.md instead of an object, there are
    no limits.
    """
    limits = block.get("limits") if isinstance(block, dict) else None
    limits = limits if isinstance(limits, dict) else {}
    return {name: int(limits[name]) for name in LIMITS if _is_limit(limits.get(name))}


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 and value == int(value)

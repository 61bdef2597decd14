"""DRIVER.md of kind mcp: bytes in, a Driver or what is wrong with it out.

Frontmatter, then server.json where the block is not inline, then two schemas in sequence on the same data
(AIP-compat-1), then what schemas cannot say (`driver_checks`). A driver of another kind that is valid in itself is
refused as kind_unsupported, which disturbs nothing. Whether files and contracts it names exist is the registry's
question.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.driver_checks import check_driver, duration_s
from interlock.drivers.protocol.files.frontmatter import Frontmatter, read_frontmatter
from interlock.drivers.protocol.files.schemas import DRIVER_SCHEMA, EXTENSION_KEYS, KINDS, MCP_SCHEMA, check_schema
from interlock.drivers.protocol.files.server_block import read_server, secrets_taken, server_from_json
from interlock.drivers.protocol.files.versions import protocol_version
from interlock.drivers.protocol.kinds import SERVERS, ServerBlock
from interlock.drivers.protocol.model import (
    Auth,
    Cost,
    Driver,
    DriverExample,
    Extensions,
    HealthCheck,
    Install,
    MachineRequirements,
    Mapped,
    Narrowing,
    NetworkAccess,
    Prompt,
    Resource,
    ResultParse,
    Retry,
    SandboxBlock,
    ServerConnection,
    ToolBinding,
    VersionCheck,
)
from interlock.drivers.protocol.problems import FileFindings, FileProblem, ParsedFile
from interlock.wire.jsontext.canonical import pointer_step, quoted

DRIVER_FILE: Final = "DRIVER.md"
ENTRY: Final = "driver.py"
FOREIGN_ENTRIES: Final = ("driver.ts", "driver.js", "driver.mjs")

_KNOWN_TOP: Final = frozenset(DRIVER_SCHEMA["properties"]) | frozenset(MCP_SCHEMA["properties"]) | {"spec", "schema"}
_ORDER: Final = {"error": 0, "warning": 1, "note": 2}


def read_driver(
    data_untrusted: bytes,
    file: str,
    *,
    folder: str | None = None,
    beside: Collection[str] = (),
    server_json: bytes | None = None,
    insecure_hosts: Collection[str] = (),
) -> ParsedFile[Driver]:
    """Read a DRIVER.md.

    `folder` is the name of the driver's folder, `beside` the names of the files in it, and `server_json` the content of
    its server.json.
    """
    reading = read_frontmatter(data_untrusted, file)
    if reading.value is None:
        return ParsedFile(problems=reading.problems)
    front = reading.value
    findings = FileFindings(front.places)
    front = _with_server_json(front, server_json, findings)
    refused = _schema_problems(front)
    if findings.refused or refused:
        return _reading(None, (*findings.problems, *refused))
    if front.data["kind"] != "mcp":  # AIP-30.front-2
        findings.say(
            "/kind",
            "kind_unsupported",
            f"drivers of kind {front.data['kind']} are not run here",
            "use a driver of kind mcp, or another host for this one",
        )
        return _reading(None, findings.problems)
    _around(front, folder, beside, findings)
    driver = _driver(front, findings, insecure_hosts)
    if driver is not None:
        check_driver(driver, findings)
    return _reading(None if findings.refused else driver, findings.problems)


def check_published(data_untrusted: bytes, file: str) -> tuple[FileProblem, ...]:
    """Return what a host without our extensions would refuse, by the two published schemas alone (AIP-compat-1)."""
    reading = read_frontmatter(data_untrusted, file)
    if reading.value is None:
        return reading.problems
    first = check_schema(reading.value, "AIP-30")
    return _without_repeats((*first, *check_schema(reading.value, "AIP-32", published=True)))


def _reading(driver: Driver | None, problems: Collection[FileProblem]) -> ParsedFile[Driver]:
    return ParsedFile(value=driver, problems=tuple(sorted(problems, key=lambda each: _ORDER[each.severity])))


def _with_server_json(front: Frontmatter, server_json: bytes | None, findings: FileFindings) -> Frontmatter:
    if server_json is None:
        return front
    if "server" in front.data:  # AIP-file-5: both are there
        findings.say(
            "/server",
            "server_json_ignored",
            "the server block of this file is used and server.json is not",
            "remove one of the two",
            "warning",
        )
        return front
    server = server_from_json(server_json, front.data.get("transport"), findings)
    if server is None:
        return front
    return Frontmatter(data={**front.data, "server": server}, places=front.places)


def _schema_problems(front: Frontmatter) -> tuple[FileProblem, ...]:
    first = check_schema(front, "AIP-30")  # AIP-compat-1: both schemas, in this order
    kind = front.data.get("kind")
    other = kind in KINDS and kind != "mcp"  # AIP-30.front-2
    # AIP-compat-1, AIP-front-2, AIP-front-9
    second = () if other else check_schema(front, "AIP-32")
    return tuple(_with_better_hint(each, front.data) for each in _without_repeats((*first, *second)))


def _without_repeats(problems: tuple[FileProblem, ...]) -> tuple[FileProblem, ...]:
    """Keep only the first problem of each field, because both schemas may refuse the same field."""
    first: dict[str, FileProblem] = {}
    for each in problems:
        first.setdefault(each.field, each)  # AIP-compat-1
    return tuple(first.values())


def _with_better_hint(problem: FileProblem, data: Mapping[str, Any]) -> FileProblem:
    """Replace the hint for common mistakes: AIP-front-3, -9 and -10, AIP-server-9, AIP-compat-1."""
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
    elif field.startswith("/implements/") and "/metadata" in field:
        index = field.split("/")[2]
        entries = data.get("implements")
        if isinstance(entries, list) and index.isdigit() and int(index) < len(entries):
            entry = entries[int(index)]
            tool = entry.get("tool") if isinstance(entry, Mapping) else None
            if isinstance(tool, str) and problem.message.endswith("is missing"):  # AIP-front-9: the entry is named
                message = f"{problem.message} in the entry for {quoted(tool)}"
                hint = "name the server's tool in metadata.mcp.tool_name"
    return msgspec.structs.replace(problem, message=message or problem.message, hint=hint or problem.hint)


def _around(front: Frontmatter, folder: str | None, beside: Collection[str], findings: FileFindings) -> None:
    """Check the file's surroundings (AIP-file-2 to -4) and report keys that are not read."""
    identifier = front.data["id"]
    if folder is not None and folder != identifier:  # AIP-file-2
        findings.say(
            "/id",
            "folder_name",
            f"the folder is {quoted(folder)} and the id {quoted(identifier)}",
            "give both the same name",
            "warning",
        )
    if not identifier.endswith("-mcp"):  # AIP-file-3
        findings.say("/id", "id_suffix", "the id does not end with -mcp", f"write {identifier}-mcp", "warning")
    foreign = next((name for name in FOREIGN_ENTRIES if name in beside), None)
    if foreign is not None and ENTRY not in beside:  # AIP-file-4
        findings.say("", "entry_not_run", f"{foreign} is not run here", f"write the hooks in {ENTRY}", "warning")
    for key in front.data:
        if key not in _KNOWN_TOP:  # AIP-30.front-4: an unknown key
            findings.say(
                f"/{pointer_step(key)}",
                "unknown_key",
                f"the key {quoted(key)} is not read here",
                "fix it if it is one of ours",
                "note",
            )


def _driver(front: Frontmatter, findings: FileFindings, insecure_hosts: Collection[str]) -> Driver | None:
    data = front.data
    metadata = data.get("metadata", {})
    try:
        extensions = msgspec.convert(metadata.get("interlock", {}), Extensions)
        server = read_server(data["server"], data["transport"], extensions, findings, insecure_hosts)
        if server is None:
            return None
        return _make_driver(front, server, extensions, findings)
    except (msgspec.ValidationError, ValueError):
        # The schemas are closed over everything converted here; a gap between the two is refused, not raised.
        findings.say("", "schema_invalid", "a value has the wrong form", "compare the file with the documentation")
        return None


def _make_driver(front: Frontmatter, server: ServerBlock, extensions: Extensions, findings: FileFindings) -> Driver:
    data = front.data
    return Driver(
        name=data["name"],
        id=data["id"],
        description=data["description"],
        version=data["version"],
        server=server,
        transport=_transport(data["transport"], findings),
        implements=tuple(_binding(index, entry) for index, entry in enumerate(data["implements"])),
        protocol_version=_target_version(data.get("protocol_version"), findings),
        prompts=msgspec.convert(data.get("prompts", []), tuple[Prompt, ...]),
        resources=msgspec.convert(data.get("resources", []), tuple[Resource, ...]),
        connection=msgspec.convert(data.get("connection_options", {}), ServerConnection),
        network=msgspec.convert(data.get("network"), NetworkAccess | None),
        sandbox=msgspec.convert(data.get("sandbox"), SandboxBlock | None),
        auth=_auth(data.get("auth"), findings),
        install=tuple(_install(entry) for entry in data.get("install", [])),
        version_check=msgspec.convert(data.get("version_check"), VersionCheck | None),
        health_check=_health_check(data.get("health_check"), findings),
        runner=data.get("runner"),
        region=tuple(data.get("region", ("global",))),
        policy_tags=tuple(data.get("policy_tags", ())),
        cost=msgspec.convert(data.get("cost_override"), Cost | None),
        timeout_ms=msgspec.convert(data.get("timeout_override_ms"), int | None),
        retry=msgspec.convert(data.get("retry_override"), Retry | None),
        requires=msgspec.convert(data.get("requires", {}), MachineRequirements),
        examples=msgspec.convert(data.get("examples", []), tuple[DriverExample, ...]),
        tags=tuple(data.get("tags", ())),
        interlock=extensions,
        metadata=data.get("metadata", {}),
        secret_names=secrets_taken(data["server"]),
        extension_keys=_extension_keys(data),
        places=front.places,
    )


def _binding(index: int, entry: Mapping[str, Any]) -> ToolBinding:
    metadata = entry["metadata"]
    mcp = metadata["mcp"]
    ours = metadata.get("interlock", {})
    return ToolBinding(
        index=index,
        tool=entry["tool"],
        version=entry["version"],
        tool_name=mcp["tool_name"],
        argument_mapping=mcp.get("argument_mapping", {}),
        result_extract=mcp.get("result_extract", "$"),
        schema_narrowing=msgspec.convert(entry.get("schema_narrowing", {}), Narrowing),
        mapping=msgspec.convert(entry.get("mapping", {}), dict[str, str | Mapped]),
        cost=msgspec.convert(entry.get("cost_override"), Cost | None),
        timeout_ms=msgspec.convert(entry.get("timeout_override_ms"), int | None),
        retry=msgspec.convert(entry.get("retry_override"), Retry | None),
        result_parse=msgspec.convert(ours.get("result_parse"), ResultParse | None),
        result_wrap=ours.get("result_wrap"),
        text_fallback=ours.get("text_fallback", True),
        argument_defaults=ours.get("argument_defaults", {}),
        context_arguments=ours.get("context_arguments", {}),
        metadata=metadata,
    )


def _transport(written: Any, findings: FileFindings) -> Any:
    if written == "sse":  # AIP-transport-9
        findings.say(
            "/transport",
            "transport_deprecated",
            "MCP has given up HTTP+SSE; Streamable HTTP carries both directions",
            "write transport: http when the server offers it",
            "note",
        )
    return written


def _target_version(written: str | None, findings: FileFindings) -> str | None:
    if written is None:
        return None
    meant = protocol_version(written)
    if meant is None:  # AIP-proto-2
        findings.say(
            "/protocol_version",
            "protocol_version_unknown",
            f"{quoted(written)} is no MCP version, so the latest is targeted",
            "write one like 2025-11-25, or leave it out",
            "warning",
        )
    elif meant != written:  # AIP-proto-2
        findings.say(
            "/protocol_version",
            "protocol_version_partial",
            f"{quoted(written)} is read as {meant}",
            f"write {meant}",
            "warning",
        )
    return meant


def _install(entry: Mapping[str, Any]) -> Install:
    return Install(method=entry["method"], options={key: value for key, value in entry.items() if key != "method"})


def _auth(block: Mapping[str, Any] | None, findings: FileFindings) -> Auth | None:
    if block is None:
        return None
    if "expiry" in block and "detect" not in block["expiry"]:
        block = {key: value for key, value in block.items() if key != "expiry"}
    return msgspec.convert(_with_seconds(block, "refresh", "/auth/refresh", findings), Auth)


def _health_check(block: Mapping[str, Any] | None, findings: FileFindings) -> HealthCheck | None:
    if block is None:
        return None
    return msgspec.convert(_with_seconds({"it": block}, "it", "/health_check", findings)["it"], HealthCheck)


def _with_seconds(around: Mapping[str, Any], key: str, pointer: str, findings: FileFindings) -> dict[str, Any]:
    """Return `around` with the duration `every` of the block under `key` converted to seconds."""
    block = around.get(key)
    if not isinstance(block, Mapping) or "every" not in block:
        return dict(around)
    seconds = duration_s(block["every"])
    if seconds is None:  # AIP-30.health-1
        findings.say(f"{pointer}/every", "schema_invalid", "this is no ISO 8601 duration", "write one like PT5M or P1D")
    rest = {name: value for name, value in block.items() if name != "every"}
    return {**around, key: {**rest, "every_s": seconds}}


def _extension_keys(data: Mapping[str, Any]) -> tuple[str, ...]:
    written = {f"server.{key}" for key in data["server"]} | {key for key in ("sandbox",) if key in data}
    written |= {f"metadata.interlock.{key}" for key in data.get("metadata", {}).get("interlock", {})}
    for entry in data["implements"]:
        written |= {f"implements[].metadata.interlock.{key}" for key in entry["metadata"].get("interlock", {})}
    return tuple(key for key in EXTENSION_KEYS if key in written)  # AIP-front-11

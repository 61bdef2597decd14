"""What no schema says about a driver file: fields that do not fit each other, ranges, patterns, commands, paths."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.files.versions import PROTOCOL_VERSIONS, is_range
from interlock.drivers.protocol.model import Driver, Install, ToolBinding
from interlock.drivers.protocol.problems import FileFindings, FileProblem, Places
from interlock.drivers.protocol.result_path import PathFault, read_path, read_pattern
from interlock.net.protocol.egress import ENTRY, permits, port_of
from interlock.wire.jsontext.canonical import quoted
from interlock.wire.schemas.bounds import PATTERN_CHARS_MAX

# ISO 8601 durations of days and less: PT5M, PT30S, P1D. Months and years have no fixed length and are refused.

DURATION_S_MAX: Final = 366 * 86400.0

_DURATION = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,6})W|(?:(?P<days>[0-9]{1,6})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,6})H)?(?:(?P<minutes>[0-9]{1,6})M)?(?:(?P<seconds>[0-9]{1,6}(?:\.[0-9]{1,3})?)S)?)?)",
    re.ASCII,
)
_SECONDS = {"weeks": 604800.0, "days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}


def duration_s(text: str) -> float | None:
    """Return a duration in seconds, or None if the text is no duration of more than zero and at most a year."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        return None
    total = sum(float(parts[unit]) * seconds for unit, seconds in _SECONDS.items() if parts[unit])
    return total if 0 < total <= DURATION_S_MAX else None


# A driver's runner (AIP-17): how its process is run and how much it may use. Of its engines, MCP servers have one.

LIMITS: Final = ("memory_mb", "cpu_ms")


class RunnerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of all processes of a server together; None means no limit."""

    memory_mb: int | None = None
    cpu_ms: int | None = None


def runner_faults(block: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the faults of a runner block: the pointer below it, what is wrong, and what to write (AIP-30.front-6)."""
    if block.get("engine") == "in-process":  # AIP-30.front-6
        yield "/engine", "an MCP server is a process of its own", "write subprocess"
    limits = block.get("limits", {})
    if not isinstance(limits, dict):
        yield "/limits", "limits is a mapping", "write limits: {memory_mb: 512}"
        return
    for name in LIMITS:
        if name in limits and not _is_limit(limits[name]):
            yield f"/limits/{name}", f"{name} is a whole number above 0", "write it without a unit, or leave it out"


def runner_limits(block: object) -> RunnerLimits:
    """Return the limits of a runner block that this node can enforce. The name of a file has no limits here."""
    limits = block.get("limits") if isinstance(block, dict) else None
    if not isinstance(limits, dict):
        return RunnerLimits()
    return RunnerLimits(**{name: int(limits[name]) for name in LIMITS if _is_limit(limits.get(name))})


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 and value == int(value)


# Checks of result_extract and result_parse in themselves (AIP-extract-3 and -8), which need no contract.


def check_reading(places: Places, binding: ToolBinding) -> tuple[FileProblem, ...]:
    """Check how results are read, as far as this is possible without a contract."""
    problems = []
    path = read_path(binding.result_extract)
    if isinstance(path, PathFault):  # AIP-extract-3
        problems.append(
            places.problem(
                f"{binding.pointer}/metadata/mcp/result_extract",
                "extract_path_invalid",
                f"at character {path.position}: {path.reason}",
                "write a path like $.content, $.rows[0] or $.items[*].name",
            )
        )
    parse = binding.result_parse
    if parse is not None and (parse.form == "records" or parse.pattern is not None):
        if parse.pattern is None:
            reason = "records are made by a pattern, and there is none"
        elif parse.form != "records":
            reason = "a pattern is for as: records alone"
        else:
            read = read_pattern(parse.pattern)
            reason = read if isinstance(read, str) else ""
        if reason:
            problems.append(
                places.problem(
                    f"{binding.pointer}/metadata/interlock/result_parse",
                    "pattern_invalid",
                    reason,
                    "write as: records with a pattern like ^(?P<name>.*)$",
                )
            )
    return tuple(problems)


INSTALL_NEEDS: Final[dict[str, tuple[str, ...]]] = {  # AIP-29, and our docker
    **dict.fromkeys(("brew", "apt", "dnf", "pacman", "choco", "scoop", "npm", "pip", "cargo", "go"), ("package",)),
    "curl": ("url",),
    "download": ("url", "extract_bin"),
    "vendored": ("path",),
    "docker": ("image",),
}
DETECTS: Final = ("http_status:", "exit_code:", "exception:", "header:")

_SHELL = re.compile(r"[;&|<>`$\n\r(){}*?!#~\\]")


def check_driver(driver: Driver, findings: FileFindings) -> None:
    _bindings(driver, findings)
    _integration(driver, findings)
    _extensions(driver, findings)
    _check_installation(driver, findings)
    _version_check(driver, findings)
    _health_check(driver, findings)
    _auth(driver, findings)
    _runner(driver, findings)
    _egress(driver, findings)


def _bindings(driver: Driver, findings: FileFindings) -> None:
    """Check the bindings (AIP-30.implements-2 and -3) and how results are read, as far as the file itself shows
    them.
    """
    seen: dict[str, int] = {}
    for binding in driver.implements:
        findings.problems.extend(check_reading(driver.places, binding))
        place = f"{binding.pointer}/tool"
        if escapes(binding.tool):  # AIP-30.implements-2
            findings.say(
                place, "path_escape", "the contract's path leaves the workspace", "write a path below the workspace"
            )
        elif not binding.tool:
            findings.say(place, "schema_invalid", "this is empty", "name a TOOL.md or a contract's id")
        contract = "/".join(part for part in binding.tool.split("/") if part not in {"", "."})
        if contract in seen:  # AIP-30.implements-2
            findings.say(
                place,
                "duplicate_binding",
                f"entries {seen[contract]} and {binding.index} bind the same contract",
                "keep one of the two",
            )
        seen.setdefault(contract, binding.index)
        if not is_range(binding.version):  # AIP-30.implements-3
            findings.say(
                f"{binding.pointer}/version",
                "range_invalid",
                f"{quoted(binding.version)} is not a range of versions",
                "write one like ^1.0.0",
            )
        if not binding.tool_name:
            findings.say(
                f"{binding.pointer}/metadata/mcp/tool_name", "schema_invalid", "this is empty", "name the server's tool"
            )


def escapes(path: str) -> bool:
    """Return whether a path starts outside the workspace.

    The registry checks how far `..` leads, because it knows the folders and their symlinks.
    """
    return path.startswith(("/", "~")) or "\\" in path or re.match(r"[A-Za-z]:", path) is not None


def _integration(driver: Driver, findings: FileFindings) -> None:
    for index, prompt in enumerate(driver.prompts):
        # AIP-prompts-3
        if prompt.integrate_as == "skill_block" and (not prompt.skill_ref or escapes(prompt.skill_ref)):
            findings.say(
                f"/prompts/{index}/skill_ref",
                "skill_ref_invalid",
                "a skill_block names the SKILL.md it belongs to",
                "add skill_ref: ./skills/NAME/SKILL.md",
            )
    for index, resource in enumerate(driver.resources):
        if resource.integrate_as == "ref_kind" and resource.ref_kind_id is None:  # AIP-resources-2
            findings.say(
                f"/resources/{index}/ref_kind_id",
                "schema_invalid",
                "ref_kind_id is missing",
                "add ref_kind_id: my_files",
            )


def _extensions(driver: Driver, findings: FileFindings) -> None:
    for index, version in enumerate(driver.interlock.protocol_versions):
        if version not in PROTOCOL_VERSIONS:  # AIP-proto-5
            findings.say(
                f"/metadata/interlock/protocol_versions/{index}",
                "schema_invalid",
                f"{quoted(version)} is no MCP version",
                f"write one of {', '.join(PROTOCOL_VERSIONS)}",
            )
    if "roots" in driver.interlock.client_capabilities and driver.interlock.isolation != "user":
        findings.say(
            "/metadata/interlock/client_capabilities",
            "schema_invalid",
            "roots are one user's, and this server is shared",
            "add isolation: user, or remove roots",
        )


def _check_installation(driver: Driver, findings: FileFindings) -> None:
    if driver.install and driver.server.address is not None:  # AIP-server-7
        findings.say("/install", "install_ignored", "a remote server is not installed", "remove install", "warning")
        return
    for index, entry in enumerate(driver.install):
        _install(f"/install/{index}", entry, findings)


def _install(pointer: str, entry: Install, findings: FileFindings) -> None:
    needed = INSTALL_NEEDS.get(entry.method)
    if needed is None:
        skipped = entry.options.get("experimental") is True  # AIP-30.install-2
        findings.say(
            f"{pointer}/method",
            "install_method_unknown" if skipped else "schema_invalid",
            f"{quoted(entry.method)} is no method of installing known here",
            "it is skipped" if skipped else f"write one of {', '.join(INSTALL_NEEDS)}",
            "warning" if skipped else "error",
        )
        return
    for key in needed:
        if not isinstance(entry.options.get(key), str):
            findings.say(f"{pointer}/{key}", "schema_invalid", f"{key} is missing", f"add {key}")


def _version_check(driver: Driver, findings: FileFindings) -> None:
    """Check the version_check block (AIP-30.version-1)."""
    check = driver.version_check
    if check is None:
        return
    _command("/version_check/cmd", check.cmd, findings)
    if not is_range(check.range):  # AIP-30.version-1
        findings.say(
            "/version_check/range", "range_invalid", "this is not a range of versions", "write one like >=2.40 <3"
        )
    if not has_group(check.parse):  # AIP-30.version-1
        findings.say(
            "/version_check/parse",
            "pattern_invalid",
            "this is no pattern with a group",
            "put the version in parentheses: v(\\S+)",
        )


def has_group(pattern: str) -> bool:
    if len(pattern) > PATTERN_CHARS_MAX:
        return False
    try:
        return re.compile(pattern).groups >= 1
    except (re.error, OverflowError, RecursionError):
        return False


def _command(pointer: str, command: str, findings: FileFindings) -> None:
    if not command.strip() or _SHELL.search(command):  # AIP-30.version-1
        findings.say(
            pointer,
            "command_invalid",
            "commands are run without a shell",
            "write one program with its arguments, without ; & | < > or $",
        )


def _health_check(driver: Driver, findings: FileFindings) -> None:
    check = driver.health_check
    if check is None:
        return
    if check.method == "exec" and check.cmd is None:
        findings.say("/health_check/cmd", "schema_invalid", "cmd is missing", "add the command to run")
    if check.cmd is not None and check.method == "exec":
        _command("/health_check/cmd", check.cmd, findings)
    if check.method == "http" and check.http is None:
        findings.say("/health_check/http", "schema_invalid", "http is missing", "add http: {method: GET, url: …}")


def _auth(driver: Driver, findings: FileFindings) -> None:
    auth = driver.auth
    if auth is None:
        return
    if auth.ref is not None and escapes(auth.ref):
        findings.say("/auth/ref", "path_escape", "the inventory's path leaves the folder", "write ./SECRETS.md")
    for index, name in enumerate(auth.state.env):
        if name not in driver.secret_names:
            _say_unsent(driver, findings, f"/auth/state/env/{index}", name)
    if auth.expiry is not None and not auth.expiry.detect.startswith(DETECTS):
        findings.say(
            "/auth/expiry/detect",
            "detect_unknown",
            "this way of noticing an expiry is not known here, so none is noticed",
            "write http_status:401, exit_code:N, exception:NAME or header:NAME:VALUE",
            "warning",
        )


def _say_unsent(driver: Driver, findings: FileFindings, place: str, name: str) -> None:
    """Report a name in the login's state that nothing passes to the server: the state says only that a secret is
    needed.
    """
    if driver.server.address is not None:
        message = f"{quoted(name)} is not sent to the server: nothing says in which header"
        hint = f"write server.auth: {{type: bearer, secret: {name}}}, or ${{secrets.{name}}} in server.headers"
        findings.say(place, "state_env_unused", message, hint, "warning")
    else:
        hint = f'write {name}: "${{secrets.{name}}}" below server.env if the server reads it'
        findings.say(place, "state_env_unused", f"{quoted(name)} is not given to the server", hint, "note")


def _runner(driver: Driver, findings: FileFindings) -> None:
    runner = driver.runner
    if isinstance(runner, str):
        if escapes(runner):
            findings.say("/runner", "path_escape", "the runner's path leaves the folder", "write ./RUNNER.md")
    elif runner is not None:
        for pointer, message, hint in runner_faults(runner):
            findings.say(f"/runner{pointer}", "schema_invalid", message, hint)


def _egress(driver: Driver, findings: FileFindings) -> None:
    """Check the egress list (AIP-security-3 and -4), as far as the file shows it."""
    listed = driver.network.egress if driver.network is not None else ()
    for index, host in enumerate(listed):
        if not is_egress(host):  # AIP-security-3
            findings.say(
                f"/network/egress/{index}",
                "schema_invalid",
                "this is not the name of a host",
                "write api.example.com, api.example.com:443 or *.example.com, without path or network mask",
            )
        elif host.partition(":")[0] == "*":  # AIP-security-3
            findings.say(
                f"/network/egress/{index}", "egress_open", "any public host can be reached", "name the hosts", "warning"
            )
    if driver.server.address is None:
        return
    host, port = _place(driver.server.address)
    if "/network/egress" not in driver.places.lines:  # AIP-security-4
        findings.say(
            "/server/url", "egress_implied", f"{host} is reached because the url says so", "nothing to do", "note"
        )
    elif permits(host, port, listed) is None:  # AIP-security-4
        findings.say("/server/url", "egress_denied", f"{host} is not in network.egress", "add it there")


def is_egress(entry: str) -> bool:
    """Return whether the entry is a host, *.suffix or *, with or without a port. Paths and network masks are not
    allowed.
    """
    return ENTRY.fullmatch(entry) is not None


def _place(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        return parts.hostname or "", port_of(parts)
    except ValueError:
        return "", 0

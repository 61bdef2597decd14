"""The checks of `interlock doctor`: one table, in which each check yields what is wrong and how to fix it.

A check looks at the configuration, at this machine and, if a node runs, at the status that the node reports. A check
that cannot look, for instance because the node is on another machine, yields nothing. Nothing is changed or started,
and nothing is sent elsewhere except a greeting to the servers of a store on NATS.

A finding has a problem, a remedy and, if one command is the remedy, that command. Programs read them with --json.
"""

import asyncio
import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from interlock.access.api import Token
from interlock.approvals.guarded_starts import find_recorded_conflict
from interlock.cli.client.offline import has_stored_approver
from interlock.cli.command import Invocation, read_configuration
from interlock.cli.terminal.text import count
from interlock.config.load import ConfigInvalid, Loaded
from interlock.config.plan import Plan, Spawn
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.drivers.workspace.scan import scan_workspace
from interlock.net.protocol.address_scope import is_loopback
from interlock.node.cli.machine import list_tokens, missing_on_machine, no_sandbox, unmatched_principals
from interlock.node.cli.tree import approver_step
from interlock.operator.api import GET_STATUS, Status
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refused

NODE_JS_MIN: Final = 20
PROGRAM_S: Final = 10.0  # for a program to say its version
SKEW_S: Final = 60.0  # what clocks of one machine may differ by
SOON_S: Final = 7 * 86400.0  # a certificate that ends within this is renewed now
PRIVATE: Final = 0o077  # what others than the owner may not have
PRIVATE_FILES: Final = ("store.db", "secrets.db", "secrets.key", "node.key", "identity.json")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that `interlock doctor` found, and how to fix it."""

    check: str  # which check found it
    problem: str
    remedy: str  # what a person does about it
    command: str | None = None  # where one command does it


class SetUp(msgspec.Struct, frozen=True, kw_only=True):
    """The set-up that `interlock doctor` examines: the configuration, this machine, and the status of a running
    node.
    """

    invocation: Invocation
    loaded: Loaded | None  # None: the configuration cannot be used
    status: Status | None  # None: no node runs, or it does not answer
    tokens: tuple[Token, ...] = ()

    @property
    def plan(self) -> Plan:
        return self.loaded.plan if self.loaded is not None else Plan(workspace=Path.cwd(), data=self.data)

    @property
    def data(self) -> Path:
        return self.loaded.plan.data if self.loaded is not None else self.invocation.data_folder

    @property
    def is_remote(self) -> bool:
        return self.invocation.remote_url is not None


_KEEPS_SECRET: Final = re.compile(r"interlock secrets set [^\s;,]+")

Findings = Iterator[tuple[str, str, str | None]]  # problem, remedy, command


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `interlock doctor`: all findings."""

    findings: tuple[Finding, ...]
    checks: int
    running: bool


def examine(invocation: Invocation) -> Examination:
    """Run every check of `interlock doctor`. Raise Refused if a node was named and does not answer."""
    loaded: Loaded | None = None
    broken: list[Finding] = []
    try:
        loaded = read_configuration(invocation)
    except ConfigInvalid as invalid:
        hint = "interlock check"
        broken = [
            Finding(
                check="configuration",
                problem=f"{invalid_setting.prefix}{invalid_setting.message}",
                remedy=invalid_setting.hint or hint,
                command=hint,
            )
            for invalid_setting in invalid.problems
        ]
    set_up = SetUp(
        invocation=invocation, loaded=loaded, status=_find_status(invocation), tokens=list_tokens(invocation)
    )
    findings = [
        Finding(check=name, problem=problem, remedy=remedy, command=command)
        for name, check in CHECKS.items()
        for problem, remedy, command in check(set_up)
    ]
    unique = dict.fromkeys((*broken, *findings))
    return Examination(findings=tuple(unique), checks=len(CHECKS), running=set_up.status is not None)


def _find_status(invocation: Invocation) -> Status | None:

    try:
        return invocation.node.call(GET_STATUS).as_(Status)
    except Refused:
        if invocation.remote_url is not None:
            raise
        return None


def _configuration(set_up: SetUp) -> Findings:
    """Yield the warnings of `interlock check`, and changes of the configuration that are not in effect."""
    if set_up.loaded is not None and not set_up.is_remote:
        unmatched = unmatched_principals(set_up.loaded, set_up.tokens)
        for problem in (*set_up.loaded.warnings, *missing_on_machine(set_up.loaded), *unmatched):
            hint = problem.hint or "interlock check shows the place"
            yield f"{problem.prefix}{problem.message}", hint, hint if hint.startswith("interlock ") else None
    state = set_up.status.configuration if set_up.status is not None else None
    if state is not None and state.problem:
        yield f"the running node cannot use the changed configuration: {state.problem}", "correct it", "interlock check"
    if set_up.loaded is not None and set_up.status is None and not set_up.is_remote:
        yield from _refused_start(set_up.loaded)
    if state is not None and state.restart_for:
        yield f"changed, and not in effect: {', '.join(state.restart_for)}", "stop the node and start it again", None


def _refused_start(loaded: Loaded) -> Findings:
    """Yield a problem if the configuration names other data than those of the node that it started before."""
    try:
        conflict = find_recorded_conflict(loaded.plan, loaded.guarded)
    except StoreError as error:
        yield str(error), "until then the node does not start", None
        return
    if conflict is not None:
        problem = f"the node would not start with other data than before ({'; '.join(conflict.lines)})"
        yield problem, "write the former value again, or sign the new one", "interlock serve --accept-configuration"


def _addresses(set_up: SetUp) -> Findings:
    """Yield each configured address at which the node could not listen. Nothing is checked while the node runs."""
    if set_up.status is not None or set_up.loaded is None:
        return
    from interlock.node.sockets import bind, is_interlock_node

    node = set_up.plan.node
    for key, address in (("node.listen", node.listen), ("node.operator_listen", node.operator_listen)):
        try:
            bind(address).close()
        except OSError as error:
            is_ours = is_interlock_node(address, tls=node.tls_cert is not None)
            whose = "another Interlock node listens there" if is_ours else (error.strerror or str(error))
            yield f"{key}: {whose}", f"stop what listens there, or set {key} to another address", None


def _permissions(set_up: SetUp) -> Findings:
    """Yield files with keys or tokens that other users can read, and a data folder that the node cannot write."""
    if set_up.is_remote or sys.platform == "win32" or not set_up.data.exists():
        return
    data = set_up.data
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        yield f"{data} cannot be written by this user", "give it to the user who runs the node", f"chmod u+rwx {data}"
        return
    if data.stat().st_mode & PRIVATE:
        yield f"{data} is open to other users", "close it", f"chmod 700 {data}"
    keys = set_up.plan.drivers.own.parent / "keys" if set_up.plan.drivers.own is not None else data
    for path in (*(data / name for name in PRIVATE_FILES), *sorted(keys.glob("*.key"))):
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & PRIVATE:
            yield (
                f"{path} is open to other users",
                "close it; if others had it, replace what is in it",
                f"chmod 600 {path}",
            )


def _runtimes(set_up: SetUp) -> Findings:
    """Yield a problem if Node.js is too old for npm packages, or if the daemon of docker does not answer."""
    if set_up.is_remote:
        return
    reaches = [server.reach for server in set_up.plan.servers if isinstance(server.reach, Spawn)]
    needs_node = any(reach.package is not None and reach.package.registry == "npm" for reach in reaches)
    if needs_node and (version := _find_version("node")):
        major = version.removeprefix("v").partition(".")[0]
        if major.isdecimal() and int(major) < NODE_JS_MIN:
            yield f"Node.js {version} is too old", f"install Node.js {NODE_JS_MIN} or newer (nodejs.org)", None
    needs_docker = any(reach.command[:1] == ("docker",) for reach in reaches)
    if needs_docker and shutil.which("docker") and _find_version("docker", "info") is None:
        yield "docker is installed, and its daemon does not answer", "start it, or let this user use it", None


def _find_version(program: str, question: str = "--version") -> str | None:
    """Return what a program prints about its version, or None if the program is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, question], capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or "?" if done.returncode == 0 else None


def _sandbox(set_up: SetUp) -> Findings:
    """Yield a problem if drivers need a sandbox and this machine has none."""
    if set_up.is_remote or set_up.loaded is None:
        return
    plan = set_up.plan
    sandboxed = [
        folder.path.name for folder in scan_workspace(plan).folders if folder.path.name not in plan.drivers.sandbox
    ]
    if sandboxed and (reason := no_sandbox()) is not None:
        yield f"no sandbox for {', '.join(sandboxed[:3])}: {reason}", "install bubblewrap, for instance with apt", None


def _servers(set_up: SetUp) -> Findings:
    """Yield each server of a running node that has failed, is degraded or lacks a credential."""
    for link in set_up.status.links if set_up.status is not None else ():
        again = f"interlock links restart {link.segment}"
        if link.kind == "device" and link.state in ("failed", "degraded"):
            problem = f"the device {link.segment} is {link.state}: {link.reason or 'no reason given'}"
            yield problem, *device_remedy(link.segment, link.reason or "")
        elif link.state in ("failed", "degraded"):
            wrote = f"; it wrote: {link.last_words}" if link.last_words else ""
            problem = f"{link.segment} is {link.state}: {link.reason or 'no reason given'}{wrote}"
            if link.driver is not None and "another id" in (link.reason or ""):
                yield problem, "rename one of the two", f"interlock drivers show {link.segment}"
            elif link.stderr_lines:
                yield problem, f"interlock links logs {link.segment} shows what it wrote; then start it again", again
            elif "start the node again" in (link.reason or ""):
                yield problem, "fix that, and start the node again", None
            else:
                yield problem, "fix that, then start it again", again
        elif link.state == "unauthorised":
            named = _KEEPS_SECRET.search(link.reason or "")
            command = named[0] if named else f"{again} --authorize" if link.consent else again
            yield f"{link.segment} is unauthorised: {link.reason or 'no reason given'}", "give it a credential", command


def device_remedy(segment: str, reason: str) -> tuple[str, str | None]:
    """Return advice about a device that does not work, and a command that helps, or None if no command does."""
    description = f".devices/{segment}.toml"
    if f"{segment}.toml" in reason:
        return "correct the description", f"interlock check {description}"
    if "the library" in reason:
        return "install what devices need, pip install 'interlock[devices]', and start the node again", None
    if os.strerror(errno.ENOENT) in reason:
        return f"no such port is there: plug the device in, or correct port in {description}", None
    if os.strerror(errno.EACCES) in reason:
        return "let this user use the port, on Linux often with the group dialout, and start the node again", None
    return f"check its power, its cable or radio, and {description}", f"interlock device monitor {segment}"


def _drivers(set_up: SetUp) -> Findings:
    """Yield each driver that does not run, because no person trusts it yet or because its files are wrong."""
    for driver in set_up.status.idle_drivers if set_up.status is not None else ():
        name = exposed_segment(driver.id)
        if driver.state == "untrusted":
            yield f"driver {name} waits for your trust", "look at it, and agree", f"interlock drivers trust {name}"
        else:
            look = f"interlock drivers show {name}"
            yield f"driver {name} cannot be used: {driver.reason or driver.state}", "correct its files", look
    if set_up.status is not None or set_up.loaded is None or not scan_workspace(set_up.plan).folders:
        return
    from interlock.drivers.cli.folder_check import check_drivers  # imported only if there are drivers

    for problem in check_drivers(set_up.plan, None, against=None, upstream=False).errors:
        yield f"{problem.prefix}{problem.message}", problem.hint or "correct its files", "interlock check"


def _parents(set_up: SetUp) -> Findings:
    """Yield each parent aggregator with which this node cannot register before a person acts."""
    for parent in set_up.status.parents if set_up.status is not None else ():
        if parent.state == "waiting":
            yield (
                f"{parent.url}: {parent.reason or 'it does not take us'}",
                parent.next_step or "ask its operator",
                None,
            )


def _tokens_ended(set_up: SetUp) -> Findings:
    """Yield each expired token: those that the node issued, and those that it uses at servers."""
    now = datetime.now(UTC)
    for token in set_up.tokens:
        if _has_passed(token.expires_at, now):
            command = f"interlock access token --for {token.audience} --name {token.name}"
            yield f"the token {token.name} ({token.audience}) has expired", "give its owner a new one", command
    for link in set_up.status.links if set_up.status is not None else ():
        if link.token is not None and _has_passed(link.token.expires_at, now):
            command = f"interlock links restart {link.segment} --authorize"
            yield f"the token for {link.segment} has expired", "agree to a new one", command


def _has_passed(at: str | None, now: datetime) -> bool:
    return at is not None and datetime.fromisoformat(at.replace("Z", "+00:00")) < now


def _certificate(set_up: SetUp) -> Findings:
    """Yield a problem if the certificate of the node has expired, expires soon or cannot be read."""
    path = set_up.plan.node.tls_cert
    if set_up.is_remote or path is None or not path.is_file():
        return
    from cryptography import x509

    try:
        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as unreadable:
        yield f"{path} cannot be read: {unreadable}", "write a certificate in PEM there", None
        return
    if ends < time.time() + SOON_S:
        how = "has ended" if ends < time.time() else "ends within a week"
        yield f"{path} {how}", "renew it; a CA of Interlock's: interlock access certificate NAME --renew", None


def _clock(set_up: SetUp) -> Findings:
    """Yield a problem if the clock of this machine is wrong, because expired tokens may then seem valid."""
    if set_up.status is not None:
        started = datetime.fromisoformat(set_up.status.node.started_at.replace("Z", "+00:00")).timestamp()
        skew = time.time() - started - set_up.status.node.uptime_s
        if abs(skew) > SKEW_S:
            yield f"the clocks of this command and of the node differ by {abs(skew):.0f} s", "set both by NTP", None
    if set_up.is_remote or not set_up.data.is_dir():
        return
    newest = max((file.stat().st_mtime for file in set_up.data.iterdir()), default=0.0)
    if newest > time.time() + SKEW_S:
        late = f"{newest - time.time():.0f} s"
        yield (
            f"the clock is behind what {set_up.data} has seen, by {late}",
            "set it by NTP: timedatectl set-ntp true",
            None,
        )


def _approver(set_up: SetUp) -> Findings:
    """Yield a problem if calls may be held and no person could approve them."""
    waiting = set_up.status.gate.without_approver if set_up.status is not None else 0
    if set_up.status is not None and waiting:
        command, does = approver_step(set_up.status.approvers)
        problem = f"calls of {count(waiting, 'tool')} are held, and no one may approve them"
        yield problem, f"run the command, which {does}", command
    elif (
        set_up.loaded is not None
        and set_up.plan.gate.mode != "open"
        and not any(anchor.approves for anchor in set_up.plan.anchors)
    ):
        yield "no key may approve calls that are held", "make a key", "interlock init"
    agents = _agent_clients(set_up)
    if agents and not _has_approver(set_up):
        command, does = approver_step(set_up.status.approvers if set_up.status is not None else ())
        problem = f"{', '.join(agents)} can start agents on this machine, and no approver is enrolled"
        remedy = "enrol yourself before an agent runs: until then it could become the first approver"
        yield problem, remedy, command


def _agent_clients(set_up: SetUp) -> tuple[str, ...]:
    """Return the titles of MCP clients that have a configuration on this machine."""
    from interlock.interop.source_files import ClientMachine, places

    if set_up.is_remote or set_up.loaded is None:
        return ()
    machine = ClientMachine.this(os.environ, set_up.plan.workspace)
    return tuple(dict.fromkeys(client.title for client, _, path in places(machine) if path.is_file()))


def _has_approver(set_up: SetUp) -> bool:
    if set_up.status is not None:
        return any(approver.approves for approver in set_up.status.approvers)
    try:
        return (set_up.data / "store.db").exists() and has_stored_approver(set_up.plan, set_up.data)
    except Refused:
        # Another check names what is wrong with the store.
        return True


def _unsafe(set_up: SetUp) -> Findings:
    """Yield each setting that switches a protection off."""
    plan = set_up.plan
    unsafe: dict[str, bool] = {
        'auth.anonymous = "any" lets every program that reaches the node call tools': plan.auth.anonymous == "any",
        'gate.mode = "open" lets calls pass that cannot be undone': plan.gate.mode == "open",
        'gate.unannotated = "allow" lets tools run that say nothing of what they do': plan.gate.unannotated == "allow",
        'ax.require_proof = "never" lets subservers change things without proof': plan.ax.require_proof == "never",
        "drivers.trust_workspace starts drivers that no person has looked at": plan.drivers.trust_workspace,
        "drivers.allow_unverified_install starts programs without a checksum": plan.drivers.allow_unverified_install,
        **{
            f'drivers.sandbox = {{ {driver} = "off" }} runs it with all rights': True for driver in plan.drivers.sandbox
        },
    }
    for problem, applies in unsafe.items():
        if applies:
            key = problem.partition(" ")[0]
            waits = set_up.status is not None and any(line.startswith(f"{key}:") for line in set_up.status.loosened)
            suffix = "; a signature is missing, so it does not count yet" if waits else ""
            yield f"{problem}{suffix}", f"remove {key}, or keep it knowing this", None
    for key, address in (("node.listen", plan.node.listen), ("node.operator_listen", plan.node.operator_listen)):
        if not is_loopback(address.host) and plan.node.tls_cert is None:
            yield f"{key} = {address} is reached from elsewhere without TLS", "set node.tls_cert and node.tls_key", None


def _records(set_up: SetUp) -> Findings:
    """Yield the problems that a running node reports about itself, such as an audit log that cannot be written."""
    if set_up.status is None:
        return
    if set_up.status.node.audit_trouble:
        yield f"the audit log cannot be written: {set_up.status.node.audit_trouble}", "make room on the disk", None
    for channel, trouble in set_up.status.approvals.channels.items():
        yield f"operators are not told by {channel}: {trouble}", f"correct approvals.{channel}", None
    if blocked := set_up.status.safety.blocked:
        yield f"agents are blocked: {blocked}", "look why, and unblock them", "interlock agents list"


def _store(set_up: SetUp) -> Findings:
    """Yield a problem if the store on NATS cannot be used."""
    if set_up.status is not None:
        if set_up.status.node.store_trouble:
            yield set_up.status.node.store_trouble, "start the NATS server, and look at what lies between", None
        return
    if set_up.loaded is None or set_up.plan.store.backend != "nats":
        return
    from interlock.credentials.shared_store import find_store_problem

    trouble = asyncio.run(find_store_problem(set_up.plan, set_up.data))
    if trouble is not None:
        yield trouble, "until then the node does not start", None


CHECKS: Final[dict[str, Callable[[SetUp], Findings]]] = {
    "configuration": _configuration,
    "address": _addresses,
    "permission": _permissions,
    "runtime": _runtimes,
    "sandbox": _sandbox,
    "store": _store,
    "server": _servers,
    "driver": _drivers,
    "parent": _parents,
    "token": _tokens_ended,
    "certificate": _certificate,
    "clock": _clock,
    "approver": _approver,
    "unsafe": _unsafe,
    "record": _records,
}

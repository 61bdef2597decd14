"""A trial of a driver outside a node: install its server, start it once in its sandbox, check its tools, stop it.

A trial uses the same provider as a node, so it finds the same problems. It calls no tool, opens no endpoint, and leaves
nothing running. It uses the node's store, which supports several writers, so a node that runs the driver later finds
the record of what was installed.

`advice` explains what the user can do about a failed trial. Installers and servers report failures only as free text,
so `advice` searches for known words. A failure that is not recognised gets general advice, never the advice for another
failure.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec

from interlock.config.plan import Plan
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.caller import QuestionOrigin
from interlock.core.clock import Clock
from interlock.core.current_plan import Addresses
from interlock.core.part import Part
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit, build_store
from interlock.credentials.service import CredentialService
from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Installed
from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.protocol.model import Prompt, Resource
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.provider.provider import ProviderFactory
from interlock.drivers.workspace.declaration import Declared
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import LEGACY_CAPABILITIES, ConnectorParts, EraMemory
from interlock.links.keeper import Keeper
from interlock.links.link import LinkEvents, ServerFacts
from interlock.links.listing import Listing
from interlock.process.orphan_reaper import OrphanReaper
from interlock.process.packages.package_store import package_folders
from interlock.process.sandbox.sandbox import Sandboxes, outer_rules, private_paths
from interlock.process.stderr import words_of
from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

LAST_WORDS: Final = 8  # lines of stderr that say something
CLIENT_CAPABILITIES: Final = ("elicitation", "sampling")  # what a server may ask any client for
ALL_RESOURCES: Final = "{+uri}"

Say = Callable[[str], None]


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trial: a driver's server was installed and started once. `tools`, `prompts` and `has_resources` are
    what it listed.
    """

    state: DriverState
    code: str | None
    reason: str | None
    problems: tuple[FileProblem, ...]
    tools: tuple[dict[str, Any], ...] = ()
    prompts: tuple[str, ...] = ()  # their names
    has_resources: bool = False
    facts: ServerFacts | None = None
    transport: str = ""
    installed: Installed | None = None
    last_words: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()  # hosts that its sandbox kept it from reaching, with ports where these are known

    @property
    def is_up(self) -> bool:
        """Return whether the server started and listed its tools."""
        return self.state in (DriverState.READY, DriverState.PARTIAL, DriverState.REJECTED) and self.facts is not None


class TrialRunner:
    """Runner of trials, in which a driver's server is installed and started once. It works only inside `async with`."""

    def __init__(
        self, plan: Plan, *, newest: bool = False, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Prepare to run trials. With `newest`, install the newest releases, and do not record them.

        `environment` are variables of the user who asks for the trial. A server to which they are passed on gets these
        values instead of those in the environment of this process.
        """
        self.plan = plan
        self._environment = environment
        self._newest = newest
        self.clock = Clock()
        self.store = build_store("sqlite", plan.data)
        self._credentials = CredentialService(plan.data, self.clock, plan.node.name, Addresses(plan.node))
        self._audit = build_audit(plan.store.backend, plan.data)
        self._recorder = Recorder(self._audit)
        self._keepers: dict[str, Keeper] = {}
        self._denied: list[str] = []
        self._eras = EraMemory(self.store.kv, self.clock)
        self._reaper = OrphanReaper()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the stores and the other parts that trials need. Raise StoreError if a store cannot be opened."""
        plan = self.plan
        parts: tuple[Part, ...] = (self.store, self._audit, self._credentials, self._eras, self._reaper)
        for part in parts:
            await part.open()
            self._stack.push_async_callback(part.close)
            if part is self._audit:
                self._stack.push_async_callback(self._recorder.flush)
        connector_parts = ConnectorParts(
            packages=package_folders(plan),
            message_bytes=plan.limits.message_bytes,
            reaper=self._reaper,
            eras=self._eras,
            clock=self.clock,
            revealer=self._credentials.revealer,
            sandboxes=Sandboxes(
                state=plan.data,
                packages=package_folders(plan).store,
                workspace=plan.workspace,
                user_home=Path.home(),
                clock=self.clock,
                record=self._on_record,
                rules=outer_rules(plan.drivers),
                private=private_paths(plan),
            ),
        )
        # A trial checks now, whatever an earlier check found.
        eager = msgspec.structs.replace(plan, drivers=msgspec.structs.replace(plan.drivers, registration="eager"))
        self._make = ProviderFactory(
            kv=self.store.kv,
            clock=self.clock,
            recorder=self._recorder,
            keepers=self._keepers,
            link_events=_TrialEvents(),
            credentials=self._credentials,
            connector_parts=connector_parts,
            plan=lambda: eager,
            newest=self._newest,
            environment={**os.environ, **self._environment},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run_once(self, declared: Declared, say: Say, *, asks_for_all: bool = False) -> TrialResult:
        """Install and start the server of a driver, ask it for its tools, and stop it. `say` is called with a text for
        each step.

        With `asks_for_all`, it is also asked for its prompts and resources, and may list what it has only for clients
        that it can ask questions.
        """
        driver = declared.driver
        assert driver is not None  # noqa: S101  (only a driver that was read is tried)
        if asks_for_all:
            driver = msgspec.structs.replace(
                driver,
                interlock=msgspec.structs.replace(driver.interlock, client_capabilities=tuple(LEGACY_CAPABILITIES)),
                prompts=driver.prompts or (Prompt(name="-", integrate_as="raw"),),
                resources=driver.resources or (Resource(uri_template=ALL_RESOURCES, integrate_as="raw"),),
            )
        once = msgspec.structs.replace(driver, connection=msgspec.structs.replace(driver.connection, max_retries=0))
        if driver.sandbox is not None and (access := driver.sandbox.env) is not None:
            values = {name: self._environment[name] for name in access.passed if name in self._environment}
            passed = tuple(name for name in access.passed if name not in values)
            access = msgspec.structs.replace(access, passed=passed, set={**access.set, **values})
            once = msgspec.structs.replace(once, sandbox=msgspec.structs.replace(driver.sandbox, env=access))
        steps: list[str] = []
        self._denied.clear()

        def on_step(state: DriverState, reason: str | None) -> None:
            installing = reason or "installing it"
            texts = {DriverState.INSTALLING: installing, DriverState.CHECKING: "starting it, and asking for its tools"}
            text = texts.get(state)
            if text is not None and steps[-1:] != [text]:
                steps.append(text)
                say(text)

        provider = self._make(msgspec.structs.replace(declared, driver=once), on_step=on_step)
        provider.start()
        try:
            await provider.settled.wait()
            keeper = self._keepers.get(driver.key)
            listing = provider.listing if provider.listing is not None else Listing()
            lines = keeper.stderr.tail(8 * LAST_WORDS) if keeper is not None else []
            return TrialResult(
                state=provider.state,
                code=provider.code,
                reason=provider.reason,
                problems=provider.problems,
                tools=tuple(tool for raw in listing.tools.raws if isinstance(tool := decode_value(raw), dict)),
                prompts=tuple(dict.fromkeys(name for name, _ in listing.prompts.items)),
                has_resources=bool(listing.resources.items or listing.templates.items),
                facts=keeper.link.facts if keeper is not None else None,
                transport=keeper.link.transport if keeper is not None else "",
                installed=provider.installed,
                last_words=words_of([line.text for line in lines])[-LAST_WORDS:],
                denied=tuple(dict.fromkeys(self._denied)),
            )
        finally:
            await provider.stop(at_once=True)
            await asyncio.sleep(0)  # the end of its tasks

    def _on_record(self, record: AuditRecord) -> None:
        if record.reason is not None:
            self._denied.append(record.reason.removeprefix("egress_denied: ").partition(": ")[0])


class _TrialEvents(LinkEvents):
    """Handler of the requests and messages that a server sends during a trial. There is no client, so questions are
    refused and messages are discarded.
    """

    def on_question(self, link: ConnectedLink, asking: QuestionOrigin) -> Refusal | None:
        return Refusal(METHOD_NOT_FOUND, "no client can be asked during a trial run")


NOTHING: Final = "nothing was written"

# Words of installers, and what each means. The first pattern that occurs counts.
_INSTALL_ADVICE: Final = {
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|getaddrinfo|name resolution"
    r"|NewConnectionError|ConnectTimeout|ReadTimeout|Max retries|Network is unreachable|Connection refused"
    r"|Connection broken|ProxyError|SSLError|took longer than|no such host": (
        "{} is not reachable from here: check the network and its proxy, then try again"
    ),
    r"ETARGET|notarget|No matching version|from versions: (?!none)|manifest unknown|manifest for": (
        "{} has no such version: name one that exists, or none for the newest"
    ),
    r"E404|404 Not Found|found no version of|from versions: none|No matching distribution|repository does not exist"
    r"|pull access denied": "{} has nothing of this name and version: check how it is written",
}
_NO_PROGRAM: Final = re.compile(r"^present: .*(does not exist|is not executable|no program )")
_STARTED: Final = re.compile(
    r"spawn (?P<node>[\w.+-]+) ENOENT|No such file or directory: '(?P<python>[\w.+-]+)'"
    r"|(?:^|\s)(?P<shell>[\w.+-]+): (?:command )?not found"
)
_READ_ONLY: Final = re.compile(
    r"EROFS|EACCES|Read-only file system|Permission denied|unable to open database file|readonly database"
)


def advice(trial: TrialResult, server: Mapping[str, Any], beside: Sequence[str] = ()) -> str:
    """Return what a person can do about a server that could not be installed or started in a trial.

    `server` is the server block of the driver. `beside` lists packages that were installed with the server.
    """
    if trial.installed is None:
        reason = trial.reason or ""
        registry = SERVERS[server["kind"]].registry_name if server.get("kind") in SERVERS else None
        if registry is None or _NO_PROGRAM.search(reason):
            return f"there is no such program here: install it, or write its path; {NOTHING}"
        texts = (text.format(registry) for words, text in _INSTALL_ADVICE.items() if re.search(words, reason, re.I))
        return next(texts, "the installer's words say what it lacks") + f"; {NOTHING}"
    if trial.denied:
        place = trial.denied[0]
        return f"it tried to reach {place}, which its sandbox does not allow: --egress {place} allows it"
    if trial.state is DriverState.UNAUTHED:
        return "--secret NAME, or --header 'Authorization=Bearer …', gives it a credential; it is kept in the store"
    if server.get("kind") in SERVERS and SERVERS[server["kind"]].confinement == "elsewhere":
        return f"check the address, and that an MCP server answers there; {NOTHING}"
    return f"{_advise_on_start(' | '.join(trial.last_words), server, beside)}; {NOTHING}"


def _advise_on_start(words: str, server: Mapping[str, Any], beside: Sequence[str]) -> str:
    for each in server.get("args", ()):
        if each.startswith("/") and each in words and not Path(each).exists():
            return f"{each} is not there: check the path"
    kind = SERVERS.get(str(server.get("kind")))
    if kind is not None and (advice := kind.advise_on_start(words, has_extra_packages=bool(beside))) is not None:
        return advice
    if (match := _STARTED.search(words)) is not None:
        name = match["node"] or match["python"] or match["shell"]
        return f"it may not start {name}: --program {name} allows it"
    if _READ_ONLY.search(words):
        return "it may not write there: --write FOLDER opens a folder to it"
    return "its own words say why; a variable is given with --env, an argument after --, a folder with --write"

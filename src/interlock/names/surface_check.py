"""The session-bind check: tools are compared with the registered specifications of their names when they are listed.

Theory of operation. When a server lists its tools, `SurfaceChecks.judge` looks up each name. A registered name has a
specification, and the schemas of the tool are compared with it (`protocol.judgement`). The policy of the configuration
turns the result into a consequence: the tool is offered, offered with a warning, or refused, alone or with its server.
The result stays with the route until the list, the registry or the configuration changes. A call of the tool checks
none of this again; it only asks whether the route is refused (`NamesCheck`).

Three things can change a result. `Rejudgement` lists tools again when the registry changes. Operators can pin the
schemas of a tool (`SurfacePins`): from then on every difference counts. If no program can decide whether a tool
conforms, `SurfaceQuestions` asks a person, once for each pair of schemas.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Source, Status
from interlock.approvals.protocol.digests import ACCEPT, SURFACE, surface_pair_digest
from interlock.approvals.tool_definitions import NODE, ToolRulings
from interlock.catalog.api import CheckVerdict
from interlock.catalog.catalog import Namespace
from interlock.catalog.routes import Route, Surface, Surfaces
from interlock.config.plan import Plan
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallLink
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CheckNumber, CheckRefusal
from interlock.core.clock import Clock
from interlock.core.feed import AsyncFeed
from interlock.mcp.items import Item
from interlock.names.protocol import judgement
from interlock.names.protocol.entry import RegistryEntry, copied
from interlock.names.protocol.grammar import Lookalikes
from interlock.names.protocol.judgement import Judgement, SchemaPair, SurfaceVerdict
from interlock.names.state import RegistryState
from interlock.store.ports import Change, KeyValue
from interlock.wire.jsonrpc.codec import CodecError
from interlock.wire.refusal import SPECIFICATION_DRIFT, SURFACE_MISMATCH, Refusal
from interlock.wire.schemas.budget import Effort

log = logging.getLogger("interlock.names")

ANY: Final = msgspec.Raw(b'{"type":"object"}')  # the arguments of a tool that declares no schema
NONE: Final = msgspec.Raw(b"null")
KNOWN_MAX: Final = 10_000  # entries whose specifications are kept prepared
_VERDICTS: Final = list(SurfaceVerdict)
# The sentences for the notes of a judgement.
_WORDS: Final = {
    "behind": "it keeps to revision {behind}; {revision} is current",
    "unknown_revision": "it keeps to no revision of the specification to the letter",
    "claim_mismatch": "it claims a revision that its schemas are not of",
    "scope_tightened": "the name was public once and now asks for a credential",
    "deprecated": "{deprecation}",
    "withdrawn": "the name is withdrawn",
    "pin_differs": "it is not what is pinned, and clients can go on: interlock names repin {name}",
}


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """The schemas that a tool had when an operator pinned it. The tool is compared with them from then on."""

    tool: str
    digest: str
    argument: msgspec.Raw
    returned: msgspec.Raw = NONE


PINS_BUCKET: Final = "surface_pins"


class SurfacePins:
    """The pinned schemas of tools. A tool that has become incompatible with its pin is refused until an operator pins
    it again. If registry.strict is set, any difference is refused.

    Pins are kept in memory, and are written to the store before they take effect. Methods raise StoreError if the store
    fails.
    """

    def __init__(self, kv: KeyValue, clock: Clock) -> None:
        self._kv = kv
        self._clock = clock
        self._pins: dict[str, Pin] = {}

    async def open(self) -> None:
        for entry in await self._kv.entries(PINS_BUCKET, self._clock.wall()):
            pin = entry.decode(Pin, f"the pin {entry.key}")
            self._pins[pin.tool] = pin

    async def close(self) -> None:
        """Do nothing: all pins are on disk."""

    def take_change(self, change: Change) -> None:
        """Apply the change of a pin that another replica made."""
        if change.entry is None:
            self._pins.pop(change.key, None)
        else:
            pin = msgspec.json.decode(change.entry.value, type=Pin)
            self._pins[pin.tool] = pin

    def get(self, tool: str) -> Pin | None:
        return self._pins.get(tool)

    def all(self) -> tuple[Pin, ...]:
        return tuple(self._pins.values())

    async def put(self, pin: Pin) -> None:
        await self._kv.put(PINS_BUCKET, pin.tool, msgspec.json.encode(pin), self._clock.wall())
        self._pins[pin.tool] = pin

    async def remove(self, tool: str) -> bool:
        if tool not in self._pins:
            return False
        await self._kv.delete(PINS_BUCKET, tool)
        del self._pins[tool]
        return True


WAITING_MAX: Final = 50  # questions about one segment; more are asked when some are decided
SHOWN_BYTES_MAX: Final = 256 * 1024  # of schemas that a person can be shown
_REASON: Final = "nobody can compute whether the tool keeps to the specification of its name"


class SurfaceQuestions:
    """Questions to people about tools. If no program can decide whether a tool conforms to the specification of its
    name, a person is asked once.

    An answer applies to one tool and one pair of schemas. If the revision or the tool's definition changes, a new
    question is asked.
    """

    def __init__(self, inbox: Inbox, rulings: ToolRulings) -> None:
        self._inbox = inbox
        self._rulings = rulings
        self._work = BackgroundTasks()
        self._asking: set[tuple[str, str]] = set()

    async def open(self) -> None:
        """Do nothing: questions from earlier runs are still in the inbox."""

    async def close(self) -> None:
        await self._work.finish()

    def is_accepted(self, tool: str, digest: str) -> bool:
        """Return whether a person decided that this tool conforms with this pair of schemas."""
        ruling = self._rulings.find(tool, digest)
        return ruling is not None and ruling.says == ACCEPT

    def ask(self, segment: str, tool: str, digest: str, shown: dict[str, Any]) -> None:
        """Ask a person whether a tool conforms to the specification of its name, unless the question was asked before.
        `digest` identifies the schemas that no program could compare. `shown` is what the person sees.
        """
        if (tool, digest) in self._asking or self._rulings.find(tool, digest) is not None:
            return
        if self._inbox.find_definition(tool, digest) is not None:
            return
        self._asking.add((tool, digest))
        self._work.begin(self._put_into_inbox(segment, tool, digest, shown), name=f"surface question {tool}")

    async def _put_into_inbox(self, segment: str, tool: str, digest: str, shown: dict[str, Any]) -> None:
        """Put a question into the inbox. Do not ask if the question is too large or if too many questions about this
        server are waiting.
        """
        try:
            # Make older questions about a tool void, so that no server can fill the inbox.
            def is_outdated(approval: Approval) -> bool:
                is_ours = approval.status is Status.PENDING and SURFACE in approval.factors
                return is_ours and approval.tool == tool and approval.digest != digest

            await self._inbox.void_where("superseded: the tool or its specification is another by now", is_outdated)
            waiting = sum(approval.target == segment for approval in self._inbox.waiting_definitions())
            params = msgspec.json.encode({"surface": shown})
            if waiting >= WAITING_MAX or len(params) > SHOWN_BYTES_MAX:
                log.warning("link %s: %s is undecided, and nobody can be asked now", segment, tool)
                return
            draft = self._inbox.draft(
                Kind.DEFINITION,
                Source.AX,
                requested_by=NODE,
                tool=tool,
                digest=digest,
                tool_digest=digest,
                target=segment,
                params=Raw(params),
                reason=_REASON,
                factors=(SURFACE,),
            )
            raised = await self._inbox.raise_(draft)
            if isinstance(raised, Refusal):
                log.error("link %s: %s is undecided, and cannot be put into the inbox", segment, tool)
            else:
                message = "link %s: is %s what %s means? interlock approvals show %.8s"
                log.warning(message, segment, tool, shown["name"], raised.id)
        finally:
            self._asking.discard((tool, digest))


def _schemas(pair: SchemaPair) -> dict[str, Any]:
    return {"argument": pair.argument} | ({} if pair.returned is None else {"return": pair.returned})


@dataclass(eq=False)
class SurfaceChecks(Surfaces):
    """Comparison of each tool that a server lists with the specification that the registry has for the tool's name."""

    _state: RegistryState
    _policy: Callable[[], judgement.SurfacePolicy]
    questions: SurfaceQuestions
    pins: SurfacePins
    # Returns a registered name that looks like the given name, or None.
    _near: Callable[[str], str | None] = lambda name: None
    _prepared: dict[str, tuple[RegistryEntry, tuple[judgement.Specification, ...]]] = field(default_factory=dict)

    def judge(
        self, segment: str, tool: str, names: tuple[str, ...], item: Item, meta: Item, effort: Effort
    ) -> Surface | None:
        """Judge a listed tool by the entries of all its names. Return the worst result.

        `names` are the name that the server uses for the tool, and other names under which the tool is known. Return
        None if none of them is registered and enforced, the tool keeps to its pin, and the first name does not look
        like a registered one.
        """
        policy = self._policy()
        surfaces = [
            self._judge_entry(entry, policy, segment, tool, item, meta, effort)
            for name in names
            if (entry := self._state.entry(name)) is not None and policy.enforcement(name) != "off"
        ]
        worst = max(surfaces, key=_severity, default=None)
        if (pin := self.pins.get(tool)) is not None and (worst is None or not worst.is_refused):
            worst = _compare_with_pin(pin, worst, names[0], item, policy, effort)
        if worst is not None or policy.enforce == "off" or (near := self._near(names[0])) is None:
            return worst
        # The name is not registered, and looks like a registered one.
        return Surface(
            judgement=Judgement(name=names[0], verdict=judgement.absent_verdict(names[0]), near=near),
            warn=lambda: f"near_miss: its name looks like the registered {near}, and is another",
        )

    def _judge_entry(
        self,
        entry: RegistryEntry,
        policy: judgement.SurfacePolicy,
        segment: str,
        tool: str,
        item: Item,
        meta: Item,
        effort: Effort,
    ) -> Surface:
        """Judge a tool by one registry entry. If no program can decide, ask a person."""
        specifications = self._specifications(entry)
        argument, returned = item.get("inputSchema"), item.get("outputSchema")
        judged = judgement.judge(entry, specifications, argument, returned, judgement.read_claim(meta), effort)
        is_accepted = False
        if judged.verdict is SurfaceVerdict.UNDECIDED and judged.digest is not None:
            registered, offered = specifications[-1].pair, SchemaPair(argument, returned)
            # The digest identifies the name together with the registered and the offered pair of schemas.
            digest = surface_pair_digest(
                entry.surface_name,
                (registered.argument_digest, registered.return_digest),
                (offered.argument_digest, offered.return_digest),
            )
            is_accepted = self.questions.is_accepted(tool, digest)
            if not is_accepted:
                shown = {
                    "name": entry.surface_name,
                    "registered": _schemas(registered),
                    "offered": _schemas(offered),
                    "differences": [str(each) for each in judged.differences],
                }
                self.questions.ask(segment, tool, digest, shown)
        is_trusted = self._state.is_trusted(entry)
        consequence = policy.consequence(entry, judged, is_trusted=is_trusted, is_accepted=is_accepted)
        if consequence in ("reject", "session"):
            refuse, detail = partial(_refusal, judged, tool), partial(_detail, judged, tool)
            return Surface(judgement=judged, refuse=refuse, ends_session=consequence == "session", warn=detail)
        warn = partial(_warning, judged, entry, is_trusted=is_trusted) if consequence == "warn" else None
        return Surface(judgement=judged, warn=warn)

    def _specifications(self, entry: RegistryEntry) -> tuple[judgement.Specification, ...]:
        """Return the revisions of an entry, prepared for comparisons. They are reused until the entry changes."""
        prepared = self._prepared.get(entry.surface_name)
        if prepared is None or prepared[0] is not entry:
            if len(self._prepared) >= KNOWN_MAX:
                self._prepared.clear()
            prepared = self._prepared[entry.surface_name] = entry, tuple(map(judgement.Specification, entry.revisions))
        return prepared[1]


def _severity(surface: Surface) -> tuple[bool, int]:
    """Return how bad a result is: whether the tool is refused, and the place of its verdict in the order."""
    return surface.is_refused, _VERDICTS.index(surface.judgement.verdict)


def _listed(differences: tuple[judgement.SurfaceDifference, ...]) -> str:
    return "; ".join(map(str, differences))


def _detail(judged: Judgement, tool: str) -> str:
    why = _listed(judged.differences) or "its server declares no output schema, and registry.strict wants one"
    kind = "is not what the registry says of" if judged.verdict is not SurfaceVerdict.UNDECIDED else "may not be"
    return f"{tool} {kind} {judged.name}: {why}"


def _refusal(judged: Judgement, tool: str) -> Refusal:
    """Return the refusal that answers every call of a tool that does not conform to the registry."""
    data: dict[str, Any] = {
        "name": judged.name,
        "verdict": judged.verdict.value,
        "status": judged.status.value if judged.status is not None else None,
        "revision": judged.revision,
        "registered": judged.registered_digest,
        "offered": judged.digest,
        "differences": [msgspec.structs.asdict(each) for each in judged.differences],
        "detail": _detail(judged, tool),
    }
    return Refusal(SURFACE_MISMATCH, "surface_mismatch", data)


def _warning(judged: Judgement, entry: RegistryEntry, *, is_trusted: bool) -> str:
    """Return the warning that clients see in the description of a tool, or an empty text if there is nothing to warn
    about.
    """
    words = {
        "behind": judged.behind,
        "revision": judged.revision,
        "deprecation": entry.deprecation,  # the same words as everywhere (REG-7.3-2)
    }
    parts = [_WORDS[note].format(**words) for note in judged.notes]
    if judged.verdict is SurfaceVerdict.INPUT_ONLY:
        parts.append("its server declares no output schema")
    if judged.verdict is SurfaceVerdict.UNVERIFIABLE:
        parts.append("the registry has no schemas of it")
    if judged.differences:
        parts.append(_listed(judged.differences))
    if not is_trusted:
        parts.append(f"the registry {entry.source} is not trusted yet")
    return f"{judged.name} {judged.verdict.value}: {'; '.join(parts)}" if parts else ""


def _compare_with_pin(
    pin: Pin, surface: Surface | None, name: str, item: Item, policy: judgement.SurfacePolicy, effort: Effort
) -> Surface | None:
    """Compare a tool with its pin and return the result for the tool. If nothing differs, this is `surface`. A
    compatible difference gives a warning, unless registry.strict is set; any other difference gives a refusal
    (REG-8.2-3).
    """
    try:
        pinned = SchemaPair(pin.argument, None if pin.returned == NONE else pin.returned)
        offered = SchemaPair(item.get("inputSchema"), item.get("outputSchema"))
    except CodecError:
        return surface
    if offered.digest == pin.digest:  # REG-8.2-3
        return surface
    unknown = Judgement(name=name, verdict=judgement.absent_verdict(name), digest=offered.digest)
    judged = surface.judgement if surface is not None else unknown
    compared = judgement.compare(pinned, offered, effort)
    if compared.verdict in (SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE) and not policy.strict:  # REG-8.2-3
        warning = _WORDS["pin_differs"].format(name=name)
        text = "; ".join(filter(None, (surface.warning if surface is not None else "", warning)))
        return Surface(judgement=judged, warn=lambda: text)
    detail = f"{pin.tool} is not what is pinned: {_listed(compared.differences) or 'its schemas are others'}"
    data: Mapping[str, Any] = {
        "name": name,
        "pinned": pin.digest,
        "offered": offered.digest,
        "differences": [msgspec.structs.asdict(each) for each in compared.differences],
        "detail": f"{detail}; interlock names repin {name} takes it as it now is",
    }
    refusal = Refusal(SPECIFICATION_DRIFT, "specification_drift", dict(data))
    return Surface(judgement=judged, refuse=lambda: refusal, warn=lambda: str(data["detail"]))


def make_surface_checks(
    state: RegistryState, inbox: Inbox, rulings: ToolRulings, kv: KeyValue, clock: Clock, plan: Callable[[], Plan]
) -> SurfaceChecks:
    """Create the check that compares listed tools with the registry. `plan` returns the current configuration."""
    questions, pins, near = SurfaceQuestions(inbox, rulings), SurfacePins(kv, clock), _LazyLookalikes(state).near
    return SurfaceChecks(state, lambda: copied(plan().registry, judgement.SurfacePolicy), questions, pins, near)


class _LazyLookalikes:
    """An index that finds registered names which look like another name. It is built on first use, and built again
    after entries were added or removed.
    """

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._version = ""
        self._lookalikes = Lookalikes()

    def near(self, name: str) -> str | None:
        if self._version != self._state.version:
            self._version = self._state.version
            if self._lookalikes.names != self._state.registry.entries.keys():
                self._lookalikes = Lookalikes(self._state.registry.entries)
        return self._lookalikes.near(name)


class Rejudgement:
    """A task that compares tools with the registry again after each change of the registry. It compares only tools that
    have a registered name, or had one.
    """

    def __init__(self, state: RegistryState, namespace: Callable[[], Namespace], ruled: AsyncFeed[str]) -> None:
        """Create the task. It publishes on `ruled` the segments of the servers whose tools must be listed again."""
        self._find = state.entry
        self._namespace = namespace
        self._ruled = ruled
        self._work = BackgroundTasks()
        self._is_due = False
        self._is_open = False
        state.changed.subscribe(self._on_change)

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self._work.finish()

    async def settle(self) -> None:
        """Wait until all tools have been judged by the current registry."""
        await self._work.finish()

    def _on_change(self, _: None) -> None:
        if not self._is_open:
            return  # tools that are listed later are judged by the registry as it is then
        is_working, self._is_due = self._is_due or len(self._work) > 0, True
        if not is_working:
            self._work.begin(self._judge_again(), name="tools judged by the registry")

    async def _judge_again(self) -> None:
        while self._is_due:
            self._is_due = False
            find = self._find
            for items in tuple(self._namespace().link_items):
                # Tools that were judged before, and those whose names are registered by now.
                if any(route.surface or find(route.original) or find(route.local) for route in items.tools):
                    await self._ruled.publish(items.link.segment)


class NamesCheck:
    """Check 6 of the guard: it refuses calls of tools that do not conform to the registered specification of their
    name.

    The tool is judged when its server lists it. Only routes that are refused have this check, so that calls of other
    tools cost nothing.
    """

    number = CheckNumber.NAMES
    name = "names"
    is_common = False

    def applies_to(self, route: Route) -> bool:
        """Return whether calls of this route's tool are refused because of its name."""
        return route.is_refused

    def check(self, call: Call, link: CallLink) -> CheckRefusal | None:
        refusal = call.route.refusal if call.route is not None else None
        return None if refusal is None else CheckRefusal(self.number, refusal)

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        if route.refusal is not None:
            detail = (route.refusal.details or {}).get("detail", route.refusal.message)
            return CheckVerdict(number=self.number, name=self.name, verdict="refuse", reason=str(detail))
        surface = route.surface
        if surface is None:
            reason = "its name is not registered"
        elif surface.judgement.verdict is SurfaceVerdict.IDENTICAL and not surface.warning:
            reason = "it is what the registry says of its name"
        else:
            reason = surface.warning or f"{surface.judgement.name}: {surface.judgement.verdict.value}"
        return CheckVerdict(number=self.number, name=self.name, verdict="pass", reason=reason)

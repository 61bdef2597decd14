"""The definitions of tools as they were last accepted, and the decisions of operators about them.

Theory of operation. The first definition of a tool is taken on trust and remembered on disk. A later definition that
differs is reported once: in the inbox as a difference, in the log, and in the audit log. Until a person accepts it,
clients see the accepted definition, which `read_accepted` gives; the catalog decides what applies to a tool instead
(`definitions` of its server, [[tool]] pin, a subserver that registered). If a change claims less effect, scope or cost
than was accepted before (`confirmation.claims`), the accepted claims hold until a person agrees. When a tool returns to
its accepted definition, the approval stays in the inbox, so that a person sees what the server tried.

The work has two halves, because the catalog prepares lists on the event loop and must not wait for the disk:

- `look` is called for each tool while a list is prepared. It compares fingerprints in memory and says what the catalog
  does with the tool.
- `process_seen` gets all that was seen once the list is in effect. A task for each segment writes new definitions and
  raises approvals. Lists that come faster than they can be processed are merged, and after questions were raised the
  task pauses, so that a server that changes its tools all the time cannot fill the inbox.

Decisions (`ToolRulings`) are remembered by tool and digest. Another server that copies a definition word for word gets
nothing from a decision, and a definition that changes is another one.
"""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
from msgspec import Raw

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Source, Status, What
from interlock.approvals.protocol.digests import ACCEPT, CHANGED, SURFACE, UNCLASSIFIED
from interlock.catalog.routes import DefinitionSnapshot, DefinitionState, Rulings
from interlock.config.plan import ToolClass
from interlock.core.clock import Clock
from interlock.core.feed import AsyncFeed
from interlock.gate.protocol.policy import ToolClaims, claims_shown, is_looser
from interlock.mcp.items import Item
from interlock.store.ports import Change, Conflict, Entry, KeyValue, StoreError
from interlock.wire.jsonrpc.codec import decode_object
from interlock.wire.refusal import Refusal

RULINGS: Final = "rulings"

Says = Literal["read_only", "reversible", "irreversible", "accept", "denied"]


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    digest: str
    says: Says
    by: str
    at: float


@dataclass(eq=False)
class ToolRulings:
    """Decisions of operators about tools, in memory and in the store. A decision is stored before it counts. Methods
    raise StoreError.
    """

    kv: KeyValue
    clock: Clock
    _by_digest: dict[tuple[str, str], Ruling] = field(default_factory=dict, init=False)
    _ruled: set[str] = field(default_factory=set, init=False)

    async def open(self) -> None:
        for entry in await self.kv.entries(RULINGS, self.clock.wall()):
            self._take(entry.decode(Ruling, f"the ruling {entry.key}"))

    def get(self, tool: str, digest: str) -> ToolClass | None:
        """Return the class that an operator gave to a tool with this definition, or None if there is none."""
        ruling = self._by_digest.get((tool, digest))
        match ruling.says if ruling is not None else None:
            case None | "accept" | "denied":
                return None
            case tool_class:
                return tool_class

    def find(self, tool: str, digest: str) -> Ruling | None:
        return self._by_digest.get((tool, digest))

    def knows(self, tool: str) -> bool:
        """Return whether there is any decision about a tool. For most tools there is none, so their digest need not be
        computed.
        """
        return tool in self._ruled

    async def put(self, ruling: Ruling) -> None:
        key = f"{ruling.tool}/{ruling.digest}"
        await self.kv.put(RULINGS, key, msgspec.json.encode(ruling), self.clock.wall())
        self._take(ruling)

    def take_change(self, change: Change) -> Ruling | None:
        """Apply a decision that an operator made at another replica, and return it. A decision can be replaced but
        never removed.
        """
        if change.entry is None:
            return None
        ruling = msgspec.json.decode(change.entry.value, type=Ruling)
        self._take(ruling)
        return ruling

    def _take(self, ruling: Ruling) -> None:
        self._by_digest[ruling.tool, ruling.digest] = ruling
        self._ruled.add(ruling.tool)


log = logging.getLogger("interlock.approvals")

BUCKET: Final = "definitions"
DEFINITION_BYTES_MAX: Final = 32 * 1024  # of a definition kept to compare with; of a longer one only its digest
SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024  # of all definitions kept of one segment
KNOWN_MAX: Final = 20_000  # tools per segment, unless more are listed at once; what is new beyond is not remembered
WAITING_MAX: Final = 200  # changes of one segment that wait at once; more are asked about when some are decided
PAUSE_S: Final = 10.0  # after asking, before more is asked for the same segment
SLICE: Final = 20  # definitions worked on before others get a turn
NODE: Final = "node"  # the principal of a question that no call raised

_CHANGED_REASON: Final = "its server changed the definition since it was last accepted"
_LOOSER_REASON: Final = (
    "its server changed the definition and now claims less effect, scope or cost than was accepted; "
    "until this is accepted, what was accepted before holds"
)
_OPEN_REASON: Final = "an operator asked what the tool is"


class KnownDefinition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    fingerprint: str
    digest: str
    claims: ToolClaims | None = None  # None: kept before claims were


class StoredDefinition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Stored record of a tool: what identifies its accepted definition, and the definition itself as JSON."""

    identity: KnownDefinition
    definition: str | None  # None: it was too long to keep


class _SeenDefinitions:
    """Tool definitions of a segment that were seen since it was last processed."""

    def __init__(self) -> None:
        self.looks: dict[str, tuple[DefinitionSnapshot, DefinitionState]] = {}  # the latest of each tool
        self.coming: dict[str, DefinitionSnapshot] = {}  # to be remembered
        self.listed: Mapping[str, object] = {}


class Definitions(Rulings, DecisionReceiver):
    """The tool definitions that a node has accepted, by segment and tool."""

    def __init__(self, kv: KeyValue, inbox: Inbox, clock: Clock, ruled: AsyncFeed[str]) -> None:
        """Create an empty table of definitions. When a person decides about a tool, the segment of the tool is
        published to `ruled`.
        """
        self.rulings = ToolRulings(kv, clock)
        self._ruled = ruled
        self._kv = kv
        self._inbox = inbox
        self._clock = clock
        self._known: dict[str, dict[str, KnownDefinition]] = {}  # by segment, then by tool
        self._coming: dict[str, dict[str, DefinitionSnapshot]] = {}  # the same, of what is about to be known
        self._again: dict[tuple[str, str], asyncio.Future[Approval | Refusal]] = {}
        self._latest: dict[str, _SeenDefinitions] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}  # by segment, so that lists are taken in the order they came
        self._hurry = asyncio.Event()
        self._writing = asyncio.Lock()

    # Life

    async def open(self) -> None:
        """Read the stored definitions, and apply decisions that are not stored yet. Raise
        StoreError if the store fails.
        """
        await self.rulings.open()
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            self._known[entry.key] = {tool: _with_claims(definition) for tool, definition in _read(entry).items()}
        for approval in self._inbox.listed((Status.APPROVED, Status.DENIED), Kind.DEFINITION):
            if approval.source is Source.DRIVERS:
                continue
            if self.rulings.find(approval.tool, approval.digest) is None or approval.status is Status.APPROVED:
                await self.settle(approval)

    async def close(self) -> None:
        await self.wait_until_processed()

    async def wait_until_processed(self) -> None:
        """Wait until every definition that was seen is stored or has a pending approval."""
        self._hurry.set()
        while self._workers:
            await asyncio.wait(list(self._workers.values()))
        self._hurry.clear()

    async def take_ruling(self, change: Change) -> None:
        ruling = self.rulings.take_change(change)
        for segment, tools in list(self._known.items()):
            if ruling is not None and ruling.tool in tools:
                await self.publish(segment)

    async def take_change(self, change: Change) -> None:
        """Apply the definitions of a segment's tools that another replica accepted."""
        if change.entry is None:
            return
        read = await asyncio.to_thread(_read, change.entry)
        accepted = {tool: _with_claims(definition) for tool, definition in read.items()}
        if accepted != self._known.get(change.key):
            self._known[change.key] = accepted
            await self.publish(change.key)

    # While a list is prepared

    def get(self, tool: str, digest: str) -> ToolClass | None:
        return self.rulings.get(tool, digest)

    def knows(self, tool: str) -> bool:
        return self.rulings.knows(tool)

    def look(self, segment: str, snapshot: DefinitionSnapshot) -> DefinitionState:
        if self.rulings.knows(snapshot.tool):
            ruling = self.rulings.find(snapshot.tool, snapshot.digest)
            if ruling is not None and ruling.says == "denied":
                return DefinitionState.DENIED
        accepted = self._find_known(segment, snapshot.tool)
        if accepted is None:
            return DefinitionState.NEW
        is_same = accepted.fingerprint == snapshot.fingerprint
        if not is_same and accepted.digest != snapshot.digest and self.rulings.find(snapshot.tool, snapshot.digest):
            return DefinitionState.ACCEPTED
        if not snapshot.is_flagged and accepted.claims is not None and accepted.claims.is_flagged:
            snapshot.is_flagged = True  # no part of the digest, so that no person is asked when it goes
        if is_same:
            return DefinitionState.SAME
        return DefinitionState.REWORDED if accepted.digest == snapshot.digest else DefinitionState.CHANGED

    def find_accepted(self, segment: str, tool: str) -> ToolClaims | None:
        accepted = self._find_known(segment, tool)
        return None if accepted is None else accepted.claims

    async def read_accepted(self, segment: str) -> Callable[[str], Item | None]:
        try:
            entry = await self._kv.get(BUCKET, segment, self._clock.wall())
        except StoreError as refused:
            log.error("the accepted definitions of %s cannot be read: %s", segment, refused)
            entry = None
        stored = {} if entry is None else await asyncio.to_thread(_read, entry)
        coming = self._coming.get(segment, {})

        def find_accepted(tool: str) -> Item | None:
            if (snapshot := coming.get(tool)) is not None:
                return decode_object(snapshot.definition())
            text = stored[tool].definition if tool in stored else None
            return decode_object(text.encode()) if text is not None else None

        return find_accepted

    def _find_known(self, segment: str, tool: str) -> KnownDefinition | DefinitionSnapshot | None:
        return self._coming.get(segment, {}).get(tool) or self._known.get(segment, {}).get(tool)

    # Afterwards

    def process_seen(
        self, segment: str, seen: Iterable[tuple[DefinitionSnapshot, DefinitionState]], listed: Mapping[str, object]
    ) -> None:
        """Queue tool definitions of a segment for processing. `seen` holds those that differ from the stored
        definitions, and those that an operator asked about.

        Lists that arrive faster than they can be processed are merged into one.
        """
        latest = self._latest.setdefault(segment, _SeenDefinitions())
        coming = self._coming.setdefault(segment, {})
        for snapshot, look in seen:
            latest.looks[snapshot.tool] = (snapshot, look)
            if look not in (DefinitionState.CHANGED, DefinitionState.DENIED):
                latest.coming[snapshot.tool] = coming[snapshot.tool] = snapshot
        latest.listed = listed
        if segment not in self._workers:
            work = self._work(segment)
            self._workers[segment] = asyncio.get_running_loop().create_task(work, name=f"definitions {segment}")

    async def _work(self, segment: str) -> None:
        try:
            while (latest := self._latest.pop(segment, None)) is not None:
                try:
                    question_count = await self._take(segment, latest)
                except StoreError as refused:
                    question_count = 0
                    log.error("what the tools of %s are cannot be remembered: %s", segment, refused)
                finally:
                    coming = self._coming.pop(segment, {})
                    left = {tool: each for tool, each in coming.items() if latest.coming.get(tool) is not each}
                    if left:
                        self._coming[segment] = left
                if question_count and not self._hurry.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), PAUSE_S)
        finally:
            del self._workers[segment]

    async def _take(self, segment: str, latest: "_SeenDefinitions") -> int:
        """Store the new definitions of a segment, and ask about the changed ones. Return how many definitions need an
        approval.
        """
        definitions: dict[str, StoredDefinition] = {}
        for done, snapshot in enumerate(list(latest.coming.values())):
            if done % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            definition = snapshot.definition()
            stored = _stored_definition(snapshot.fingerprint, snapshot.digest, definition, snapshot.claims)
            definitions[snapshot.tool] = stored
        if definitions:
            await self._write(segment, definitions, latest.listed)
        looks = latest.looks.items()
        changed = {tool: snapshot for tool, (snapshot, look) in looks if look is DefinitionState.CHANGED}
        await self._void_outdated(segment, changed)
        wanted = {tool for where, tool in self._again if where == segment}
        asking = [
            snapshot
            for snapshot, look in latest.looks.values()
            if snapshot.tool in wanted
            or (look is DefinitionState.CHANGED and self._inbox.find_definition(snapshot.tool, snapshot.digest) is None)
        ]
        if not asking:
            return 0
        entry = await self._kv.get(BUCKET, segment, self._clock.wall())
        before = {} if entry is None else await asyncio.to_thread(_read, entry)
        room = WAITING_MAX - sum(approval.target == segment for approval in self._inbox.waiting_definitions())
        asking.sort(key=lambda snapshot: snapshot.tool not in wanted)  # what an operator asks for comes first
        for snapshot in asking[: max(room, len(wanted))]:
            await self._ask(segment, snapshot, before.get(snapshot.tool))
        if len(asking) > max(room, len(wanted)):
            log.warning("link %s: %d more definitions changed; they are asked about later", segment, len(asking) - room)
        return len(asking)

    async def _write(
        self, segment: str, definitions: dict[str, StoredDefinition], listed: Mapping[str, object] = {}
    ) -> None:
        async with self._writing:
            stored = None
            while stored is None:
                stored = await self._try_write(segment, definitions, listed)
            self._known[segment] = {tool: _with_claims(definition) for tool, definition in stored.items()}

    async def _try_write(
        self, segment: str, definitions: dict[str, StoredDefinition], listed: Mapping[str, object]
    ) -> dict[str, StoredDefinition] | None:
        """Add definitions to those on disk and return all of them, or None if another replica has written meanwhile."""
        now = self._clock.wall()
        entry = await self._kv.get(BUCKET, segment, now)
        stored = {} if entry is None else await asyncio.to_thread(_read, entry)
        # What was accepted is never forgotten: a server would only have to list enough else in between.
        new = [tool for tool in definitions if tool not in stored] if listed else []
        free_count = max(0, max(KNOWN_MAX, len(listed)) - len(stored))
        if len(new) > free_count:
            log.error("link %s: too many tools; of %d no change will be seen", segment, len(new) - free_count)
            left_out = frozenset(new[free_count:])
            definitions = {tool: definition for tool, definition in definitions.items() if tool not in left_out}
        merged = {**stored, **definitions}
        encoded = await asyncio.to_thread(_encode, merged)
        try:
            if entry is None:
                await self._kv.create(BUCKET, segment, encoded, now)
            else:
                await self._kv.update(BUCKET, segment, encoded, entry.revision, now)
        except Conflict:
            return None
        return merged

    async def _ask(self, segment: str, snapshot: DefinitionSnapshot, before: StoredDefinition | None) -> None:
        wanted = self._again.pop((segment, snapshot.tool), None)
        changed = before is not None and before.identity.digest != snapshot.digest
        shown = {"definition": Raw(snapshot.definition())}
        is_loosened = before is not None and changed and is_looser(snapshot.claims, _claims(before))
        if before is not None and changed:
            shown = {"before": Raw((before.definition or "null").encode()), "after": shown["definition"]}
        reason = _LOOSER_REASON if is_loosened else _CHANGED_REASON if changed else _OPEN_REASON
        factors = (*((CHANGED,) if changed else ()), *((UNCLASSIFIED,) if snapshot.is_open else ()))
        members = {"tool_digest": snapshot.digest, "target": segment, "reason": reason, "factors": factors}
        members["params"] = Raw(msgspec.json.encode(shown))
        kind, tool, digest = Kind.DEFINITION, snapshot.tool, snapshot.digest
        draft = self._inbox.draft(kind, Source.AX, requested_by=NODE, tool=tool, digest=digest, **members)
        raised = await self._inbox.raise_(draft, anew=wanted is not None)
        if wanted is not None:
            wanted.set_result(raised)
        elif isinstance(raised, Refusal):
            log.error("link %s: the definition of %s changed; it cannot be put into the inbox", segment, snapshot.tool)
        else:
            message = "link %s: the definition of %s changed, from digest %.12s to %.12s: interlock approvals show %.8s"
            previous = before.identity.digest if before is not None else ""
            log.warning(message, segment, snapshot.tool, previous, snapshot.digest, raised.id)

    async def _void_outdated(self, segment: str, seen: Mapping[str, DefinitionSnapshot]) -> None:
        """End pending approvals of older changes to the same tools, so that a server cannot fill the inbox."""
        await self._inbox.void_where(
            "superseded: the definition is another by now",
            lambda approval: (
                approval.kind is Kind.DEFINITION
                and approval.status is Status.PENDING
                and approval.target == segment
                and SURFACE not in approval.factors
                and approval.tool in seen
                and approval.digest not in (seen[approval.tool].digest, seen[approval.tool].shown_instead)
            ),
        )

    def waits(self, segment: str) -> frozenset[str]:
        """Return the tools of a segment for which an operator requested an approval. Their definitions must be
        processed even if they are unchanged.
        """
        return frozenset(tool for where, tool in self._again if where == segment)

    async def ask_again(self, segment: str, tool: str) -> Approval | Refusal | None:
        """Request an approval of a tool's definition for an operator who wants to classify it, even if it was
        decided before. Return None if the tool is not listed.
        """
        wanted = self._again.setdefault((segment, tool), asyncio.get_running_loop().create_future())
        try:
            await self._ruled.publish(segment)
            await self.wait_until_processed()
            return wanted.result() if wanted.done() else None
        finally:
            self._again.pop((segment, tool), None)

    # Decided

    async def publish(self, segment: str) -> None:
        """Request that the tools of a segment are listed again, so that the decisions about them take effect."""
        await self._ruled.publish(segment)

    async def settle(self, approval: Approval, *, is_published: bool = True) -> Approval | Refusal:
        """Store a decision about a definition, and finish its approval. A failed write is repeated at the next start.

        If the decision is not published here, `publish` must follow.
        """
        decision = approval.decision
        if decision is None:
            return approval
        try:
            answer = decision.answer or ACCEPT if decision.what is What.APPROVED else "denied"
            tool, digest, says = approval.tool, approval.digest, msgspec.convert(answer, Says)
            await self.rulings.put(Ruling(tool=tool, digest=digest, says=says, by=decision.by, at=decision.at))
            if decision.what is What.APPROVED and approval.target is not None and approval.params is not None:
                shown = msgspec.json.decode(approval.params, type=dict[str, Raw])
                definition = shown.get("after", shown.get("definition"))
                if definition is not None:
                    # The same definition may come in other bytes, so no fingerprint of these is stored.
                    claims = claims_shown(msgspec.json.decode(definition))
                    stored = _stored_definition("", approval.digest, bytes(definition), claims)
                    await self._write(approval.target, {approval.tool: stored})
        except StoreError as refused:
            log.error("what was decided of %s cannot be remembered: %s", approval.tool, refused)
            return approval
        is_approved = decision.what is What.APPROVED
        settled = await self._inbox.carry_out(approval.id) if is_approved else approval
        if approval.target is not None and is_published:
            await self.publish(approval.target)
        return settled


def _stored_definition(fingerprint: str, digest: str, definition: bytes, claims: ToolClaims) -> StoredDefinition:
    text = definition.decode("utf-8", "replace") if len(definition) <= DEFINITION_BYTES_MAX else None
    identity = KnownDefinition(fingerprint=fingerprint, digest=digest, claims=claims)
    return StoredDefinition(identity=identity, definition=text)


def _with_claims(stored: StoredDefinition) -> KnownDefinition:
    return msgspec.structs.replace(stored.identity, claims=_claims(stored))


def _claims(stored: StoredDefinition) -> ToolClaims:
    """Return what the server claimed about a stored tool. Without stored claims, read them from the definition; a
    definition that was too long to store claims nothing.
    """
    return stored.identity.claims or claims_shown(msgspec.json.decode(stored.definition or "null"))


def _encode(definitions: Mapping[str, StoredDefinition]) -> bytes:
    """Encode the definitions of a segment. Beyond SEGMENT_BYTES_MAX, the last definitions are stored without
    their text.
    """
    bytes_left = SEGMENT_BYTES_MAX
    fitting: dict[str, StoredDefinition] = {}
    for tool, definition in definitions.items():
        bytes_left -= len(definition.definition or "")
        fitting[tool] = definition if bytes_left >= 0 else msgspec.structs.replace(definition, definition=None)
    return zlib.compress(msgspec.json.encode(fitting), 1)


def _read(entry: Entry) -> dict[str, StoredDefinition]:
    try:
        return msgspec.json.decode(zlib.decompress(entry.value), type=dict[str, StoredDefinition])
    except (msgspec.DecodeError, zlib.error):
        # Taken on trust once more, which is said: what cannot be compared may have changed.
        log.error("what the tools of %s were cannot be read; they are taken as they now are", entry.key)
        return {}

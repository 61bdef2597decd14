"""The definitions of tools as they were last accepted, and the decisions of operators about them.

Theory of operation. The first definition of a tool is taken on trust and remembered on disk. A later definition that
differs is reported once: in the inbox as a difference, in the log, and in the audit log. Until a person accepts it,
clients see the accepted definition, which `read_accepted` gives; the catalog decides what applies to a tool instead
(`definitions` of its server, [[tool]] pin, a subserver that registered). If a change claims less effect, scope or cost
than was accepted before (`confirmation.claims`), the accepted claims hold until a person agrees. When a tool returns to
its accepted definition, the approval stays in the inbox, so that a person sees what the server tried.

Prompts, resource templates, resources and instructions of servers are kept and asked about in the same way, each kind
of a link in a table of its own. Once a table is stored, what is listed besides waits as new.

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
from itertools import islice
from typing import Final, Literal

import msgspec
from msgspec import Raw

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Source, Status, What
from interlock.approvals.protocol.digests import ACCEPT, ADDED, CHANGED, SURFACE, UNCLASSIFIED
from interlock.approvals.protocol.restless_meta import RestlessMeta, differing_keys
from interlock.catalog.routes import (
    DEFINITION_KINDS,
    TOOL,
    DefinitionSnapshot,
    DefinitionState,
    Rulings,
    definition_table,
    named_keys,
    segment_of,
)
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
    """Table of operators' decisions about tools, in memory and in the store. A decision is stored before it takes
    effect. Methods raise StoreError if the store fails.
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
        """Return whether there is any decision about a tool. Callers use this to avoid computing the digests of most
        tools.
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
WAITING_MAX: Final = 200  # changes of one table that wait at once; more are asked about when some are decided
WAITING_RESOURCES_MAX: Final = 20  # the same of resources, of which a server may have any number
PAUSE_S: Final = 10.0  # after asking, or much writing, before more is done for the same table
WRITTEN_MAX: Final = 500  # definitions that are written without a pause
SLICE: Final = 20  # definitions worked on before others get a turn
NODE: Final = "node"  # the principal of a question that no call raised

_CHANGED_REASON: Final = "its server changed the definition since it was last accepted"
_LOOSER_REASON: Final = (
    "its server changed the definition and now claims less effect, scope or cost than was accepted; "
    "until this is accepted, what was accepted before holds"
)
_OPEN_REASON: Final = "an operator asked what the tool is"
_ADDED_REASONS: Final = {
    TOOL: "new tool: its server was accepted without it",
    "prompt": "new prompt: its server was accepted without it",
    "template": "new resource template: its server was accepted without it",
    "resource": "new resource: its server was accepted without it",
    "instructions": "new instructions: the server was accepted without any",
}


class KnownDefinition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    fingerprint: str
    digest: str
    claims: ToolClaims | None = None  # None: kept before claims were


class StoredDefinition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Stored record of an item: the digest of its accepted definition, and the definition itself as JSON."""

    identity: KnownDefinition
    definition: str | None  # None: it was too long to keep


class _SeenDefinitions:
    """Definitions of one table that arrived since the table was last processed."""

    def __init__(self) -> None:
        self.looks: dict[str, tuple[DefinitionSnapshot, DefinitionState]] = {}  # the latest of each item
        self.coming: dict[str, DefinitionSnapshot] = {}  # to be remembered
        self.listed_count = 0


class Definitions(Rulings, DecisionReceiver):
    """The service that stores the accepted definitions of tools and other items, by table and name, and asks people
    about changed definitions.

    A table has the definitions of one kind of one link, see `definition_table`. That of tools is named like its
    segment. A table that exists without an item says that the server was accepted without such an item.
    """

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
        # By table: the digests in `_known`, with the object from which they were collected.
        self._known_digests: dict[str, tuple[dict[str, KnownDefinition], frozenset[str]]] = {}
        self._again: dict[tuple[str, str], asyncio.Future[Approval | Refusal]] = {}
        self._latest: dict[str, _SeenDefinitions] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}  # by segment, so that lists are taken in the order they came
        self._restless: dict[str, RestlessMeta] = {}  # by table
        self._hurry = asyncio.Event()
        self._writing = asyncio.Lock()

    # Life

    async def open(self) -> None:
        """Read the stored definitions, and apply decisions that are not stored yet. Raise
        StoreError if the store fails.
        """
        await self.rulings.open()
        for entry in await self._kv.entries(BUCKET, self._clock.wall()):
            if (stored := _read(entry)) is not None:
                self._known[entry.key] = {tool: _with_claims(definition) for tool, definition in stored.items()}
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
        for table, tools in list(self._known.items()):
            if ruling is not None and ruling.tool in tools:
                await self.publish(table)

    async def take_change(self, change: Change) -> None:
        """Apply the definitions of a segment's tools that another replica accepted."""
        if change.entry is None:
            return
        if (read := await asyncio.to_thread(_read, change.entry)) is None:
            return
        accepted = {tool: _with_claims(definition) for tool, definition in read.items()}
        if accepted != self._known.get(change.key):
            self._known[change.key] = accepted
            await self.publish(change.key)

    # While a list is prepared

    def get(self, tool: str, digest: str) -> ToolClass | None:
        return self.rulings.get(tool, digest)

    def knows(self, tool: str) -> bool:
        return self.rulings.knows(tool)

    def look(self, table: str, snapshot: DefinitionSnapshot) -> DefinitionState:
        if self.rulings.knows(snapshot.tool):
            ruling = self.rulings.find(snapshot.tool, snapshot.digest)
            if ruling is not None and ruling.says == "denied":
                return DefinitionState.DENIED
        accepted = self._find_known(table, snapshot.tool)
        if accepted is None:
            # AX-11.N-14: what a server lists later waits
            return DefinitionState.NEW if self._is_accepted_otherwise(table, snapshot) else DefinitionState.ADDED
        is_same = accepted.fingerprint == snapshot.fingerprint
        if not is_same and accepted.digest != snapshot.digest and self.rulings.find(snapshot.tool, snapshot.digest):
            return DefinitionState.ACCEPTED
        if not snapshot.is_flagged and accepted.claims is not None and accepted.claims.is_flagged:
            snapshot.is_flagged = True  # no part of the digest, so that no person is asked when it goes
        if is_same:
            return DefinitionState.SAME
        return DefinitionState.REWORDED if accepted.digest == snapshot.digest else DefinitionState.CHANGED

    def _is_accepted_otherwise(self, table: str, snapshot: DefinitionSnapshot) -> bool:
        """Return whether a definition under a new name needs no decision. That is so if its server is listed for the
        first time, an operator accepted it, or the same definition was accepted under another name.
        """
        if table not in self._known and table not in self._coming:
            return True
        if self.rulings.knows(snapshot.tool) and self.rulings.find(snapshot.tool, snapshot.digest):
            return True
        stored = self._known.get(table, {})
        former, digests = self._known_digests.get(table, (None, frozenset()))
        if former is not stored:
            digests = frozenset(definition.digest for definition in stored.values())
            self._known_digests[table] = (stored, digests)
        return snapshot.digest in digests

    def find_accepted(self, segment: str, tool: str) -> ToolClaims | None:
        accepted = self._find_known(segment, tool)
        return None if accepted is None else accepted.claims

    async def read_accepted(self, table: str) -> Callable[[str], Item | None]:
        try:
            entry = await self._kv.get(BUCKET, table, self._clock.wall())
        except StoreError as refused:
            log.error("the accepted definitions of %s cannot be read: %s", table, refused)
            entry = None
        stored = await _read_stored(entry)
        coming = self._coming.get(table, {})

        def find_accepted(tool: str) -> Item | None:
            if (snapshot := coming.get(tool)) is not None:
                return decode_object(snapshot.definition())
            text = stored[tool].definition if tool in stored else None
            return decode_object(text.encode()) if text is not None else None

        return find_accepted

    def _find_known(self, table: str, tool: str) -> KnownDefinition | DefinitionSnapshot | None:
        return self._coming.get(table, {}).get(tool) or self._known.get(table, {}).get(tool)

    # Afterwards

    def process_seen(
        self, segment: str, seen: Iterable[tuple[DefinitionSnapshot, DefinitionState]], counts: Mapping[str, int]
    ) -> None:
        """Queue the definitions of a segment for processing. `seen` holds the definitions that differ from the stored
        ones, and those about which an operator asked.
        """
        seen_of_kinds: dict[str, list[tuple[DefinitionSnapshot, DefinitionState]]] = {kind: [] for kind in counts}
        for entry in seen:
            seen_of_kinds.setdefault(entry[0].kind, []).append(entry)
        for kind, entries in seen_of_kinds.items():
            table = definition_table(segment, kind)
            if entries or (table not in self._known and table not in self._coming):
                self._queue(table, entries, counts.get(kind, 0))

    def _queue(self, table: str, seen: list[tuple[DefinitionSnapshot, DefinitionState]], listed_count: int) -> None:
        """Queue definitions of a table for processing. If lists arrive faster than they can be processed, they are
        combined.
        """
        latest = self._latest.setdefault(table, _SeenDefinitions())
        coming = self._coming.setdefault(table, {})
        restless = self._restless.setdefault(table, RestlessMeta())
        for snapshot, look in seen:
            latest.looks[snapshot.tool] = (snapshot, look)
            if look is not DefinitionState.CHANGED:
                restless.forget(snapshot.tool)
            elif restless.take(snapshot.tool, snapshot.covered) and snapshot.shown_instead is not None:
                self._say_restless(table, snapshot)
            if look not in (DefinitionState.CHANGED, DefinitionState.ADDED, DefinitionState.DENIED):
                latest.coming[snapshot.tool] = coming[snapshot.tool] = snapshot
        latest.listed_count = listed_count
        if table not in self._workers:
            work = self._work(table)
            self._workers[table] = asyncio.get_running_loop().create_task(work, name=f"definitions {table}")

    async def _work(self, table: str) -> None:
        try:
            while (latest := self._latest.pop(table, None)) is not None:
                try:
                    work_count = await self._take(table, latest)
                except StoreError as refused:
                    work_count = 0
                    log.error("what the definitions of %s are cannot be remembered: %s", table, refused)
                finally:
                    coming = self._coming.pop(table, {})
                    left = {tool: each for tool, each in coming.items() if latest.coming.get(tool) is not each}
                    if left or table in self._latest:
                        self._coming[table] = left
                if work_count and not self._hurry.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), PAUSE_S)
        finally:
            del self._workers[table]

    async def _take(self, table: str, latest: "_SeenDefinitions") -> int:
        """Store the accepted definitions of a table, and ask a person about the changed ones. Return a number of
        definitions, from which the length of the following pause is computed.
        """
        definitions: dict[str, StoredDefinition] = {}
        for done, snapshot in enumerate(list(latest.coming.values())):
            if done % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            definition = snapshot.definition()
            stored = _stored_definition(snapshot.fingerprint, snapshot.digest, definition, snapshot.claims)
            definitions[snapshot.tool] = stored
        if definitions or table not in self._known:
            await self._write(table, definitions, latest.listed_count)
        waiting = (DefinitionState.CHANGED, DefinitionState.ADDED)
        changed = {tool: snapshot for tool, (snapshot, look) in latest.looks.items() if look in waiting}
        # AX-11.N-16: one question about a definition with restless keys stays, whatever value it shows.
        pending = {approval.tool for approval in self._inbox.waiting_definitions() if approval.target == table}
        settled = {tool for tool in changed if self._is_restless(table, changed[tool]) and tool in pending}
        await self._void_outdated(table, {tool: seen for tool, seen in changed.items() if tool not in settled})
        wanted = {tool for where, tool in self._again if where == table}
        asking = [
            snapshot
            for snapshot, look in latest.looks.values()
            if snapshot.tool in wanted
            or (
                look in waiting
                and snapshot.tool not in settled
                and self._inbox.find_definition(snapshot.tool, snapshot.digest) is None
            )
        ]
        if not asking:
            return len(definitions) if len(definitions) > WRITTEN_MAX else 0
        entry = await self._kv.get(BUCKET, table, self._clock.wall())
        before = await _read_stored(entry)
        asking = [
            snapshot
            for snapshot in asking
            # AX-11.N-16: no further value of a restless key is asked about.
            if snapshot.tool in wanted or not self._differs_restlessly(table, snapshot, before.get(snapshot.tool))
        ]
        most = WAITING_RESOURCES_MAX if _is_of_resources(table) else WAITING_MAX
        room = most - sum(approval.target == table for approval in self._inbox.waiting_definitions())
        asking.sort(key=lambda snapshot: snapshot.tool not in wanted)  # what an operator asks for comes first
        for snapshot in asking[: max(room, len(wanted))]:
            await self._ask(table, snapshot, before.get(snapshot.tool))
        if len(asking) > max(room, len(wanted)):
            log.warning("link %s: %d more definitions changed; they are asked about later", table, len(asking) - room)
        return len(asking)

    def _is_restless(self, table: str, snapshot: DefinitionSnapshot) -> bool:
        """Return whether an item has restless keys while clients see another definition of it than the one that its
        server offers.
        """
        return snapshot.shown_instead is not None and bool(self.find_restless(table, snapshot.tool))

    def _differs_restlessly(self, table: str, snapshot: DefinitionSnapshot, before: StoredDefinition | None) -> bool:
        """Return whether a definition differs from the accepted one only in restless keys of `_meta`. No person is
        asked about such a change.
        """
        if not self._is_restless(table, snapshot) or before is None or before.definition is None:
            return False
        accepted = decode_object(before.definition.encode()) or {}
        naming = "name" if snapshot.kind == TOOL else snapshot.kind
        members = {member: bytes(raw) for member, raw in accepted.items() if member != naming}
        keys = differing_keys(members, {member: bytes(raw) for member, raw in snapshot.covered.items()})
        return keys is not None and keys <= self.find_restless(table, snapshot.tool)

    def find_restless(self, table: str, tool: str) -> frozenset[str]:
        restless = self._restless.get(table)
        return frozenset() if restless is None else restless.keys(tool)

    def _say_restless(self, table: str, snapshot: DefinitionSnapshot) -> None:
        message = (
            "link %s: %s has another %s in its _meta with every list, and is the same otherwise; clients keep the "
            'accepted value, and no one is asked about it again. definitions = "follow" shows every value'
        )
        keys = named_keys(self.find_restless(table, snapshot.tool))
        log.warning(message, segment_of(table), snapshot.tool, keys)

    async def _write(self, table: str, definitions: dict[str, StoredDefinition], listed_count: int = 0) -> None:
        async with self._writing:
            stored = None
            while stored is None:
                stored = await self._try_write(table, definitions, listed_count)
            self._known[table] = {tool: _with_claims(definition) for tool, definition in stored.items()}

    async def _try_write(
        self, table: str, definitions: dict[str, StoredDefinition], listed_count: int
    ) -> dict[str, StoredDefinition] | None:
        """Add definitions to those in the store and return all of them. Return None if another replica has written at
        the same time.
        """
        now = self._clock.wall()
        entry = await self._kv.get(BUCKET, table, now)
        stored = await _read_stored(entry)
        # What was accepted is never forgotten: a server would only have to list enough else in between.
        new = [tool for tool in definitions if tool not in stored] if listed_count else []
        free_count = max(0, max(KNOWN_MAX, listed_count) - len(stored))
        if len(new) > free_count and _is_of_resources(table):
            # Resources come and go, and a new one is shown as it is. So the oldest make room.
            stored = dict(islice(stored.items(), len(new) - free_count, None))
        elif len(new) > free_count:
            log.error("link %s: too many items; of %d no change will be seen", table, len(new) - free_count)
            left_out = frozenset(new[free_count:])
            definitions = {tool: definition for tool, definition in definitions.items() if tool not in left_out}
        merged = {**stored, **definitions}
        encoded = await asyncio.to_thread(_encode, merged)
        try:
            if entry is None:
                await self._kv.create(BUCKET, table, encoded, now)
            else:
                await self._kv.update(BUCKET, table, encoded, entry.revision, now)
        except Conflict:
            return None
        return merged

    async def _ask(self, table: str, snapshot: DefinitionSnapshot, before: StoredDefinition | None) -> None:
        wanted = self._again.pop((table, snapshot.tool), None)
        is_added = before is None
        changed = before is not None and before.identity.digest != snapshot.digest
        shown = {"definition": Raw(snapshot.definition())}
        is_loosened = (
            snapshot.kind == TOOL and before is not None and changed and is_looser(snapshot.claims, _claims(before))
        )
        if before is not None and changed:
            shown = {"before": Raw((before.definition or "null").encode()), "after": shown["definition"]}
        reason = _LOOSER_REASON if is_loosened else _CHANGED_REASON if changed else _OPEN_REASON
        reason = _ADDED_REASONS[snapshot.kind] if is_added else reason
        difference = (CHANGED,) if changed else (ADDED,) if is_added else ()
        factors = (*difference, *((UNCLASSIFIED,) if snapshot.is_open else ()))
        members = {"tool_digest": snapshot.digest, "target": table, "reason": reason, "factors": factors}
        members["params"] = Raw(msgspec.json.encode(shown))
        kind, tool, digest = Kind.DEFINITION, snapshot.tool, snapshot.digest
        draft = self._inbox.draft(kind, Source.AX, requested_by=NODE, tool=tool, digest=digest, **members)
        raised = await self._inbox.raise_(draft, anew=wanted is not None)
        if wanted is not None:
            wanted.set_result(raised)
        elif isinstance(raised, Refusal):
            message = "link %s: the definition of %s changed; it cannot be put into the inbox"
            log.error(message, segment_of(table), snapshot.tool)
        elif is_added:
            message = "link %s: %s is new; the server was accepted without it: interlock approvals show %.8s"
            log.warning(message, segment_of(table), snapshot.tool, raised.id)
        else:
            message = "link %s: the definition of %s changed, from digest %.12s to %.12s: interlock approvals show %.8s"
            previous = before.identity.digest if before is not None else ""
            log.warning(message, segment_of(table), snapshot.tool, previous, snapshot.digest, raised.id)

    async def _void_outdated(self, table: str, seen: Mapping[str, DefinitionSnapshot]) -> None:
        """End pending approvals of earlier definitions of the same items, so that a server cannot fill the inbox by
        changing its definitions.
        """
        await self._inbox.void_where(
            "superseded: the definition is another by now",
            lambda approval: (
                approval.kind is Kind.DEFINITION
                and approval.status is Status.PENDING
                and approval.target == table
                and SURFACE not in approval.factors
                and approval.tool in seen
                and approval.digest not in (seen[approval.tool].digest, seen[approval.tool].shown_instead)
            ),
        )

    def waits(self, table: str) -> frozenset[str]:
        """Return the items of a table about which an operator asks for another decision. Their definitions must be
        processed even if they are unchanged.
        """
        return frozenset(tool for where, tool in self._again if where == table)

    async def ask_again(self, table: str, tool: str) -> Approval | Refusal | None:
        """Request an approval of the definition of a tool or another item on behalf of an operator, even if it was
        decided before. Return None if the item is not listed.
        """
        wanted = self._again.setdefault((table, tool), asyncio.get_running_loop().create_future())
        try:
            await self.publish(table)
            await self.wait_until_processed()
            return wanted.result() if wanted.done() else None
        finally:
            self._again.pop((table, tool), None)

    # Decided

    async def publish(self, table: str) -> None:
        """Publish that the items of a table have to be listed again, so that the decisions about them take effect."""
        await self._ruled.publish(segment_of(table))

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


async def _read_stored(entry: Entry | None) -> dict[str, StoredDefinition]:
    stored = None if entry is None else await asyncio.to_thread(_read, entry)
    return {} if stored is None else stored


def _is_of_resources(table: str) -> bool:
    return table.endswith(f"/{DEFINITION_KINDS['resource']}")


def _read(entry: Entry) -> dict[str, StoredDefinition] | None:
    """Return the definitions of a table, or None if they cannot be read."""
    try:
        return msgspec.json.decode(zlib.decompress(entry.value), type=dict[str, StoredDefinition])
    except (msgspec.DecodeError, zlib.error):
        # Taken on trust once more, which is said: what cannot be compared may have changed.
        log.error("what the tools of %s were cannot be read; they are taken as they now are", entry.key)
        return None

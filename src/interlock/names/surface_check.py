"""The session-bind check: the tools of a server held to what is registered of their names, when its list arrives.

Nothing of this is asked when a tool is called. What the check says stays with the route until the list, the registry or
the configuration changes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from interlock.approvals.protocol.digests import surface_pair_digest
from interlock.catalog.surface import Surface
from interlock.mcp.items import Item
from interlock.names.protocol.claims import read_claim
from interlock.names.protocol.judgement import (
    Judgement,
    SchemaPair,
    Specification,
    SurfaceDifference,
    SurfaceVerdict,
    absent_verdict,
    compare,
    judge,
)
from interlock.names.protocol.model import Entry, Lookup
from interlock.names.protocol.policy import SurfacePolicy
from interlock.wire.jsonrpc.errors import SPECIFICATION_DRIFT, SURFACE_MISMATCH, CodecError, Fault
from interlock.wire.schemas.effort import Effort

ANY: Final = msgspec.Raw(b'{"type":"object"}')  # the arguments of a tool that says nothing
NONE: Final = msgspec.Raw(b"null")
KNOWN_MAX: Final = 10_000  # entries whose specifications are kept prepared
_VERDICTS: Final = list(SurfaceVerdict)
_WORDS: Final = {
    "behind": "it keeps to revision {behind}; {revision} is current",
    "unknown_revision": "it keeps to no revision of the specification to the letter",
    "claim_mismatch": "it claims a revision that its schemas are not of",
    "scope_tightened": "the name was public once and now asks for a credential",
    "deprecated": "{deprecation}",
    "withdrawn": "the name is withdrawn",
    "pin_differs": "it is not what is pinned, and clients can go on: interlock names repin {name}",
}


class UndecidedPair(msgspec.Struct, frozen=True, kw_only=True):
    """A tool and a specification of which a person has to say whether the one keeps to the other."""

    segment: str
    tool: str
    name: str
    digest: str
    registered: SchemaPair
    offered: SchemaPair
    differences: tuple[SurfaceDifference, ...]


class PairRulings(Protocol):
    def is_accepted(self, tool: str, digest: str) -> bool:
        """Whether an operator accepted this pair."""

    def ask(self, pair: UndecidedPair) -> None:
        """Puts it to a person, once."""


class Pins(Protocol):
    def get(self, tool: str) -> "Pin | None": ...


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool was when an operator pinned it."""

    tool: str
    digest: str
    argument: msgspec.Raw
    returned: msgspec.Raw = NONE


class SurfaceChecks:
    def __init__(
        self,
        lookup: Lookup,
        policy: Callable[[], SurfacePolicy],
        rulings: PairRulings,
        pins: Pins,
        near: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        """`near`: the registered name that another looks like."""
        self._lookup = lookup
        self._policy = policy
        self._rulings = rulings
        self._pins = pins
        self._near = near
        self._prepared: dict[str, tuple[Entry, tuple[Specification, ...]]] = {}

    def judge(
        self, segment: str, tool: str, names: tuple[str, ...], item: Item, meta: Item, effort: Effort
    ) -> Surface | None:
        policy = self._policy()
        found: Surface | None = None
        for name in names:
            entry = self._lookup.entry(name)
            if entry is not None and policy.enforcement(name) != "off":
                surface = self._judge_entry(entry, policy, segment, tool, item, meta, effort)
                if found is None or _is_worse(surface, found):
                    found = surface
        if (pin := self._pins.get(tool)) is not None and (found is None or not found.is_refused):
            found = _held_to_pin(pin, found, names[0], item, policy, effort)
        return found if found is not None or policy.enforce == "off" else self._maybe_near(names[0])

    def _judge_entry(
        self,
        entry: Entry,
        policy: SurfacePolicy,
        segment: str,
        tool: str,
        item: Item,
        meta: Item,
        effort: Effort,
    ) -> Surface:
        specifications = self._specifications(entry)
        argument, returned = item.get("inputSchema"), item.get("outputSchema")
        judged = judge(entry, specifications, argument, returned, read_claim(meta), effort)
        is_accepted = False
        if judged.verdict is SurfaceVerdict.UNDECIDED and judged.digest is not None:
            registered, offered = specifications[-1].pair, SchemaPair(argument, returned)
            digest = pair_digest(entry.surface_name, registered, offered)
            is_accepted = self._rulings.is_accepted(tool, digest)
            if not is_accepted:
                pair = UndecidedPair(
                    segment=segment,
                    tool=tool,
                    name=entry.surface_name,
                    digest=digest,
                    registered=registered,
                    offered=offered,
                    differences=judged.differences,
                )
                self._rulings.ask(pair)
        is_trusted = self._lookup.is_trusted(entry)
        consequence = policy.consequence(entry, judged, is_trusted=is_trusted, is_accepted=is_accepted)
        if consequence in ("reject", "session"):
            return Surface(
                judgement=judged,
                refuse=partial(_refusal, judged, tool),
                ends_session=consequence == "session",
                warn=partial(_detail, judged, tool),
            )
        warn = partial(_warning, judged, entry, is_trusted=is_trusted) if consequence == "warn" else None
        return Surface(judgement=judged, warn=warn)

    def _specifications(self, entry: Entry) -> tuple[Specification, ...]:
        kept = self._prepared.get(entry.surface_name)
        if kept is None or kept[0] is not entry:
            if len(self._prepared) >= KNOWN_MAX:
                self._prepared.clear()
            kept = self._prepared[entry.surface_name] = (entry, tuple(map(Specification, entry.revisions)))
        return kept[1]

    def _maybe_near(self, name: str) -> Surface | None:
        near = self._near(name)
        if near is None:
            return None
        return Surface(
            judgement=Judgement(name=name, verdict=absent_verdict(name), near=near),
            warn=lambda: f"near_miss: its name looks like the registered {near}, and is another",
        )


def pair_digest(name: str, registered: SchemaPair, offered: SchemaPair) -> str:
    return surface_pair_digest(
        name,
        (registered.argument_digest, registered.return_digest),
        (offered.argument_digest, offered.return_digest),
    )


def _is_worse(one: Surface, other: Surface) -> bool:
    if one.is_refused is not other.is_refused:
        return one.is_refused
    return _VERDICTS.index(one.judgement.verdict) > _VERDICTS.index(other.judgement.verdict)


def _told(differences: tuple[SurfaceDifference, ...]) -> str:
    return "; ".join(map(str, differences))


def _detail(judged: Judgement, tool: str) -> str:
    why = _told(judged.differences) or "its server declares no output schema, and registry.strict wants one"
    kind = "is not what the registry says of" if judged.verdict is not SurfaceVerdict.UNDECIDED else "may not be"
    return f"{tool} {kind} {judged.name}: {why}"


def _refusal(judged: Judgement, tool: str) -> Fault:
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
    return Fault(SURFACE_MISMATCH, "surface_mismatch", data)


def _warning(judged: Judgement, entry: Entry, *, is_trusted: bool) -> str:
    words = {
        "behind": judged.behind,
        "revision": judged.revision,
        "deprecation": entry.deprecation,  # the same words as everywhere (REG-7.3-2)
    }
    told = [_WORDS[note].format(**words) for note in judged.notes]
    if judged.verdict is SurfaceVerdict.INPUT_ONLY:
        told.append("its server declares no output schema")
    if judged.verdict is SurfaceVerdict.UNVERIFIABLE:
        told.append("the registry has no schemas of it")
    if judged.differences:
        told.append(_told(judged.differences))
    if not is_trusted:
        told.append(f"the registry {entry.source} is not trusted yet")
    return f"{judged.name} {judged.verdict.value}: {'; '.join(told)}" if told else ""


def _held_to_pin(
    pin: Pin, found: Surface | None, name: str, item: Item, policy: SurfacePolicy, effort: Effort
) -> Surface | None:
    """A difference that a client can live with is a warning, unless registry.strict (REG-8.2-3)."""
    try:
        pinned = SchemaPair(pin.argument, None if pin.returned == NONE else pin.returned)
        offered = SchemaPair(item.get("inputSchema"), item.get("outputSchema"))
    except CodecError:
        return found
    if offered.digest == pin.digest:  # REG-8.2-3
        return found
    unknown = Judgement(name=name, verdict=absent_verdict(name), digest=offered.digest)
    judged = found.judgement if found is not None else unknown
    compared = compare(pinned, offered, effort)
    if compared.verdict in (SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE) and not policy.strict:  # REG-8.2-3
        warning = _WORDS["pin_differs"].format(name=name)
        told = "; ".join(filter(None, (found.warning if found is not None else "", warning)))
        return Surface(judgement=judged, warn=lambda: told)
    detail = f"{pin.tool} is not what is pinned: {_told(compared.differences) or 'its schemas are others'}"
    data: Mapping[str, Any] = {
        "name": name,
        "pinned": pin.digest,
        "offered": offered.digest,
        "differences": [msgspec.structs.asdict(each) for each in compared.differences],
        "detail": f"{detail}; interlock names repin {name} takes it as it now is",
    }
    refusal = Fault(SPECIFICATION_DRIFT, "specification_drift", dict(data))
    return Surface(judgement=judged, refuse=lambda: refusal, warn=lambda: str(data["detail"]))

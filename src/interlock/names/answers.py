"""Answers of the registry that every surface gives alike: what checks found, whether a tool keeps to its name."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from interlock.core.operator_errors import Refused
from interlock.names.api import NameCheck, NameCriterion, NameFinding, NameVerification
from interlock.names.protocol.claims import read_claim
from interlock.names.protocol.criteria import criteria_document
from interlock.names.protocol.judgement import Specification, absent_verdict, judge
from interlock.names.protocol.model import Entry
from interlock.names.protocol.policy import VERIFIED
from interlock.names.protocol.records import Finding
from interlock.wire.jsonrpc.codec import decode_object
from interlock.wire.schemas.effort import Effort, EffortSpent


def name_check(name: str, findings: tuple[Finding, ...]) -> NameCheck:
    return NameCheck(
        surface_name=name,
        criteria=tuple(msgspec.convert(criteria_document(findings), list[NameCriterion])),
        findings=tuple(NameFinding(**asdict(one)) for one in findings),
    )


def name_verification(entry: Entry | None, name: str, tool: Mapping[str, Raw]) -> NameVerification:
    if entry is None:
        word = absent_verdict(name).value
        return NameVerification(surface_name=name, verdict=word, is_verified=False, differences=(), notes=())
    specifications = tuple(Specification(revision) for revision in entry.revisions)
    meta = tool.get("_meta")
    claim = read_claim(decode_object(meta) if meta is not None else None)
    try:
        judged = judge(entry, specifications, tool.get("inputSchema"), tool.get("outputSchema"), claim, Effort())
    except EffortSpent:
        raise Refused("too_large", "the schemas are too large to be compared") from None
    return NameVerification(
        surface_name=name,
        verdict=judged.verdict.value,
        is_verified=judged.verdict in VERIFIED,
        differences=tuple(map(str, judged.differences)),
        notes=judged.notes,
    )

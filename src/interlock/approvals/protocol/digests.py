"""Digests that identify what a decision is about: a call, or a definition together with the chosen answer.

A proof signs the id of an approval and this digest. For a call it is the call_digest of MCP-AX 11.3; a definition can
be answered in several ways, so the answer is part of what is signed.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.protocol.approval import Approval, Kind
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, find_string
from interlock.wire.jsontext.canonical import ITEM_MEMBERS, NotCanonical, canonical, item_digest, tool_digest
from interlock.wire.schemas.digest import schema_digest

REVEAL: Final = "reveal"  # not a decision: an operator is shown the code of an agent's challenge
ACCEPT: Final = "accept"  # a changed definition is used as it now is
CLASSES: Final = ("read_only", "reversible", "irreversible")  # what a tool is that does not say it itself
NAMES_REVIEW: Final = "names/review"  # the method of a review of a provisional entry of the registry
REVIEW_ANSWERS: Final = ("promote", "remove")
# Factors of an approval of kind definition.
CHANGED: Final = "definition_changed"  # it is not what was accepted before
ADDED: Final = "definition_added"  # its server was accepted without it
UNCLASSIFIED: Final = "unclassified"  # and besides the tool has no class
SURFACE: Final = "surface_undecided"  # whether a tool keeps to the specification of its name
UNTRUSTED: Final = "untrusted_driver"  # it is a driver's folder, not a tool
DRIVER: Final = "driver"  # what the shown definition of a driver begins with
VERSION: Final = 1
CLASSIFICATION: Final = "classification"  # the kind of a signature over several tools


def is_item(subject: str) -> bool:
    """Return whether a subject names a prompt, a resource or a template, such as `files.prompts/review`, and not a
    tool.
    """
    return "/" in subject  # which no name of a tool has


def is_changed(factors: Collection[str]) -> bool:
    """Return whether the factors of an approval say that its server changed or added the definition."""
    return CHANGED in factors or ADDED in factors


def definition_effect(subject: str, factors: Collection[str], choices: tuple[str, ...]) -> str:
    """Return what a yes to a definition of a server does. `choices` are the answers among which a person chooses."""
    if is_changed(factors):
        seen = (
            "clients see it and may use it from now on" if ADDED in factors else "clients see it as it is now defined"
        )
        return seen if choices == (ACCEPT,) else f"{seen}, and it is treated as you say until its definition changes"
    if choices == (ACCEPT,):
        return (
            "the tool is used as it is now defined" if not is_item(subject) else "clients see it as it is now defined"
        )
    return "the tool is treated as you say, for as long as its definition stays the same"


def answers(approval: Approval) -> tuple[str, ...]:
    """Return the answers among which a person chooses to approve. The result is empty if there is nothing to choose."""
    if approval.method == NAMES_REVIEW:
        return REVIEW_ANSWERS
    if approval.kind is not Kind.DEFINITION:
        return ()
    changed = is_changed(approval.factors) and UNCLASSIFIED not in approval.factors
    return (ACCEPT,) if changed or not {UNTRUSTED, SURFACE}.isdisjoint(approval.factors) else CLASSES


def signed_digest(approval: Approval, answer: str | None) -> str:
    """Return the digest that a proof of this approval must contain, as SHA-256 in hex. `answer` is the chosen answer,
    if there are several.
    """
    return decision_digest(approval.kind, approval.tool, approval.digest, answer)


def decision_digest(kind: Kind, tool: str, digest: str, answer: str | None) -> str:
    if kind is Kind.CALL:
        return digest
    text = canonical({"v": VERSION, "kind": kind.value, "tool": tool, "digest": digest, "answer": answer})
    return hashlib.sha256(text).hexdigest()


def enrolment_digest(params: Raw | bytes) -> str | None:
    """Return the digest of the encoded facts that a person is shown about an approver, or None if they are not
    unambiguous JSON.
    """
    try:
        return hashlib.sha256(canonical(decode_value(params))).hexdigest()
    except (CodecError, NotCanonical):
        return None


def proposal_digest(
    room: str | None,
    proposal_id: str | None,
    proposer: str | None,
    target: str | None,
    method: str | None,
    params: bytes,
) -> str:
    """Return the digest of a proposal in a room, as a person is shown it. It covers the exact bytes of `params`, which
    are `null` if there are none.
    """
    parts = [part or "" for part in (room, proposal_id, proposer, target, method)]
    digest = hashlib.sha256(b"".join(b"%b\0" % part.encode("utf-8", "surrogatepass") for part in parts))
    digest.update(params)
    return digest.hexdigest()


def shown_digest(params: Raw | bytes) -> str | None:
    """Return the digest of the definition that a person was shown. Return None if `params` contains no definition."""
    shown = decode_object(params) or {}
    if "surface" in shown:
        return _surface_digest_shown(shown["surface"])
    definition = decode_object(shown.get("after", shown.get("definition", Raw(b"null"))))
    if definition is not None and DRIVER in definition and "name" not in definition:  # a tool has a name
        try:
            return folder_digest(msgspec.json.decode(definition.get("files", b"null"), type=dict[str, str]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
    kind = next((kind for kind in ITEM_MEMBERS if kind in (definition or {})), None)
    name = find_string((definition or {}).get(kind or "name"))
    if definition is None or name is None:
        return None
    if kind is not None:
        return item_digest(kind, definition, name=name)
    try:
        declared = decode_value(definition["capability"]) if "capability" in definition else None
    except CodecError:
        return None
    return tool_digest(definition, downstream_name=name, declared=declared)


def surface_pair_digest(name: str, registered: tuple[str, str | None], offered: tuple[str, str | None]) -> str:
    """Return one digest for a question about a tool. It covers the tool's registered name, the schemas in the registry,
    and the schemas that a server offers.
    """
    text = canonical({"surface": name, "registered": list(registered), "offered": list(offered)})
    return hashlib.sha256(text).hexdigest()


def _surface_digest_shown(raw: Raw) -> str | None:
    try:
        shown = decode_value(raw)
        name, sides = shown["name"], [shown["registered"], shown["offered"]]
        digests = [
            (schema_digest(side["argument"]), None if side.get("return") is None else schema_digest(side["return"]))
            for side in sides
        ]
    except (CodecError, KeyError, TypeError, AttributeError):
        return None
    return surface_pair_digest(name, digests[0], digests[1])


def folder_digest(files: Mapping[str, str]) -> str:
    """Return one SHA-256 digest, in hex, over all files of a folder. `files` maps each name to the digest of the file;
    the order does not matter.
    """
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{files[name]}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def classification_digest(id: str, rulings: Iterable[tuple[Any, ...]]) -> str:
    """Return the digest that a proof must sign to classify several tools: SHA-256 in hex over the sorted list as
    canonical JSON.

    A ruling is the name of a tool, the digest of its definition and its class.
    """
    rows = [{"tool": tool, "digest": digest, "class": tool_class} for tool, digest, tool_class in sorted(rulings)]
    return hashlib.sha256(canonical({"v": VERSION, "kind": CLASSIFICATION, "id": id, "entries": rows})).hexdigest()

"""Does a server keep to the registered specification of a name, and what follows when it does not?"""

import hashlib
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from interlock.names.protocol.entry import EntryStatus, RegistryEntry, Revision
from interlock.names.protocol.judgement import (
    NO_CLAIM,
    VERIFIED,
    Judgement,
    RevisionClaim,
    Specification,
    SurfacePolicy,
    SurfaceVerdict,
    absent_verdict,
    judge,
    read_claim,
)
from interlock.wire.schemas.budget import Effort
from interlock.wire.schemas.digest import normalised, schema_digest

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
V = SurfaceVerdict


def record(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def raw(schema: Any) -> Raw:
    return Raw(msgspec.json.encode(schema))


ARGUMENT = record("query", query=STRING, mode={"enum": ["fast", "slow"]}, limit={**INTEGER, "maximum": 100})
RETURN = record("hits", hits={"type": "array", "items": STRING}, state={"enum": ["done", "partial"]})


def revision(number: int = 1, argument: Any = ARGUMENT, returned: Any = RETURN) -> Revision:
    return Revision(
        revision=number,
        specification_reference=f"draft-x-search-0{number}",
        authentication_scope="public",
        registered="2026-05-15",
        argument_schema=raw(argument),
        return_schema=raw(returned),
        argument_digest=schema_digest(argument),
        return_digest=schema_digest(returned),
        schema_source="registrant",
    )


def entry(*revisions: Revision, status: EntryStatus = EntryStatus.ACTIVE, **more: Any) -> RegistryEntry:
    return RegistryEntry(
        surface_name="search",
        specification_reference=revisions[-1].specification_reference,
        authentication_scope="public",
        vendor_prefix="none",
        change_controller="Acme",
        status=status,
        first_registered="2026-05-15",
        revisions=revisions,
        **more,
    )


def judged(
    argument: Any, returned: Any, one: RegistryEntry | None = None, claim: RevisionClaim = NO_CLAIM
) -> Judgement:
    one = one or entry(revision())
    return judge(
        one,
        tuple(map(Specification, one.revisions)),
        raw(argument),
        None if returned is None else raw(returned),
        claim,
        Effort(),
    )


def with_property(schema: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {**schema, "properties": {**schema["properties"], **properties}}


def without_property(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return {**schema, "properties": {key: value for key, value in schema["properties"].items() if key != name}}


@pytest.mark.req("REG-8.1-3")
@pytest.mark.parametrize(
    "alike",
    [
        {**ARGUMENT, "title": "Search", "description": "x", "$comment": "y", "examples": [1], "deprecated": True},
        {**ARGUMENT, "$id": "https://x.example/s", "$schema": "https://json-schema.org/draft/2020-12/schema"},
        {**ARGUMENT, "$defs": {"unused": STRING}},
        dict(reversed(ARGUMENT.items())),
        with_property(ARGUMENT, query={"type": ["string"]}),
        with_property(ARGUMENT, mode={"enum": ["slow", "fast"]}),
        {**with_property(ARGUMENT, query={"$ref": "#/$defs/q"}), "$defs": {"q": {"$ref": "#/$defs/r"}, "r": STRING}},
        {**with_property(ARGUMENT, query={"$ref": "#/$defs/q", "description": "d"}), "$defs": {"q": STRING}},
    ],
    ids=lambda value: str(value)[-60:],
)
def test_a_schema_in_other_words_has_the_same_digest(alike: Any) -> None:
    assert schema_digest(alike) == schema_digest(ARGUMENT)


@pytest.mark.req("REG-8.1-3")
def test_the_digest_is_of_the_canonical_text_with_its_sets_sorted() -> None:
    """The text is RFC 8785's: members in order, no spaces, letters as they are, 1e21 and 100 as ECMAScript writes."""
    said = {
        "type": "object",
        "required": ["b", "a"],
        "properties": {"b": {"type": ["string", "null"], "default": "ü"}, "a": {"maximum": 1e21, "minimum": 100.0}},
    }
    text = (
        '{"properties":{"a":{"maximum":1e+21,"minimum":100},"b":{"default":"ü","type":["null","string"]}},'
        '"required":["a","b"],"type":"object"}'
    )
    assert schema_digest(said) == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@pytest.mark.req("REG-8.1-3")
@pytest.mark.parametrize(
    "other",
    [
        with_property(ARGUMENT, query={**STRING, "default": "x"}),
        with_property(ARGUMENT, query={**STRING, "format": "uri"}),
        with_property(ARGUMENT, limit={**INTEGER, "maximum": 99}),
        with_property(ARGUMENT, title=STRING),  # a property of that name is no annotation
        {**ARGUMENT, "required": ["query", "mode"]},
    ],
    ids=lambda value: str(value)[-60:],
)
def test_a_schema_that_says_something_else_has_another_digest(other: Any) -> None:
    assert schema_digest(other) != schema_digest(ARGUMENT)


@pytest.mark.req("REG-8.1-3")
def test_values_are_not_taken_for_schemas_and_recursion_ends() -> None:
    listed = {"enum": [{"title": "a"}, {"title": "b"}], "default": {"description": "kept"}}
    assert normalised(listed) == listed
    tree = {"$defs": {"t": record(inner={"$ref": "#/$defs/t"})}, "$ref": "#/$defs/t"}
    renamed = {"$defs": {"t": {**tree["$defs"]["t"], "title": "T"}, "u": STRING}, "$ref": "#/$defs/t"}
    assert schema_digest(tree) == schema_digest(renamed)
    doubled = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    assert schema_digest({"$defs": {**doubled, "d40": STRING}, "$ref": "#/$defs/d0"}).startswith("sha256:")


@pytest.mark.req("REG-8.1-4", "REG-8.1-5", "REG-2-1")
@pytest.mark.parametrize(
    ("argument", "returned", "verdict", "place"),
    [
        (ARGUMENT, RETURN, V.IDENTICAL, None),
        ({**ARGUMENT, "description": "other words"}, RETURN, V.IDENTICAL, None),
        (with_property(ARGUMENT, extra=STRING), RETURN, V.COMPATIBLE, None),
        (with_property(ARGUMENT, mode={"enum": ["fast", "slow", "best"]}), RETURN, V.COMPATIBLE, None),
        (ARGUMENT, with_property(RETURN, state={"enum": ["done"]}), V.COMPATIBLE, None),
        (ARGUMENT, with_property(RETURN, more=STRING), V.COMPATIBLE, None),
        (
            {**with_property(ARGUMENT, x=STRING), "required": ["query", "x"]},
            RETURN,
            V.MISMATCH,
            "`x` is required by the server but not by the specification",
        ),
        (
            without_property(ARGUMENT, "limit"),
            RETURN,
            V.MISMATCH,
            "`limit` is in the specification but the server does not",
        ),
        (with_property(ARGUMENT, mode={"enum": ["fast"]}), RETURN, V.MISMATCH, "`mode`"),
        (with_property(ARGUMENT, limit={**INTEGER, "maximum": 50}), RETURN, V.MISMATCH, "`limit`"),
        (with_property(ARGUMENT, query=INTEGER), RETURN, V.MISMATCH, "`query`"),
        (
            ARGUMENT,
            with_property(RETURN, state=STRING),
            V.MISMATCH,
            "`state` of the result is only",
        ),
        (ARGUMENT, {**RETURN, "required": []}, V.MISMATCH, "`hits` of the result is promised by the specification"),
        (ARGUMENT, None, V.INPUT_ONLY, None),
        (with_property(ARGUMENT, query=INTEGER), None, V.MISMATCH, "`query`"),
        (with_property(ARGUMENT, query={**STRING, "pattern": "^a"}), RETURN, V.UNDECIDED, "`query`"),
        (with_property(ARGUMENT, query={"not": INTEGER}), RETURN, V.UNDECIDED, "`query`"),
        ("no schema", RETURN, V.MISMATCH, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wider_in_and_narrower_out_is_compatible(
    argument: Any, returned: Any, verdict: SurfaceVerdict, place: str | None
) -> None:
    found = judged(argument, returned)
    assert found.verdict is verdict
    if place is not None:
        (sentence,) = map(str, found.differences)
        assert sentence.startswith(place)


@pytest.mark.req("REG-8.1-4")
def test_a_specification_that_allows_further_arguments_asks_for_none() -> None:
    one = entry(revision(argument={**ARGUMENT, "additionalProperties": True}))
    assert judged(ARGUMENT, RETURN, one).verdict is V.COMPATIBLE


@pytest.mark.req("REG-8.1-4")
@pytest.mark.parametrize(
    "beyond",
    [
        {"if": STRING, "then": {"minLength": 1}},
        {"$ref": "#/properties/query"},
        {"$dynamicRef": "#node"},
        {**STRING, "pattern": "^a"},
        {"not": INTEGER},
    ],
    ids=str,
)
def test_an_undecidable_schema_is_reported_as_undecided(beyond: Any) -> None:
    assert judged(with_property(ARGUMENT, query=beyond), RETURN).verdict is V.UNDECIDED


@pytest.mark.req("REG-8.1-5")
def test_the_verdicts_are_eight_and_three_of_them_verify() -> None:
    verified = ["identical", "compatible", "input_only"]
    others = ["undecided", "mismatch", "unverifiable", "unregistered", "not_registrable"]
    assert [one.value for one in V] == [*verified, *others]
    assert {one.value for one in VERIFIED} == set(verified)


@pytest.mark.req("REG-6-4", "REG-8.1-5")
def test_an_entry_without_schemas_verifies_nothing() -> None:
    bare = Revision(revision=1, specification_reference="x", authentication_scope="public", registered="2026-05-15")
    assert judged(ARGUMENT, RETURN, entry(bare)).verdict is V.UNVERIFIABLE


@pytest.mark.parametrize("text", [b"{", b"[]", b"null"])
def test_a_specification_that_cannot_be_read_verifies_nothing(text: bytes) -> None:
    one = entry(msgspec.structs.replace(revision(), argument_schema=Raw(text)))
    assert judged(with_property(ARGUMENT, extra=STRING), RETURN, one).verdict is V.UNVERIFIABLE


@pytest.mark.req("REG-8.1-5")
def test_a_specification_without_results_says_nothing_of_them() -> None:
    one = entry(msgspec.structs.replace(revision(), return_schema=Raw(b"null"), return_digest=None))
    assert judged(ARGUMENT, None, one).verdict is V.IDENTICAL
    assert judged(ARGUMENT, RETURN, one).verdict is V.COMPATIBLE


@pytest.mark.req("REG-8.2-2")
def test_drift_is_reported_by_the_revision_of_the_schemas() -> None:
    newer = with_property(ARGUMENT, limit={**INTEGER, "maximum": 1000})
    one = entry(revision(1), revision(2, argument=newer))
    behind = judged(ARGUMENT, RETURN, one)
    assert (behind.verdict, behind.behind, behind.notes) == (V.MISMATCH, 1, ("behind",))
    assert judged(newer, RETURN, one).notes == ()
    assert judged(with_property(newer, extra=STRING), RETURN, one).notes == ("unknown_revision",)


@pytest.mark.req("REG-8.2-2")
@pytest.mark.parametrize(
    ("claimed", "holds"),
    [
        (1, True),
        ("draft-x-search-01", True),
        ({"revision": 1}, True),
        (2, False),
        ("draft-x-search-02", False),
        ({"digest": "sha256:00"}, False),
        ([], False),
        ({}, False),
    ],
    ids=str,
)
def test_a_claimed_revision_is_compared_with_the_schemas(claimed: object, holds: bool) -> None:
    claim = read_claim({"dev.interlock/specification": raw(claimed)})
    assert ("claim_mismatch" in judged(ARGUMENT, RETURN, claim=claim).notes) is not holds


LIMIT = with_property(ARGUMENT, limit={**INTEGER, "maximum": 1000})
GROWN = entry(  # 1.0, 1.1, 2.0, and 2.1, which is 2.0 with another document
    revision(1),
    revision(2, argument=with_property(ARGUMENT, extra=STRING)),
    msgspec.structs.replace(revision(3, argument=LIMIT), is_breaking=True),
    revision(4, argument=LIMIT),
)


@pytest.mark.req("REG-8.2-2")
@pytest.mark.parametrize(
    ("argument", "returned", "claims"),
    [
        (ARGUMENT, RETURN, ("1.0.0", "1.0.7", "1.0.0-rc.1+b5")),
        (with_property(ARGUMENT, extra=STRING), RETURN, ("1.1.0",)),
        (LIMIT, RETURN, ("2.0.0", "2.1.0")),  # of both
        (LIMIT, None, ("2.0.0", "2.1.0")),  # what it does not say, it does not contradict
        (with_property(LIMIT, extra=STRING), RETURN, ("2.0.0", "2.1.0", "2.9.0")),  # of none, and compatible
        (with_property(LIMIT, query=INTEGER), RETURN, ()),  # of none
    ],
    ids=str,
)
def test_a_schema_version_that_the_schemas_contradict_is_reported_and_decides_nothing(
    argument: Any, returned: Any, claims: tuple[str, ...]
) -> None:
    silent = judged(argument, returned, GROWN)
    assert "claim_mismatch" not in silent.notes
    for version in ("1.0.0", "1.0.7", "1.0.0-rc.1+b5", "1.1.0", "2.0.0", "2.1.0", "2.9.0", "3.0.0"):
        claim = read_claim({"x-mcpax-capability": raw({"schema_version": version})})
        found = judged(argument, returned, GROWN, claim)
        assert found.verdict is silent.verdict
        assert ("claim_mismatch" in found.notes) is (version not in claims), version


@pytest.mark.req("REG-8.2-2")
@pytest.mark.parametrize(
    "said", [{"schema_version": "0.9.0"}, {"schema_version": 3}, {"schema_version": "3"}, [], 1, {}]
)
def test_a_version_below_1_and_a_malformed_version_claim_nothing(said: Any) -> None:
    assert read_claim({"x-mcpax-capability": raw(said)}) == NO_CLAIM


@pytest.mark.req("REG-3-2", "REG-8.1-5", "REG-4.2-9")
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("Org_Alter_Handbook", V.UNREGISTERED),
        ("createIssue", V.UNREGISTERED),
        ("lone_wolf", V.UNREGISTERED),
        ("list_2fa", V.NOT_REGISTRABLE),
        ("a__b", V.NOT_REGISTRABLE),
        ("2fa", V.NOT_REGISTRABLE),
        ("get-time", V.NOT_REGISTRABLE),
        ("é", V.NOT_REGISTRABLE),
        ("ſearch", V.NOT_REGISTRABLE),  # its capital is S
        ("\u212aite", V.NOT_REGISTRABLE),  # the sign of kelvin, which is k in lower case
        ("a" * 65, V.NOT_REGISTRABLE),
    ],
)
def test_a_name_without_an_entry_is_unregistered_where_its_letters_allow_an_entry(
    name: str, verdict: SurfaceVerdict
) -> None:
    assert absent_verdict(name) is verdict


@pytest.mark.req("REG-7.3-2", "REG-8.4-4")
def test_a_changed_entry_is_reported_at_every_binding() -> None:
    one = entry(revision(), status=EntryStatus.DEPRECATED, scope_tightened_on="2026-11-01")
    assert judged(ARGUMENT, RETURN, one).notes == ("deprecated", "scope_tightened")


BAD = with_property(ARGUMENT, query=INTEGER)


@pytest.mark.req("REG-8.1-2", "REG-N-5")
@pytest.mark.parametrize(
    ("policy", "status", "trusted", "consequence"),
    [
        (SurfacePolicy(), EntryStatus.ACTIVE, True, "reject"),
        (SurfacePolicy(), EntryStatus.DEPRECATED, True, "reject"),
        (SurfacePolicy(), EntryStatus.PROVISIONAL, True, "warn"),
        (SurfacePolicy(), EntryStatus.WITHDRAWN, True, "warn"),
        (SurfacePolicy(), EntryStatus.ACTIVE, False, "warn"),
        (SurfacePolicy(enforce="session"), EntryStatus.ACTIVE, True, "session"),
        (SurfacePolicy(enforce="warn"), EntryStatus.ACTIVE, True, "warn"),
        (SurfacePolicy(enforce="off"), EntryStatus.ACTIVE, True, "off"),
        (SurfacePolicy(enforce="off", per_name={"search": "reject"}), EntryStatus.ACTIVE, True, "reject"),
        (SurfacePolicy(per_name={"search": "warn"}), EntryStatus.ACTIVE, True, "warn"),
    ],
    ids=str,
)
def test_the_operators_policy_decides_the_consequence(
    policy: SurfacePolicy, status: EntryStatus, trusted: bool, consequence: str
) -> None:
    one = entry(revision(), status=status)
    found = judged(BAD, RETURN, one)
    assert policy.consequence(one, found, is_trusted=trusted, is_accepted=False) == consequence


@pytest.mark.req("REG-8.1-4", "REG-8.1-5")
def test_only_an_undecided_pair_can_be_accepted_and_strict_wants_an_output_schema() -> None:
    one = entry(revision())

    def consequence(argument: Any, returned: Any, *, strict: bool = False, accepted: bool = False) -> str:
        found = judged(argument, returned, one)
        return SurfacePolicy(strict=strict).consequence(one, found, is_trusted=True, is_accepted=accepted)

    doubtful = with_property(ARGUMENT, query={**STRING, "pattern": "^a"})
    assert consequence(doubtful, RETURN) == "reject"
    assert consequence(doubtful, RETURN, accepted=True) == "warn"
    assert consequence(BAD, RETURN, accepted=True) == "reject"
    assert consequence(ARGUMENT, None) == "warn"
    assert consequence(ARGUMENT, None, strict=True) == "reject"
    assert consequence(ARGUMENT, RETURN, strict=True) == "pass"

"""The judgement whether a tool with a registered name conforms to its specification (draft 8.1, 8.2).

Schemas are compared, not texts: a server may accept more than the specification requires and return less than it
allows. The specification is only used for the comparison. Clients see the server's own schemas, and calls are checked
by them (REG-8.1-6).

    arguments   every value that the specification allows must be accepted by the server
    results     every value that the server may return must be allowed by the specification

A list may have thousands of tools, so the common cases are cheap: equal texts are identical without reading them, equal
digests without comparing, and small schemas are compared as they are written. The effort of all comparisons of one list
is limited; a tool that exceeds it is undecided.

A server may claim in the tool's `_meta` which revision its tool follows; the claim is compared with the schemas
(REG-8.2-2). There are two ways to claim. `dev.interlock/specification` names a revision by its number, its reference or
the digest of its schemas. `schema_version` in the capability annotation of MCP-AX is a semantic version: the first
revision of an entry is 1.0, a breaking revision increments the major number, any other the minor number. The server is
free to choose the patch number and what follows it. A version below 1.0.0 claims nothing.
"""

import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import is_semver
from interlock.ax.protocol.hop_metadata import CAPABILITY
from interlock.mcp.items import Item, find_value
from interlock.names.protocol.entry import NO_SCHEMA, EntryStatus, RegistryEntry, Revision
from interlock.names.protocol.grammar import is_name
from interlock.wire.jsonrpc.codec import CodecError, decode_value
from interlock.wire.refusal import INVALID_PARAMS
from interlock.wire.schemas.budget import BYTES_MAX, Effort, EffortSpent
from interlock.wire.schemas.digest import normalised, normalised_digest
from interlock.wire.schemas.inclusion import TOO_MUCH, InclusionOutcome, InclusionVerdict, includes
from interlock.wire.schemas.shapes import Side

SPECIFICATION: Final = "dev.interlock/specification"


class RevisionClaim(msgspec.Struct, frozen=True):
    """The revision that a server claims its tool follows."""

    specification: object = None
    version: tuple[int, int] | None = None  # major and minor of schema_version


NO_CLAIM: Final = RevisionClaim()


def read_claim(meta: Item | None) -> RevisionClaim:
    """Read from the `_meta` of a tool which revision its server claims to follow. If that is unreadable or missing,
    return the empty claim.
    """
    if not meta:
        return NO_CLAIM
    annotation = find_value(meta, CAPABILITY) if CAPABILITY in meta else None
    version = annotation.get("schema_version") if isinstance(annotation, Mapping) else None
    return RevisionClaim(find_value(meta, SPECIFICATION), _version(version))


def _is_named(claimed: object, digests: tuple[str, ...], identical: Sequence[Revision]) -> bool:
    """Return whether a server claims a revision that has the schemas that the server offers. `digests` are the digests
    of these schemas, and `identical` the revisions that have them. If the claim is an object, each of its members must
    be right.
    """
    if isinstance(claimed, Mapping):
        claims = [claimed[key] for key in ("revision", "digest", "reference") if key in claimed]
        return bool(claims) and all(_is_named(each, digests, identical) for each in claims)
    if isinstance(claimed, str) and claimed.startswith("sha256:"):
        return claimed in digests
    return any(str(claimed) in (str(each.revision), each.specification_reference) for each in identical)


def _version(text: object) -> tuple[int, int] | None:
    if not isinstance(text, str) or not is_semver(text):
        return None
    major, minor, _ = text.split(".", 2)
    return (int(major), int(minor)) if major != "0" else None


def _version_of(revisions: Sequence[Revision], wanted: Revision) -> tuple[int, int]:
    """Return the major and minor version number of the revision `wanted`. The first revision is 1.0."""
    major, minor = 1, 0
    for each in revisions[1 : revisions.index(wanted) + 1]:
        major, minor = (major + 1, 0) if each.is_breaking else (major, minor + 1)
    return major, minor


SCHEMA_BYTES_MAX: Final = BYTES_MAX  # of a tool's schema; a longer one is not compared
SMALL_BYTES: Final = 4096  # of a schema that is compared as it is written; comparing is cheaper than normalising
ANY_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object"}  # the schema of a tool that declares none

# The notes beside a verdict, which say more about the tool or its entry.
Note = Literal["behind", "unknown_revision", "claim_mismatch", "scope_tightened", "deprecated", "withdrawn"]


T = TypeVar("T")


class _lazy(Generic[T]):  # noqa: N801
    """A decorator for a property that is computed on first use and then stored.

    Unlike `cached_property` of Python 3.11 it uses no lock, because a long list of tools has thousands of schemas.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = instance.__dict__[self._name] = self._make(instance)
        return value


class SurfaceVerdict(enum.Enum):
    """The verdict on a tool. The verdicts on registered names are listed from best to worst, followed by those on
    unregistered names.
    """

    IDENTICAL = "identical"
    COMPATIBLE = "compatible"
    INPUT_ONLY = "input_only"  # its server declares no output schema
    UNDECIDED = "undecided"
    MISMATCH = "mismatch"
    UNVERIFIABLE = "unverifiable"  # the entry has no schema
    UNREGISTERED = "unregistered"
    NOT_REGISTRABLE = "not_registrable"


class SurfaceDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between the registered specification and a server's tool."""

    side: Literal["argument", "return"]
    path: str  # a JSON pointer into the value; empty: the whole
    registered: str
    offered: str

    def __str__(self) -> str:
        """Return the difference as a sentence for a developer."""
        steps = [step.replace("~1", "/").replace("~0", "~") for step in self.path.split("/")[1:]]
        name = f"`{'.'.join('[]' if step == '*' else step for step in steps)}`" if steps else f"the {self.side}"
        place = f"{name} of the result" if steps and self.side == "return" else name
        sentence = _DIFFERENCE_SENTENCES.get((self.side, self.registered, self.offered))
        if sentence is not None:
            return sentence.format(place)
        has = "has" if self.registered.startswith("no ") else "is"
        return f"{place} {has} {self.registered} in the specification and {self.offered} at the server"


# What two schemas differ in where types and limits do not tell: side, registered, offered.
_DIFFERENCE_SENTENCES: Final = {
    ("argument", "not always there", "required"): "{} is required by the server but not by the specification",
    ("argument", "a property", "not accepted"): "{} is in the specification but the server does not accept it",
    ("argument", "a property", "not named"): "{} is in the specification but the server does not name it",
    ("argument", "further properties", "no further properties"): (
        "{} may have further properties by the specification but not at the server"
    ),
    ("return", "required", "not always there"): "{} is promised by the specification but the server may leave it out",
    ("return", "not accepted", "a property"): "{} is returned by the server but the specification does not allow it",
    ("return", "not named", "a property"): "{} is returned by the server but the specification does not name it",
    ("return", "no further properties", "further properties"): (
        "{} may have further properties at the server but not by the specification"
    ),
}


class SchemaPair:
    """The normalised argument schema and return schema of a tool or a revision, with one digest of both."""

    def __init__(
        self, argument: Raw | None, returned: Raw | None, effort: Effort | None = None, like: Revision | None = None
    ) -> None:
        """Prepare two schemas. Raise CodecError if they are unreadable, and EffortSpent if `effort` is used up.

        `like` is a revision whose stored digests are used for schemas with the same text.
        """
        self._argument, self._returned = argument, returned
        self._effort = effort
        self._like = like
        self.has_results = returned is not None
        self.argument_digest, self.return_digest = self._digests()
        self._effort = None

    def _digests(self) -> tuple[str, str | None]:
        like = self._like
        argument = like.argument_digest if like is not None and self._argument == like.argument_schema else None
        returned = like.return_digest if like is not None and self._returned == like.return_schema else None
        if returned is None and self._returned is not None:
            returned = normalised_digest(self.returned)
        return argument or normalised_digest(self.argument), returned

    @_lazy
    def _argument_schema(self) -> Any:
        return _decoded(self._argument, ANY_ARGUMENTS)

    @_lazy
    def _returned_schema(self) -> Any:
        return _decoded(self._returned, None)

    @_lazy
    def argument(self) -> Any:
        return normalised(self._argument_schema, self._effort)

    @_lazy
    def returned(self) -> Any:
        return None if self._returned is None else normalised(self._returned_schema, self._effort)

    @_lazy
    def digest(self) -> str:
        text = f"{self.argument_digest} {self.return_digest or 'none'}"
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    # A small schema is compared as it is written. That gives the same result, and spares normalising it.

    @_lazy
    def accepted(self) -> Side:
        """Return the prepared schema of all arguments that the server accepts, for comparison with another pair."""
        return _side(self._argument, self._argument_schema) or Side(self.argument)

    @_lazy
    def declared(self) -> Side:
        """Return the prepared schema of the declared arguments, for comparison with another pair. It describes what a
        client sends that follows the specification.
        """
        return _side(self._argument, _closed(self._argument_schema)) or Side(_closed(self.argument))

    @_lazy
    def results(self) -> Side:
        """Return the prepared schema of the tool's results, for comparison with another pair."""
        return _side(self._returned, self._returned_schema) or Side(self.returned)


class RegisteredPair(SchemaPair):
    """The schemas of a registered revision. Their digests were computed at registration."""

    def __init__(self, revision: Revision, argument_digest: str) -> None:
        self._registered_digests = argument_digest, revision.return_digest
        returned = None if revision.return_schema == NO_SCHEMA else revision.return_schema
        super().__init__(revision.argument_schema, returned)

    def _digests(self) -> tuple[str, str | None]:
        return self._registered_digests


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing two pairs of schemas."""

    verdict: SurfaceVerdict
    differences: tuple[SurfaceDifference, ...] = ()


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing a tool with the registered specification of its name."""

    name: str  # the surface name
    verdict: SurfaceVerdict
    status: EntryStatus | None = None
    digest: str | None = None  # of what the server offers
    registered_digest: str | None = None
    revision: int | None = None  # the current one of the specification
    behind: int | None = None  # the revision the server keeps to, where that is an older one
    notes: tuple[Note, ...] = ()
    differences: tuple[SurfaceDifference, ...] = ()
    near: str | None = None  # of an unregistered name: the registered one that it looks like


class Specification:
    """A revision whose schemas are prepared for comparisons."""

    __slots__ = ("_pair", "revision")

    def __init__(self, revision: Revision) -> None:
        self.revision = revision
        self._pair: SchemaPair | None = None

    @property
    def pair(self) -> SchemaPair:
        if self._pair is None:
            self._pair = RegisteredPair(self.revision, self.revision.argument_digest or "")
        return self._pair

    def is_text_of(self, argument: Raw, returned: Raw | None) -> bool:
        """Return whether the schemas of a tool equal the registered ones as JSON values. If they do, the tool needs no
        further comparison.
        """
        wanted, promised = self.revision.argument_schema, self.revision.return_schema
        return _is_same_text(argument, wanted) and _is_same_text(NO_SCHEMA if returned is None else returned, promised)


_TEXT: Final = msgspec.json.Encoder(order="deterministic")
_READ: Final = msgspec.json.Decoder()


def _is_same_text(text: Raw, other: Raw) -> bool:
    """Return whether two JSON texts have the same value."""
    if bytes(text) == bytes(other):
        return True
    try:
        here, there = _READ.decode(text), _READ.decode(other)
        # The texts are compared as well, because in Python 1 == True.
        return here == there and _TEXT.encode(here) == _TEXT.encode(there)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _decoded(raw: Raw | None, otherwise: Any) -> Any:
    """Decode a schema, or return `otherwise` if `raw` is None. Raise CodecError if the schema is too large, or is no
    object or boolean.
    """
    if raw is None:
        return otherwise
    if len(raw) > SCHEMA_BYTES_MAX:
        raise CodecError(INVALID_PARAMS, f"a schema has at most {SCHEMA_BYTES_MAX} bytes")
    schema = decode_value(raw)
    if not isinstance(schema, Mapping | bool):
        raise CodecError(INVALID_PARAMS, "a schema is an object, true or false")
    return schema


def _side(raw: Raw | None, schema: Any) -> Side | None:
    """Return a schema in the form that is compared, without normalising it. Return None if the schema is too long for
    that, or contains references, patterns or escapes.
    """
    text = b"" if raw is None else bytes(raw)
    if len(text) > SMALL_BYTES or b'"$' in text or b'"pattern' in text or b"\\u" in text:
        return None
    return Side(schema, is_small=True, has_booleans=b"true" in text or b"false" in text)


def absent_verdict(name: str) -> SurfaceVerdict:
    """Return the verdict on a tool whose name has no entry in the registry.

    Registered names are in lower case, but ALPHA in the ABNF includes both cases (RFC 5234). A name in another case is
    therefore a different name, which is not registered (REG-3-2).
    """
    could_be = name.isascii() and is_name(name.lower())  # REG-3-2
    return SurfaceVerdict.UNREGISTERED if could_be else SurfaceVerdict.NOT_REGISTRABLE


def judge(
    entry: RegistryEntry,
    specifications: tuple[Specification, ...],
    argument: Raw | None,
    returned: Raw | None,
    claim: RevisionClaim,
    effort: Effort,
) -> Judgement:
    """Compare a tool with the specifications of its name, of which the current one is last.

    `claim` never changes the verdict. If the schemas contradict the claim, the result only notes that.
    """
    current, status = specifications[-1], entry.status
    # The first notes follow from the entry alone, independent of the tool.
    notes: tuple[Note, ...] = ()
    if status is EntryStatus.DEPRECATED:  # REG-7.3-2
        notes = ("deprecated",)
    if status is EntryStatus.WITHDRAWN:
        notes = ("withdrawn",)
    if entry.scope_tightened_on is not None:
        notes = (*notes, "scope_tightened")
    verdict, revision = SurfaceVerdict.UNVERIFIABLE, current.revision.revision
    judged = Judgement(name=entry.surface_name, verdict=verdict, status=status, revision=revision, notes=notes)
    if not current.revision.has_schemas:
        return judged
    if argument is not None and current.is_text_of(argument, returned):
        offered, compared = current.pair, Comparison(verdict=SurfaceVerdict.IDENTICAL)
    else:
        try:
            offered = SchemaPair(argument, returned, effort, current.revision)
        except EffortSpent:
            unread = SurfaceDifference(side="argument", path="", registered=TOO_MUCH, offered=TOO_MUCH)
            return msgspec.structs.replace(judged, verdict=SurfaceVerdict.UNDECIDED, differences=(unread,))
        except CodecError:
            unread = SurfaceDifference(side="argument", path="", registered="a schema", offered="one that is not read")
            return msgspec.structs.replace(judged, verdict=SurfaceVerdict.MISMATCH, differences=(unread,))
        try:
            compared = compare(current.pair, offered, effort)
        except CodecError:  # the registered schema cannot be read
            return judged
    behind = None
    if compared.verdict is not SurfaceVerdict.IDENTICAL:
        # The newest of the older revisions that have the server's schemas, or None.
        for each in reversed(specifications[:-1]):
            if each.revision.has_schemas and each.pair.digest == offered.digest:
                behind = each.revision.revision
                break
        notes = (*notes, "unknown_revision" if behind is None else "behind")
    if claim != NO_CLAIM and _is_contradicted(claim, specifications, offered, compared.verdict):
        notes = (*notes, "claim_mismatch")  # REG-8.2-2
    return msgspec.structs.replace(
        judged,
        verdict=compared.verdict,
        digest=offered.digest,
        registered_digest=current.pair.digest,
        behind=behind,
        notes=notes,
        differences=compared.differences,
    )


def compare(registered: SchemaPair, offered: SchemaPair, effort: Effort) -> Comparison:
    """Compare an offered pair of schemas with a registered pair. The offered tool may accept more and return less
    (REG-8.1-4).
    """
    arguments, results = InclusionOutcome(), InclusionOutcome()
    accepts, rejects = InclusionVerdict.ACCEPTS, InclusionVerdict.REJECTS
    is_same_argument = registered.argument_digest == offered.argument_digest
    if not is_same_argument:
        wide, narrow = offered.accepted, registered.declared
        arguments = includes(wide, wide.root, narrow, narrow.root, unnamed=rejects, tighter=rejects, effort=effort)
    is_same_return = registered.return_digest == offered.return_digest
    if not is_same_return and registered.has_results and offered.has_results:
        wide, narrow = registered.results, offered.results
        results = includes(wide, wide.root, narrow, narrow.root, unnamed=accepts, tighter=rejects, effort=effort)
    worst = max(arguments.verdict, results.verdict)
    differences = (*_differences("argument", arguments, worst), *_differences("return", results, worst))
    if worst is not accepts:
        verdict = SurfaceVerdict.MISMATCH if worst is rejects else SurfaceVerdict.UNDECIDED
        return Comparison(verdict=verdict, differences=differences)
    if registered.has_results and not offered.has_results:
        return Comparison(verdict=SurfaceVerdict.INPUT_ONLY)
    is_same = is_same_argument and is_same_return
    return Comparison(verdict=SurfaceVerdict.IDENTICAL if is_same else SurfaceVerdict.COMPATIBLE)


def _closed(schema: Any) -> Any:
    """Return an argument schema without `additionalProperties: true`, so that the comparison takes only the declared
    members into account.
    """
    if isinstance(schema, Mapping) and schema.get("additionalProperties") is True:
        return {key: value for key, value in schema.items() if key != "additionalProperties"}
    return schema


def _differences(
    side: Literal["argument", "return"], outcome: InclusionOutcome, worst: InclusionVerdict
) -> list[SurfaceDifference]:
    """Return the differences in the arguments or in the results of a tool, as `side` says. Return an empty list if the
    verdict on this side is not the worst of the two.
    """
    if outcome.verdict is not worst:
        return []
    differences = []
    for each in outcome.differences:
        registered, offered = (each.narrow, each.wide) if side == "argument" else (each.wide, each.narrow)
        differences.append(SurfaceDifference(side=side, path=each.path, registered=registered, offered=offered))
    return differences


def _is_contradicted(
    claim: RevisionClaim, specifications: tuple[Specification, ...], offered: SchemaPair, verdict: SurfaceVerdict
) -> bool:
    """Return whether a tool's schemas contradict the revision that its server claims. `verdict` is the result of the
    comparison with the current revision.
    """
    revisions = [each.revision for each in specifications]
    identical = [  # the revisions that have these very schemas
        revision
        for revision in revisions
        if revision.argument_digest == offered.argument_digest
        and (not offered.has_results or revision.return_digest == offered.return_digest)
    ]
    digests = (offered.digest, offered.argument_digest)
    if claim.specification is not None and not _is_named(claim.specification, digests, identical):
        return True
    if claim.version is None:
        return False
    if identical:
        return claim.version not in [_version_of(revisions, each) for each in identical]
    return verdict not in VERIFIED or claim.version[0] != _version_of(revisions, revisions[-1])[0]


Enforcement = Literal["reject", "session", "warn", "off"]

# Provisional and withdrawn entries only warn (REG-8.1-2).
_ENFORCED: Final = frozenset([EntryStatus.ACTIVE, EntryStatus.DEPRECATED])
_FAILS: Final = frozenset([SurfaceVerdict.MISMATCH, SurfaceVerdict.UNDECIDED])
VERIFIED: Final = frozenset([SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE, SurfaceVerdict.INPUT_ONLY])


class SurfacePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The configured consequences of comparing a tool with the registry. The tool is offered, offered with a warning,
    or refused, either alone or with its server.
    """

    enforce: Enforcement = "reject"
    per_name: Mapping[str, Enforcement] = {}
    strict: bool = False  # a server without an output schema, and every difference from a pin, is refused

    def enforcement(self, name: str) -> Enforcement:
        """Return the configured consequence of a mismatch for a name."""
        return self.per_name.get(name, self.enforce)

    def consequence(
        self, entry: RegistryEntry, judgement: Judgement, *, is_trusted: bool, is_accepted: bool
    ) -> Enforcement | Literal["pass"]:
        """Return the consequence of a judgement for a tool: it passes, gets a warning, or is refused. Return "off" if
        names are not enforced.

        `is_trusted` says whether the entry's source is trusted. `is_accepted` says whether an operator accepted this
        undecided pair of schemas.
        """
        enforcement = self.enforcement(entry.surface_name)
        if enforcement == "off":
            return "off"
        fails = judgement.verdict in _FAILS and not (judgement.verdict is SurfaceVerdict.UNDECIDED and is_accepted)
        if judgement.verdict is SurfaceVerdict.INPUT_ONLY:
            fails = self.strict  # REG-8.1-5
        if not fails:
            is_plain = judgement.verdict in VERIFIED and judgement.verdict is not SurfaceVerdict.INPUT_ONLY
            return "pass" if is_plain and not judgement.notes else "warn"
        return enforcement if is_trusted and entry.status in _ENFORCED else "warn"  # REG-8.1-2, REG-N-5

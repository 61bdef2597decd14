"""Request bodies. Every one refuses members that it does not know; what is left out has its default."""

from typing import Annotated, Final, Literal, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from interlock.operator_api.access import TokenAudience, TokenScope
from interlock.operator_api.classification import ToolRuling
from interlock.operator_api.grants import GrantRule, GrantTerms
from interlock.operator_api.names import NamesAction
from interlock.operator_api.rooms import RoomPrivilege

REASON_CHARS_MAX: Final = 1000
CODE_CHARS_MAX: Final = 40
PASSPHRASE_CHARS_MAX: Final = 1024
DAYS_MAX: Final = 3650
SECRET_NAME_CHARS_MAX: Final = 80
HOST_CHARS_MAX: Final = 253  # RFC 1035 2.3.4, as text

CLASSIFIED_MAX: Final = 200  # tools in one signature; with the longest names they fit into a body

_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_SHA256: Final = "^[0-9a-f]{64}$"
_PRIVILEGE: Final = {"enum": list(get_args(RoomPrivilege))}  # another one is refused by its own name
_ANCHOR_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"  # as an [[anchor]] may be called


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every request body has in common."""


class TokenRoom(RequestBody, frozen=True, kw_only=True):
    """What a token for a room is good for."""

    topic: Annotated[str, Meta(description="The room.", min_length=1, max_length=128)]
    participant: Annotated[str, Meta(description="Who its holder is there.", min_length=1, max_length=64)]
    privilege: Annotated[str, Meta(description="What it may do there.", extra_json_schema=_PRIVILEGE)] = "restricted"
    protocol: Annotated[str | None, Meta(description="What it speaks; null: it says so itself.")] = None


class IssueToken(RequestBody, frozen=True, kw_only=True):
    """A token to be made."""

    name: Annotated[str, Meta(description="What to call it. A name may be used again.")]
    audience: Annotated[TokenAudience, Meta(description="Who is to use it.")] = field(name="for")
    scope: Annotated[TokenScope | None, Meta(description="What it may do; null: the default for its kind.")] = None
    days: Annotated[
        Annotated[int, Meta(ge=1, le=DAYS_MAX)] | None, Meta(description="For how long; null: as configured.")
    ] = None
    room: Annotated[TokenRoom | None, Meta(description="Of a token for a room.")] = None


class ActOnName(RequestBody, frozen=True, kw_only=True):
    """An action on the registry of names."""

    action: Annotated[NamesAction, Meta(description="The action.")]
    subject: Annotated[str, Meta(description="The name, prefix or request it is about.", min_length=1, max_length=200)]
    body: Annotated[Raw | UnsetType, Meta(description="What the action takes, as docs/names.md lists it.")] = UNSET
    override: Annotated[
        str, Meta(description="Why an admin acts in the place of the controller; it is recorded.", max_length=4000)
    ] = ""


class CheckName(RequestBody, frozen=True, kw_only=True):
    """A request that is checked, and not filed."""

    name: Annotated[str, Meta(description="The surface name.", max_length=1000)]
    proposal: Annotated[Raw, Meta(description="What would be asked for, as docs/names.md lists it.")]


class VerifyName(RequestBody, frozen=True, kw_only=True):
    """A tool's definition, to be compared with the registered specification."""

    name: Annotated[str, Meta(description="The surface name.", min_length=1, max_length=64)]
    definition: Annotated[Raw, Meta(description="The tool as a server lists it: inputSchema, outputSchema.")]


class PinName(RequestBody, frozen=True, kw_only=True):
    """Which tools are held to what they are now."""

    name: Annotated[str, Meta(description="A surface name, or a tool's qualified name.", min_length=1, max_length=500)]
    remove: Annotated[bool, Meta(description="Take the pins away instead.")] = False


class TrustSource(RequestBody, frozen=True, kw_only=True):
    """Whether what an imported registry says is enforced."""

    source: Annotated[str, Meta(description="Where it was imported from.", min_length=1, max_length=500)]
    trusted: Annotated[bool, Meta(description="Whether it is trusted.")]


class CreateRoom(RequestBody, frozen=True, kw_only=True):
    """A room to be made."""

    topic: Annotated[str, Meta(description="Its name.", min_length=1, max_length=128)]


class ChangePrivilege(RequestBody, frozen=True, kw_only=True):
    """Why a participant is promoted or demoted, and for how long."""

    reason: Annotated[str, Meta(description="For the record.", max_length=2000)] = ""
    scope: Annotated[
        Literal["identity", "connection"],
        Meta(description="identity: also when it comes again; connection: while it stays connected."),
    ] = "identity"
    until: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="An RFC 3339 time, after which it is as before; null: no end."),
    ] = None


class EditProposal(RequestBody, frozen=True, kw_only=True):
    """Other params for what a participant of a room proposed."""

    params: Annotated[Raw, Meta(description="The whole params of the proposed method, as they are to be sent.")]


class UseLogin(RequestBody, frozen=True, kw_only=True):
    """The ticket of a login link."""

    ticket: Annotated[str, Meta(description="What stands behind the # of the link.", min_length=1, max_length=200)]


class MakeKey(RequestBody, frozen=True, kw_only=True):
    """An operator key to be made on the node's machine."""

    name: Annotated[str, Meta(description="What to call it, and its approver.", pattern=_ANCHOR_NAME)]
    passphrase: Annotated[str, Meta(description="Its passphrase, kept nowhere.", max_length=PASSPHRASE_CHARS_MAX)]


class SignApproval(RequestBody, frozen=True, kw_only=True):
    """The passphrase of an operator key, for one signature."""

    passphrase: Annotated[str, Meta(description="Kept nowhere.", min_length=1, max_length=PASSPHRASE_CHARS_MAX)]
    key: Annotated[
        Annotated[str, Meta(pattern=_ANCHOR_NAME)] | None, Meta(description="Which key; null: the only one.")
    ] = None
    answer: Annotated[
        Literal["read_only", "reversible", "irreversible", "reveal"] | None,
        Meta(description="The answer, where the question has several; reveal: to be shown a code."),
    ] = field(name="class", default=None)


class SetSecret(RequestBody, frozen=True, kw_only=True):
    """A secret to be kept."""

    name: Annotated[str, Meta(description="Its name.", min_length=1, max_length=SECRET_NAME_CHARS_MAX)]
    value: Annotated[str, Meta(description="Its value, which is never shown again.", min_length=1)]
    unless_kept: Annotated[bool, Meta(description="Leave what is kept already as it is.")] = False


class Decide(RequestBody, frozen=True, kw_only=True):
    """A decision on an approval."""

    decision: Annotated[
        Literal["approve", "deny", "return"],
        Meta(description="What is decided; return: a request to the registry of names is to be revised."),
    ]
    reason: Annotated[
        Annotated[str, Meta(max_length=REASON_CHARS_MAX)] | None, Meta(description="Told to the caller.")
    ] = None
    tool_class: Annotated[
        Literal["read_only", "reversible", "irreversible", "promote", "remove"] | None,
        Meta(description="The answer, where it is asked what a tool does, or what becomes of a provisional name."),
    ] = field(name="class", default=None)


class DecideApproval(Decide, frozen=True, kw_only=True):
    """A decision on an approval, as JSON."""

    proof: Annotated[
        Raw | UnsetType, Meta(description="The proof that approving takes: {type, token}, or the token alone.")
    ] = UNSET
    code: Annotated[
        Annotated[str, Meta(max_length=CODE_CHARS_MAX)] | None,
        Meta(description="To enrol the first approver: the setup code that the terminal of the node shows."),
    ] = None


class RevealCode(RequestBody, frozen=True, kw_only=True):
    """The wish to see the code of an agent's challenge, or the token of its start or step."""

    proof: Annotated[
        str, Meta(description="The token of a proof that an operator asks.", min_length=1, max_length=65_536)
    ]


class NameAgent(RequestBody, frozen=True, kw_only=True):
    """An agent."""

    principal: Annotated[str, Meta(description="The client whose agent it is.", min_length=1, max_length=1000)]
    name: Annotated[str, Meta(description="Its name.", min_length=1, max_length=100)]


class DecideApprovalForm(Decide, frozen=True, kw_only=True):
    """A decision on an approval, as the page sends it."""

    proof: Annotated[str | None, Meta(description="The proof as text.")] = None
    code: Annotated[str | None, Meta(description="The setup code, for the first approver.")] = None
    folded: Annotated[
        Literal["yes"] | None, Meta(description="yes: also what the page folded, and did not show in full.")
    ] = None


class DraftGrant(RequestBody, frozen=True, kw_only=True):
    """A standing grant to be drafted: from a held call, or for a tool and a caller."""

    approval: Annotated[str | None, Meta(description="The id of a held call that it is to cover.")] = None
    tool: Annotated[str | None, Meta(description="The tool, where it comes from no call.")] = None
    who: Annotated[str | None, Meta(description="The caller, where it comes from no call.")] = None
    rules: Annotated[
        tuple[GrantRule, ...] | None,
        Meta(description="Rules; what they do not name stays as in the call. null: proposed from the call."),
    ] = None
    calls: Annotated[int | None, Meta(description="For how many calls.")] = None
    seconds: Annotated[int | None, Meta(description="For how long from now; a day where neither is given.")] = None
    reason: Annotated[str | None, Meta(description="Why; it is part of what is signed.")] = None


class NameGrant(RequestBody, frozen=True, kw_only=True):
    """A drafted grant."""

    terms: Annotated[GrantTerms, Meta(description="As the draft has them.")]


class UnlockForGrant(NameGrant, frozen=True, kw_only=True):
    """A drafted grant, and the passphrase of an operator key for one signature."""

    passphrase: Annotated[str, Meta(description="Kept nowhere.", min_length=1, max_length=PASSPHRASE_CHARS_MAX)]
    key: Annotated[
        Annotated[str, Meta(pattern=_ANCHOR_NAME)] | None, Meta(description="Which key; null: the only one.")
    ] = None


class SignGrant(NameGrant, frozen=True, kw_only=True):
    """A drafted grant and the proof of who signs it."""

    proof: Annotated[Raw, Meta(description="{type, token}, or the token alone.")]


class ClassifyTools(RequestBody, frozen=True, kw_only=True):
    """What several tools are, to be signed at once."""

    id: Annotated[str, Meta(description="A UUID: confirmation_id of the proof.", pattern=_UUID)]
    entries: Annotated[
        Annotated[tuple[ToolRuling, ...], Meta(min_length=1, max_length=CLASSIFIED_MAX)],
        Meta(description="One for each tool."),
    ]


class UnlockForClasses(ClassifyTools, frozen=True, kw_only=True):
    """What several tools are, and the passphrase of an operator key for one signature."""

    passphrase: Annotated[str, Meta(description="Kept nowhere.", min_length=1, max_length=PASSPHRASE_CHARS_MAX)]
    key: Annotated[
        Annotated[str, Meta(pattern=_ANCHOR_NAME)] | None, Meta(description="Which key; null: the only one.")
    ] = None


class SignClasses(ClassifyTools, frozen=True, kw_only=True):
    """What several tools are, and the proof of who says so."""

    proof: Annotated[Raw, Meta(description="{type, token}, or the token alone.")]


class CallTool(RequestBody, frozen=True, kw_only=True):
    """A call of a tool."""

    arguments: Annotated[Raw | UnsetType, Meta(description="An object, sent as the bytes it is; none: {}.")] = UNSET


class TrustDriver(RequestBody, frozen=True, kw_only=True):
    """The acceptance of a driver's files."""

    digest: Annotated[str, Meta(description="The digest of the folder as it was shown.", pattern=_SHA256)]


class AllowHost(RequestBody, frozen=True, kw_only=True):
    """A host that a driver may reach besides those of its file."""

    host: Annotated[str, Meta(description="api.example.com or *.example.com", min_length=1, max_length=HOST_CHARS_MAX)]
    revoke: Annotated[bool, Meta(description="Take it back.")] = False


class RunExamples(RequestBody, frozen=True, kw_only=True):
    """A run of the examples of a driver's contracts."""

    allow_mutation: Annotated[bool, Meta(description="Also examples that change something.")] = False


class UpdateDriver(RequestBody, frozen=True, kw_only=True):
    """A look at the newest release of a driver's server, or the switch to it."""

    candidate: Annotated[
        Annotated[str, Meta(pattern=_SHA256)] | None, Meta(description="What the look named; null: only look.")
    ] = None


class InvitePasskey(RequestBody, frozen=True, kw_only=True):
    """An invitation to make a passkey."""

    name: Annotated[str, Meta(description="Whose passkey it will be.", pattern=_ANCHOR_NAME)]


class EnrolPasskey(RequestBody, frozen=True, kw_only=True):
    """A passkey that a browser has made; bytes in base64url."""

    client_data: Annotated[str, Meta(description="clientDataJSON of the answer.")]
    attestation: Annotated[str, Meta(description="attestationObject of the answer.")]

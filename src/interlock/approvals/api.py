"""Types of the operator API about approvals, approvers with their keys and passkeys, classes of tools, and grants."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from interlock.operator import operation
from interlock.operator.operation import CHANGED, NOT_FOUND, NOT_LOCAL, ErrorCase, Operation, RequestBody, operations_in


class ProofFacts(Struct, frozen=True, kw_only=True):
    """Description of the proof for a decision, without the proof itself."""

    type: Annotated[str, Meta(description="operator_signature, passkey, ...")]
    anchor: Annotated[str, Meta(description="Whose key made it.")]
    jti: Annotated[str, Meta(description="Its id.")]


class Decision(Struct, frozen=True, kw_only=True):
    """A decision on an approval: who made it, when, and why."""

    what: Annotated[str, Meta(description="approved or denied.")]
    by: Annotated[str, Meta(description="The principal who decided.")]
    at: Annotated[str, Meta(description="When.")]
    reason: Annotated[str | None, Meta(description="The reason that was given.")]
    answer: Annotated[str | None, Meta(description="The answer to a question that has several.")]
    proof: Annotated[ProofFacts | None, Meta(description="The proof that was given.")]


class ApprovalSummary(Struct, frozen=True, kw_only=True):
    """An approval in the form of lists and events, without arguments."""

    id: Annotated[str, Meta(description="Its id.")]
    kind: Annotated[str, Meta(description="call, definition, start, step, verify, proposal or request.")]
    source: Annotated[str, Meta(description="Which part of the node asks: ax, drivers, ...")]
    status: Annotated[
        str, Meta(description="pending, approved, used, done, failed, unknown, denied, withdrawn, expired or void.")
    ]
    requested_by: Annotated[str, Meta(description="The principal who asked.")]
    agent: Annotated[str | None, Meta(description="The agent that asked, as it names itself.")]
    room: Annotated[str | None, Meta(description="In which room.")]
    tool: Annotated[str, Meta(description="What it is about, as it is signed.")]
    name: Annotated[str, Meta(description="What it is about, as people call it: a tool, a server, an approver.")]
    reason: Annotated[str | None, Meta(description="Why a person is asked.")]
    requires: Annotated[str, Meta(description="What approving takes: proof or role.")]
    created_at: Annotated[str, Meta(description="When it was asked.")]
    expires_at: Annotated[str | None, Meta(description="Until when it can be decided.")]
    redeem_by: Annotated[str | None, Meta(description="Until when an approved call can be made.")]
    left_s: Annotated[int | None, Meta(description="Seconds until the next of these; null: no limit.")]
    decision: Annotated[Decision | None, Meta(description="What was decided.")]
    outcome: Annotated[str | None, Meta(description="How the call ended.")]
    url: Annotated[str, Meta(description="Its page.")]


class Approval(ApprovalSummary, frozen=True, kw_only=True):
    """An approval with all details that a person or a signer needs to decide."""

    proposal_id: Annotated[str | None, Meta(description="The proposal in a room that it belongs to.")]
    target: Annotated[str | None, Meta(description="Whom it is addressed to.")]
    method: Annotated[str | None, Meta(description="The method of the call.")]
    params: Annotated[Raw, Meta(description="The arguments, or the definition; null: none, or erased.")]
    route: Annotated[tuple[str, ...], Meta(description="The segments that lead to the tool.")]
    capability: Annotated[dict[str, Any] | None, Meta(description="What the call may change.")]
    digest: Annotated[str, Meta(description="What is signed.")]
    tool_digest: Annotated[str | None, Meta(description="The digest of the tool's definition.")]
    nonce: Annotated[str | None, Meta(description="The nonce of a proof from below.")]
    factors: Annotated[tuple[str, ...], Meta(description="What made the node ask.")]
    gating_link: Annotated[str | None, Meta(description="The hop that holds the call.")]
    answers: Annotated[tuple[str, ...], Meta(description="The answers a decision can choose from.")]
    approvers: Annotated[tuple[str, ...], Meta(description="The anchors whose proof may approve it.")]
    aggregator_id: Annotated[str, Meta(description="The node that asks, as it is signed.")]
    passkey_origin: Annotated[str | None, Meta(description="Where a passkey may approve it.")]
    ways_out: Annotated[tuple[str, ...], Meta(description="What a person can do to be asked less often.")] = ()
    signing_keys: Annotated[
        tuple[str, ...], Meta(description="Keys of the node's machine that sign, once unlocked by a passphrase.")
    ] = ()


class Approvals(Struct, frozen=True, kw_only=True):
    """A list of approvals that match a query."""

    approvals: Annotated[tuple[ApprovalSummary, ...], Meta(description="Oldest first; of many, the newest.")]
    total: Annotated[int, Meta(description="How many there are.")]


class PasskeyRequest(Struct, frozen=True, kw_only=True, rename={"rp_id": "rpId"}):
    """Options with which a browser asks a passkey for a signature (WebAuthn 5.5). Byte strings are in base64url."""

    challenge: Annotated[str, Meta(description="What is signed.")]
    rp_id: Annotated[str, Meta(description="The relying party.")]
    credentials: Annotated[tuple[str, ...], Meta(description="The passkeys that may sign.")]
    timeout: Annotated[int, Meta(description="Milliseconds that the browser waits.")]


class PasskeyCreation(Struct, frozen=True, kw_only=True, rename={"rp_id": "rpId"}):
    """Options with which a browser creates a passkey (WebAuthn 5.4). Byte strings are in base64url."""

    challenge: Annotated[str, Meta(description="What is signed.")]
    rp_id: Annotated[str, Meta(description="The relying party.")]
    user: Annotated[str, Meta(description="The handle of the user.")]
    name: Annotated[str, Meta(description="The name of the user.")]
    algorithms: Annotated[tuple[int, ...], Meta(description="COSE algorithms that are taken.")]
    exclude: Annotated[tuple[str, ...], Meta(description="Passkeys that are known already.")]
    timeout: Annotated[int, Meta(description="Milliseconds that the browser waits.")]


class Invitation(Struct, frozen=True, kw_only=True):
    """An invitation to create a passkey, and its result."""

    name: Annotated[str, Meta(description="Whose passkey it will be.")]
    url: Annotated[str, Meta(description="The page on which it is made. Anyone who has this URL can make a passkey.")]
    expires_at: Annotated[str, Meta(description="Until when.")]
    status: Annotated[str, Meta(description="waiting or made.")]
    passkey: Annotated[str | None, Meta(description="The passkey, as it is written in an [[anchor]].")]
    thumbprint: Annotated[str | None, Meta(description="The thumbprint of its key.")]


class Approver(Struct, frozen=True, kw_only=True):
    """A key, passkey or key set that may approve, or that could approve once it is enrolled."""

    name: Annotated[str, Meta(description="The name of the anchor.")]
    kind: Annotated[str, Meta(description="key, passkey or jwks.")]
    approves: Annotated[tuple[str, ...], Meta(description="Patterns of the tools that it may approve.")]
    wants: Annotated[tuple[str, ...], Meta(description="Patterns that are configured and not enrolled.")]
    enrolled_at: Annotated[str | None, Meta(description="Since when it is believed.")]
    how: Annotated[
        str | None,
        Meta(
            description="first_start: it stood in the first configuration; setup_code; proof: another vouched for it."
        ),
    ]
    by: Annotated[str | None, Meta(description="Who vouched for it.")]
    approval_id: Annotated[str | None, Meta(description="What waits in the inbox for it to be enrolled.")]


class Approvers(Struct, frozen=True, kw_only=True):
    """The approvers of a node, and how a browser can add one."""

    approvers: Annotated[tuple[Approver, ...], Meta(description="Those of the configuration first.")]
    needs_first: Annotated[bool, Meta(description="There is none: the first takes the setup code of the node.")]
    keys: Annotated[
        tuple[str, ...], Meta(description="Keys on the node's machine that sign here, once unlocked by a passphrase.")
    ]
    passkey_origin: Annotated[str | None, Meta(description="Where browsers make and use passkeys; null: nowhere.")]


class PasskeyOffer(Struct, frozen=True, kw_only=True):
    """Ticket and options with which a browser creates a passkey."""

    ticket: Annotated[str, Meta(description="Names this offer; good for ten minutes.")]
    creation: Annotated[PasskeyCreation, Meta(description="What the browser is told.")]


class SignedProof(Struct, frozen=True, kw_only=True):
    """A proof for one approval or grant, signed with a key of the node's machine."""

    proof: Annotated[
        str, Meta(description="The token, which POST /approvals/{id} or /admin/grants takes within five minutes.")
    ]


class RevokedKeys(Struct, frozen=True, kw_only=True):
    """Keys that were revoked, so that their signatures are no longer accepted."""

    revoked: Annotated[tuple[str, ...], Meta(description="Their thumbprints.")]
    voided: Annotated[tuple[str, ...], Meta(description="Approvals that they had given and that were not used.")]


class RevealedCode(Struct, frozen=True, kw_only=True):
    """Code that a person passes to an agent's client so that the agent may continue."""

    approval_id: Annotated[str, Meta(description="The approval that it belongs to.")]
    code: Annotated[str, Meta(description="The code of a challenge, or the token that confirms a start or a step.")]


REASON_CHARS_MAX: Final = 1000
CODE_CHARS_MAX: Final = 40
PASSPHRASE_CHARS_MAX: Final = 1024
ANCHOR_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"  # as an [[anchor]] may be called
Passphrase = Annotated[str, Meta(description="Kept nowhere.", min_length=1, max_length=PASSPHRASE_CHARS_MAX)]
KeyName = Annotated[
    Annotated[str, Meta(pattern=ANCHOR_NAME)] | None, Meta(description="Which key; null: the only one.")
]


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
    """Request body of a decision on an approval, as JSON."""

    proof: Annotated[
        Raw | UnsetType, Meta(description="The proof that approving takes: {type, token}, or the token alone.")
    ] = UNSET
    code: Annotated[
        Annotated[str, Meta(max_length=CODE_CHARS_MAX)] | None,
        Meta(description="To enrol the first approver: the setup code that the terminal of the node shows."),
    ] = None


class DecideApprovalForm(Decide, frozen=True, kw_only=True):
    """Request body of a decision on an approval, as the form on the page sends it."""

    proof: Annotated[str | None, Meta(description="The proof as text.")] = None
    code: Annotated[str | None, Meta(description="The setup code, for the first approver.")] = None
    folded: Annotated[
        Literal["yes"] | None, Meta(description="yes: also what the page folded, and did not show in full.")
    ] = None


class RevealCode(RequestBody, frozen=True, kw_only=True):
    """Request to see the code of an agent's challenge, or the token of an agent's start or step."""

    proof: Annotated[
        str, Meta(description="The token of a proof that an operator asks.", min_length=1, max_length=65_536)
    ]


class EditProposal(RequestBody, frozen=True, kw_only=True):
    """New params for a proposal in a room."""

    params: Annotated[Raw, Meta(description="The whole params of the proposed method, as they are to be sent.")]


class MakeKey(RequestBody, frozen=True, kw_only=True):
    """Request to create an operator key on the node's machine."""

    name: Annotated[str, Meta(description="What to call it, and its approver.", pattern=ANCHOR_NAME)]
    passphrase: Annotated[str, Meta(description="Its passphrase, kept nowhere.", max_length=PASSPHRASE_CHARS_MAX)]


class SignApproval(RequestBody, frozen=True, kw_only=True):
    """Request to sign with an operator key, with the passphrase that unlocks it for one signature."""

    passphrase: Passphrase
    key: KeyName = None
    answer: Annotated[
        Literal["read_only", "reversible", "irreversible", "reveal"] | None,
        Meta(description="The answer, where the question has several; reveal: to be shown a code."),
    ] = field(name="class", default=None)


class InvitePasskey(RequestBody, frozen=True, kw_only=True):
    """An invitation to make a passkey."""

    name: Annotated[str, Meta(description="Whose passkey it will be.", pattern=ANCHOR_NAME)]


class EnrolPasskey(RequestBody, frozen=True, kw_only=True):
    """A passkey that a browser has created. Byte strings are in base64url."""

    client_data: Annotated[str, Meta(description="clientDataJSON of the answer.")]
    attestation: Annotated[str, Meta(description="attestationObject of the answer.")]


# Classification of tools by their effects

ToolClass = Literal["read_only", "reversible", "irreversible"]


class ToolRuling(Struct, frozen=True, kw_only=True):
    """The class of one tool, in the form that is signed."""

    tool: Annotated[str, Meta(description="The tool, by its qualified name.")]
    digest: Annotated[str, Meta(description="The digest of its definition.")]
    tool_class: Annotated[ToolClass, Meta(description="What it is.")] = field(name="class")


class ClassProposal(ToolRuling, frozen=True, kw_only=True):
    """A proposed class for one tool, with the reason."""

    by: Annotated[
        str, Meta(description="What suggests it: annotations, name, schema, or nothing (then the strictest).")
    ]
    question: Annotated[
        str | None, Meta(description="What a person should look at: its name and its annotations contradict.")
    ]
    doubt: Annotated[str | None, Meta(description="What speaks against calling it read_only: its name.")] = None
    is_open: Annotated[bool, Meta(description="Nothing is known of it yet, and its calls wait; else it is in use.")]
    description: Annotated[str | None, Meta(description="What it does, in the words of its server.")]


class ClassProposals(Struct, frozen=True, kw_only=True):
    """Proposals for unclassified tools, and for tools whose annotations contradict their names."""

    aggregator_id: Annotated[str, Meta(description="The node, as it is signed.")]
    tools: Annotated[tuple[ClassProposal, ...], Meta(description="By name.")]


class UnclassifiedTool(Struct, frozen=True, kw_only=True):
    """A tool that was not classified although it was on the signed list, with the reason."""

    tool: Annotated[str, Meta(description="The tool.")]
    why: Annotated[str, Meta(description="Why it was left out.")]


class ClassifiedTools(Struct, frozen=True, kw_only=True):
    """Result of signing the classes of several tools."""

    classified: Annotated[tuple[ToolRuling, ...], Meta(description="What is remembered.")]
    left_out: Annotated[tuple[UnclassifiedTool, ...], Meta(description="What is not, and why.")]


CLASSIFIED_MAX: Final = 200  # tools in one signature; with the longest names they fit into a body
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


class ClassifyTools(RequestBody, frozen=True, kw_only=True):
    """Classes of several tools, to be signed at once."""

    id: Annotated[str, Meta(description="A UUID: confirmation_id of the proof.", pattern=_UUID)]
    entries: Annotated[
        Annotated[tuple[ToolRuling, ...], Meta(min_length=1, max_length=CLASSIFIED_MAX)],
        Meta(description="One for each tool."),
    ]


class UnlockForClasses(ClassifyTools, frozen=True, kw_only=True):
    """Classes of several tools, and the passphrase of an operator key for one signature."""

    passphrase: Passphrase
    key: KeyName = None


class SignClasses(ClassifyTools, frozen=True, kw_only=True):
    """Classes of several tools, and the proof of the person who signs them."""

    proof: Annotated[Raw, Meta(description="{type, token}, or the token alone.")]


# Standing grants


class GrantRule(Struct, frozen=True, kw_only=True):
    """Rule for one argument of a call. A call with an argument that has no rule is not covered."""

    at: Annotated[str, Meta(description="The argument, as a JSON pointer: /path. Empty: all of them together.")]
    kind: Annotated[
        Literal["equals", "one_of", "below", "range", "any"],
        Meta(description="below: a path inside a folder; range: a number between two; any: also absent."),
    ]
    value: Annotated[Any, Meta(description="The value, the values, the folder or the two numbers; null for any.")] = (
        None
    )
    each: Annotated[bool, Meta(description="It is a list, and the rule holds for each of its items.")] = False


class GrantTerms(Struct, frozen=True, kw_only=True):
    """Terms of a grant. The SHA-256 digest of the canonical JSON (RFC 8785) of these members,
    `kind` and `v` is signed.
    """

    id: Annotated[str, Meta(description="Its id, a UUID.")]
    aggregator_id: Annotated[str, Meta(description="The node that it is for.")]
    tool: Annotated[str, Meta(description="The tool, by its qualified name.")]
    tool_digest: Annotated[str, Meta(description="The digest of the tool's definition.")]
    # A caller, or a parent and the mark of its caller.
    who: Annotated[str, Meta(description="The caller, as approvals have it in requested_by.")]
    rules: Annotated[tuple[GrantRule, ...], Meta(description="What the arguments may be.")]
    calls: Annotated[int | None, Meta(description="For how many calls; null: without a number.")]
    until: Annotated[int | None, Meta(description="Until when, in UNIX seconds; null: without an end.")]
    issued_at: Annotated[int, Meta(description="When it was drafted, in UNIX seconds.")]
    reason: Annotated[str | None, Meta(description="Why, in the words of who signs it.")] = None


class GrantDraft(Struct, frozen=True, kw_only=True):
    """A grant that can be signed, with the description that a person is shown."""

    terms: Annotated[GrantTerms, Meta(description="What is signed.")]
    digest: Annotated[str, Meta(description="Its digest: call_digest of the proof; terms.id is its confirmation_id.")]
    words: Annotated[tuple[str, ...], Meta(description="What it lets pass, one sentence each.")]
    is_held_below: Annotated[bool, Meta(description="A node below holds these calls too, and still asks.")]
    approvers: Annotated[tuple[str, ...], Meta(description="The anchors whose proof may sign it.")]
    passkey_origin: Annotated[str | None, Meta(description="Where a passkey may sign it.")]
    signing_keys: Annotated[tuple[str, ...], Meta(description="Operator keys of the node's machine that may sign it.")]


class Grant(Struct, frozen=True, kw_only=True):
    """A signed grant, with its uses and its state."""

    terms: Annotated[GrantTerms, Meta(description="What was signed.")]
    digest: Annotated[str, Meta(description="Its digest.")]
    words: Annotated[tuple[str, ...], Meta(description="What it lets pass, one sentence each.")]
    state: Annotated[str, Meta(description="active, or over.")]
    over: Annotated[str | None, Meta(description="Why it lets nothing pass any more; null: it does.")]
    used: Annotated[int, Meta(description="How many calls it has let pass.")]
    used_at: Annotated[str | None, Meta(description="When the last one was.")]
    signed_at: Annotated[str, Meta(description="When it was signed.")]
    until: Annotated[str | None, Meta(description="Until when it is good.")]
    anchor: Annotated[str, Meta(description="The anchor whose key signed it.")]
    signed_by: Annotated[str, Meta(description="The principal that brought it.")]
    approvals: Annotated[tuple[str, ...], Meta(description="The latest calls under it: ids of approvals, newest last.")]


class Grants(Struct, frozen=True, kw_only=True):
    """The standing grants, including those that ended within the last 30 days."""

    grants: Annotated[tuple[Grant, ...], Meta(description="Oldest first.")]


class DraftGrant(RequestBody, frozen=True, kw_only=True):
    """Request to draft a standing grant from a held call, or for a tool and a caller."""

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
    """Reference to a drafted grant."""

    terms: Annotated[GrantTerms, Meta(description="As the draft has them.")]


class UnlockForGrant(NameGrant, frozen=True, kw_only=True):
    """A drafted grant, and the passphrase of an operator key for one signature."""

    passphrase: Passphrase
    key: KeyName = None


class SignGrant(NameGrant, frozen=True, kw_only=True):
    """A drafted grant, and the signed proof of an approver."""

    proof: Annotated[Raw, Meta(description="{type, token}, or the token alone.")]


# Errors

AMBIGUOUS_ID: Final = ErrorCase("ambiguous_id", 409, "several approvals have an id that begins like this")
ANSWER_NEEDED: Final = ErrorCase("answer_needed", 400, "the question has several answers, and none was given")
FOLDED: Final = ErrorCase("folded", 409, "the page showed some values by their size alone, and was not told to go on")
CONFIRMATION_OVER: Final = ErrorCase(
    "confirmation_used", 409, "used; or confirmation_expired, _denied, _void: it is decided or over"
)
PROPOSAL_OVER: Final = ErrorCase(
    "already_claimed", 409, "a room's proposal is carried out already; or proposal_expired"
)
INVALID_PROPOSAL: Final = ErrorCase(
    "invalid_proposal", 409, "the params can be read in several ways; or unknown_proposal: it is none of a room"
)
PROPOSAL_UNREADY: Final = ErrorCase(
    "target_absent", 409, "its target is not in the room; or one_recipient: it names no one"
)
PROPOSAL_BARRED: Final = ErrorCase(
    "self_approval", 403, "the proposer decides; or privilege_violation: restricted in the room"
)
EXISTS: Final = ErrorCase("exists", 409, "the name is taken")
KEY_NOT_MADE: Final = ErrorCase("exists", 409, "the name is taken; or bad_passphrase, not_written: no key was made")
TOO_OFTEN: Final = ErrorCase("too_often", 429, "too many wrong passphrases; details.wait_s says how long to wait")
NO_PASSKEYS: Final = ErrorCase("no_passkeys_here", 409, "browsers use no passkeys at this address")
PASSKEY_INVALID: Final = ErrorCase("passkey_invalid", 403, "what the browser made is not what was asked for")
PASSKEY_INVITATION_OVER: Final = ErrorCase("passkey_invalid", 404, "the invitation is used or over")
PROOF_INVALID: Final = ErrorCase("proof_invalid", 403, "the proof does not hold; details.reason says why")
PROOF_REQUIRED: Final = ErrorCase("proof_required", 403, "approving this takes a proof")
PARTY: Final = ErrorCase("self_approval", 403, "a party to a request to the registry of names does not decide it")
REASON_REQUIRED: Final = ErrorCase("reason_required", 400, "a decision on a request to the registry of names says why")
NOT_RETURNABLE: Final = ErrorCase("not_returnable", 400, "only requests to the registry of names can be returned")
SELF_APPROVAL: Final = ErrorCase("self_approval", 401, "the credential is a caller's: who may ask does not decide")
BAD_GRANT: Final = ErrorCase("bad_grant", 400, "the grant cannot be signed as it is; the message says why")
BAD_GRANT_DRAFT: Final = ErrorCase("bad_grant", 409, "no such grant can be signed; the message says why")
NOT_GRANTABLE: Final = ErrorCase(
    "not_grantable", 409, "no standing grant can cover calls of this tool; the message says why"
)


# Query parameters

KIND: Final = operation.ChoiceParameter(
    name="kind",
    description="Only approvals of this kind.",
    choices=(
        *("call", "definition", "ack", "start", "step", "verify"),
        *("proposal", "request", "enrolment", "configuration"),
    ),
)
STATUS: Final = operation.ChoiceParameter(
    name="status",
    description="Only approvals that stand like this; all: every one.",
    choices=(
        *("pending", "approved", "used", "done", "failed", "unknown"),
        *("denied", "withdrawn", "expired", "void", "all"),
    ),
    default="pending",
)
CLASS: Final = operation.TextParameter(
    name="class", argument="answer", description="The answer, where the question has several."
)


# Operations

PROPOSE_CLASSES: Final = Operation(
    "tools",
    "GET /admin/classification",
    "What is proposed for every tool that does not say what it does, or whose name contradicts it.",
    output=ClassProposals,
)
SIGN_CLASSES: Final = Operation(
    "tools",
    "POST /admin/classification",
    "Say what several tools are. The proof is over id and the digest of the sorted list.",
    role="admin",
    input=SignClasses,
    output=ClassifiedTools,
    errors=(CONFIRMATION_OVER, PROOF_INVALID),
)
ASK_CLASSES_PASSKEY: Final = Operation(
    "tools",
    "POST /admin/classification/passkey",
    "What a browser asks a passkey, for it to sign this list.",
    role="admin",
    input=ClassifyTools,
    output=PasskeyRequest,
    errors=(PROOF_INVALID,),
)
PROVE_CLASSES: Final = Operation(
    "tools",
    "POST /admin/classification/proof",
    "A proof for this list by an operator key of the node's machine, unlocked by its passphrase.",
    role="admin",
    input=UnlockForClasses,
    output=SignedProof,
    errors=(PROOF_INVALID, NOT_LOCAL, TOO_OFTEN),
    takes_passphrase=True,
)
REVOKE_KEY: Final = Operation(
    "access",
    "DELETE /admin/keys/{ref}",
    "Take back a person's key, by the name of the anchor or its thumbprint.",
    role="admin",
    output=RevokedKeys,
    errors=(NOT_FOUND,),
)
LIST_APPROVALS: Final = Operation(
    "approvals",
    "GET /approvals",
    "What waits for a decision, or was decided.",
    output=Approvals,
    query=(KIND, STATUS),
    is_page=True,
    errors=(SELF_APPROVAL,),
)
FOLLOW_APPROVALS: Final = Operation(
    "approvals",
    "GET /approvals/events",
    "What waits now, then every change, each as an event named approval.",
    output=ApprovalSummary,
    is_stream=True,
    event="approval",
    errors=(SELF_APPROVAL,),
)
GET_APPROVAL: Final = Operation(
    "approvals",
    "GET /approvals/{id}",
    "One approval in full, by its id or the beginning of it.",
    output=Approval,
    is_page=True,
    errors=(SELF_APPROVAL, NOT_FOUND, AMBIGUOUS_ID),
)
DECIDE_APPROVAL: Final = Operation(
    "approvals",
    "POST /approvals/{id}",
    "Approve, deny, or return a request to the registry of names.",
    role="operator",
    input=DecideApproval,
    form=DecideApprovalForm,
    output=Approval,
    is_page=True,
    errors=(
        *(ANSWER_NEEDED, REASON_REQUIRED, NOT_RETURNABLE, SELF_APPROVAL, PARTY, FOLDED, PROOF_INVALID, PROOF_REQUIRED),
        *(NOT_FOUND, AMBIGUOUS_ID, CONFIRMATION_OVER, PROPOSAL_OVER, PROPOSAL_UNREADY, PROPOSAL_BARRED),
    ),
)
EDIT_PROPOSAL: Final = Operation(
    "approvals",
    "POST /approvals/{id}/edit",
    "Void a pending proposal of a room, and have one with other params decided instead.",
    role="operator",
    input=EditProposal,
    output=Approval,
    errors=(NOT_FOUND, AMBIGUOUS_ID, PROPOSAL_OVER, INVALID_PROPOSAL),
)
REVEAL_CODE: Final = Operation(
    "approvals",
    "POST /approvals/{id}/code",
    "Show an operator, upon a proof, the code of an agent's challenge or the token of its start or step.",
    input=RevealCode,
    output=RevealedCode,
    errors=(SELF_APPROVAL, PROOF_INVALID, PROOF_REQUIRED, NOT_FOUND, AMBIGUOUS_ID, CONFIRMATION_OVER),
)
ASK_PASSKEY: Final = Operation(
    "approvals",
    "GET /approvals/{id}/passkey",
    "What a browser asks a passkey, for it to approve this.",
    output=PasskeyRequest,
    query=(CLASS,),
    errors=(ANSWER_NEEDED, SELF_APPROVAL, PROOF_INVALID, NOT_FOUND, AMBIGUOUS_ID, CONFIRMATION_OVER),
)
LIST_APPROVERS: Final = Operation(
    "approvers", "GET /admin/approvers", "Whose signature may approve, and what is not enrolled yet.", output=Approvers
)
MAKE_OPERATOR_KEY: Final = Operation(
    "approvers",
    "POST /admin/approvers",
    "Make an operator key on the node's machine. It counts once its enrolment, the answer, is approved.",
    role="admin",
    input=MakeKey,
    output=Approval,
    status=201,
    errors=(KEY_NOT_MADE, NOT_LOCAL),
    takes_passphrase=True,
)
OFFER_PASSKEY: Final = Operation(
    "approvers",
    "POST /admin/approvers/passkeys",
    "What a browser needs to make a passkey, within ten minutes.",
    role="admin",
    input=InvitePasskey,
    output=PasskeyOffer,
    status=201,
    errors=(NO_PASSKEYS, EXISTS),
)
TAKE_PASSKEY: Final = Operation(
    "approvers",
    "POST /admin/approvers/passkeys/{ticket}",
    "The passkey that the browser made. It counts once its enrolment, the answer, is approved.",
    role="admin",
    input=EnrolPasskey,
    output=Approval,
    status=201,
    errors=(PASSKEY_INVALID, PASSKEY_INVITATION_OVER, EXISTS),
)
SIGN_APPROVAL: Final = Operation(
    "approvers",
    "POST /approvals/{id}/proof",
    "A proof for this approval by an operator key of the node's machine, unlocked by its passphrase.",
    role="operator",
    input=SignApproval,
    output=SignedProof,
    errors=(
        *(ANSWER_NEEDED, SELF_APPROVAL, PROOF_INVALID, NOT_LOCAL),
        *(NOT_FOUND, AMBIGUOUS_ID, CONFIRMATION_OVER, TOO_OFTEN),
    ),
    takes_passphrase=True,
)
VISIT_APPROVERS: Final[Operation[None]] = Operation(
    "approvers", "GET /approvers", "The page on which a person becomes an approver.", is_page=True
)
INVITE_PASSKEY: Final = Operation(
    "passkeys",
    "POST /admin/passkeys",
    "Invite a person to make a passkey: an address that is good once, for ten minutes.",
    role="admin",
    input=InvitePasskey,
    output=Invitation,
    status=201,
    errors=(NO_PASSKEYS,),
)
GET_INVITATION: Final = Operation(
    "passkeys",
    "GET /admin/passkeys/{ticket}",
    "What became of an invitation.",
    role="admin",
    output=Invitation,
    errors=(NOT_FOUND,),
)
VISIT_INVITATION: Final[Operation[None]] = Operation(
    "passkeys",
    "GET /passkeys/{ticket}",
    "The page on which a person makes a passkey. The ticket is the only credential.",
    role="anyone",
    is_page=True,
)
ENROL_PASSKEY: Final = Operation(
    "passkeys",
    "POST /passkeys/{ticket}",
    "What the browser made there. The ticket is the only credential.",
    role="anyone",
    input=EnrolPasskey,
    output=Invitation,
    errors=(PASSKEY_INVALID, PASSKEY_INVITATION_OVER),
)
LIST_GRANTS: Final = Operation(
    "grants", "GET /admin/grants", "Every standing grant, and how often it was used.", output=Grants
)
SIGN_GRANT: Final = Operation(
    "grants",
    "POST /admin/grants",
    "Sign a grant that was drafted: the proof is over terms.id and digest.",
    role="admin",
    input=SignGrant,
    output=Grant,
    status=201,
    errors=(BAD_GRANT, CHANGED, CONFIRMATION_OVER, NOT_FOUND, NOT_GRANTABLE, PROOF_INVALID),
)
DRAFT_GRANT: Final = Operation(
    "grants",
    "POST /admin/grants/draft",
    "Draft a grant, from a held call with rules proposed from its arguments, or for a tool. Keeps nothing.",
    role="admin",
    input=DraftGrant,
    output=GrantDraft,
    errors=(AMBIGUOUS_ID, BAD_GRANT_DRAFT, CHANGED, NOT_FOUND, NOT_GRANTABLE),
)
ASK_GRANT_PASSKEY: Final = Operation(
    "grants",
    "POST /admin/grants/passkey",
    "What a browser asks a passkey, for it to sign this grant.",
    role="admin",
    input=NameGrant,
    output=PasskeyRequest,
    errors=(BAD_GRANT, PROOF_INVALID),
)
PROVE_GRANT: Final = Operation(
    "grants",
    "POST /admin/grants/proof",
    "A proof for this grant by an operator key of the node's machine, unlocked by its passphrase.",
    role="admin",
    input=UnlockForGrant,
    output=SignedProof,
    errors=(BAD_GRANT, NOT_LOCAL, PROOF_INVALID, TOO_OFTEN),
    takes_passphrase=True,
)
GET_GRANT: Final = Operation(
    "grants",
    "GET /admin/grants/{id}",
    "One grant, by its id or the beginning of it, and the latest calls under it.",
    output=Grant,
    errors=(AMBIGUOUS_ID, NOT_FOUND),
)
REVOKE_GRANT: Final = Operation(
    "grants",
    "POST /admin/grants/{id}/revoke",
    "Revoke a grant: from now on it lets nothing pass.",
    role="admin",
    output=Grant,
    errors=(AMBIGUOUS_ID, NOT_FOUND),
)

OPERATIONS: Final = operations_in(globals())

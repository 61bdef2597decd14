"""Types of the operator API about approvals, approvers with their keys and passkeys, and classes of tools."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from interlock.operator import operation
from interlock.operator.operation import NOT_LOCAL, ErrorCase, Operation, RequestBody, operations_in


class ProofFacts(Struct, frozen=True, kw_only=True):
    """Description of the proof for a decision, without the proof itself.

    Members:
        type: operator_signature, passkey, ...
        anchor: Whose key made it.
        jti: Its id.
    """

    type: str
    anchor: str
    jti: str


class Decision(Struct, frozen=True, kw_only=True):
    """A decision on an approval: who made it, when, and why.

    Members:
        what: approved or denied.
        by: The principal who decided.
        at: When.
        reason: The reason that was given.
        answer: The answer to a question that has several.
        proof: The proof that was given.
    """

    what: str
    by: str
    at: str
    reason: str | None
    answer: str | None
    proof: ProofFacts | None


class ApprovalSummary(Struct, frozen=True, kw_only=True):
    """An approval as lists and events show it, without its arguments.

    Members:
        id: Its id.
        kind: call, definition, start, step, verify, proposal or request.
        source: Which part of the node asks: ax, drivers, ...
        status: pending, approved, used, done, failed, unknown, denied, withdrawn, expired or void.
        requested_by: The principal who asked.
        agent: The agent that asked, as it names itself.
        room: In which room.
        tool: What it is about, as it is signed.
        name: What it is about, as people call it: a tool, a server, an approver.
        reason: Why a person is asked.
        requires: What approving takes: proof or role.
        created_at: When it was asked.
        expires_at: Until when it can be decided.
        redeem_by: Until when an approved call can be made.
        left_s: Seconds until the next of these; null: no limit.
        decision: What was decided.
        outcome: How the call ended.
        url: Its page.
    """

    id: str
    kind: str
    source: str
    status: str
    requested_by: str
    agent: str | None
    room: str | None
    tool: str
    name: str
    reason: str | None
    requires: str
    created_at: str
    expires_at: str | None
    redeem_by: str | None
    left_s: int | None
    decision: Decision | None
    outcome: str | None
    url: str


class Approval(ApprovalSummary, frozen=True, kw_only=True):
    """An approval with all details that a person or a signer needs to decide.

    Members:
        proposal_id: The proposal in a room that it belongs to.
        target: Whom it is addressed to.
        method: The method of the call.
        params: The arguments, or the definition; null: none, or erased.
        route: The segments that lead to the tool.
        capability: What the call may change.
        digest: What is signed.
        tool_digest: The digest of the tool's definition.
        nonce: The nonce of a proof from below.
        factors: What made the node ask.
        gating_link: The hop that holds the call.
        answers: The answers a decision can choose from.
        approvers: The anchors whose proof may approve it.
        aggregator_id: The node that asks, as it is signed.
        passkey_origin: Where a passkey may approve it.
        ways_out: What a person can do to be asked less often.
        signing_keys: Keys of the node's machine that sign, once unlocked by a passphrase.
    """

    proposal_id: str | None
    target: str | None
    method: str | None
    params: Raw
    route: tuple[str, ...]
    capability: dict[str, Any] | None
    digest: str
    tool_digest: str | None
    nonce: str | None
    factors: tuple[str, ...]
    gating_link: str | None
    answers: tuple[str, ...]
    approvers: tuple[str, ...]
    aggregator_id: str
    passkey_origin: str | None
    ways_out: tuple[str, ...] = ()
    signing_keys: tuple[str, ...] = ()


class Approvals(Struct, frozen=True, kw_only=True):
    """A list of approvals that match a query.

    Members:
        approvals: Oldest first; of many, the newest.
        total: How many there are.
    """

    approvals: tuple[ApprovalSummary, ...]
    total: int


class PasskeyRequest(Struct, frozen=True, kw_only=True, rename={"rp_id": "rpId"}):
    """Options with which a browser asks a passkey for a signature (WebAuthn 5.5). Byte strings are in base64url.

    Members:
        challenge: What is signed.
        rp_id: The relying party.
        credentials: The passkeys that may sign.
        timeout: Milliseconds that the browser waits.
    """

    challenge: str
    rp_id: str
    credentials: tuple[str, ...]
    timeout: int


class PasskeyCreation(Struct, frozen=True, kw_only=True, rename={"rp_id": "rpId"}):
    """Options with which a browser creates a passkey (WebAuthn 5.4). Byte strings are in base64url.

    Members:
        challenge: What is signed.
        rp_id: The relying party.
        user: The handle of the user.
        name: The name of the user.
        algorithms: COSE algorithms that are taken.
        exclude: Passkeys that are known already.
        timeout: Milliseconds that the browser waits.
    """

    challenge: str
    rp_id: str
    user: str
    name: str
    algorithms: tuple[int, ...]
    exclude: tuple[str, ...]
    timeout: int


class Invitation(Struct, frozen=True, kw_only=True):
    """An invitation to create a passkey, and its result.

    Members:
        name: Whose passkey it will be.
        url: The page on which it is made. Anyone who has this URL can make a passkey.
        expires_at: Until when.
        status: waiting or made.
        passkey: The passkey, as it is written in an [[anchor]].
        thumbprint: The thumbprint of its key.
    """

    name: str
    url: str
    expires_at: str
    status: str
    passkey: str | None
    thumbprint: str | None


class Approver(Struct, frozen=True, kw_only=True):
    """A key, passkey or key set that may approve, or that could approve once it is enrolled.

    Members:
        name: The name of the anchor.
        kind: key, passkey or jwks.
        approves: Patterns of the tools that it may approve.
        wants: Patterns that are configured and not enrolled.
        enrolled_at: Since when it is believed.
        how: first_start: it stood in the first configuration; setup_code; proof: another vouched for it.
        by: Who vouched for it.
        approval_id: What waits in the inbox for it to be enrolled.
    """

    name: str
    kind: str
    approves: tuple[str, ...]
    wants: tuple[str, ...]
    enrolled_at: str | None
    how: str | None
    by: str | None
    approval_id: str | None


class Approvers(Struct, frozen=True, kw_only=True):
    """The approvers of a node, and how a browser can add one.

    Members:
        approvers: Those of the configuration first.
        needs_first: There is none: the first takes the setup code of the node.
        keys: Keys on the node's machine that sign here, once unlocked by a passphrase.
        passkey_origin: Where browsers make and use passkeys; null: nowhere.
    """

    approvers: tuple[Approver, ...]
    needs_first: bool
    keys: tuple[str, ...]
    passkey_origin: str | None


class PasskeyOffer(Struct, frozen=True, kw_only=True):
    """Ticket and options with which a browser creates a passkey.

    Members:
        ticket: Names this offer; good for ten minutes.
        creation: What the browser is told.
    """

    ticket: str
    creation: PasskeyCreation


class SignedProof(Struct, frozen=True, kw_only=True):
    """A proof for one approval or grant, signed with a key of the node's machine.

    Members:
        proof: The token, which POST /approvals/{id} or /admin/grants takes within five minutes.
    """

    proof: str


class RevokedKeys(Struct, frozen=True, kw_only=True):
    """Keys that were revoked, so that their signatures are no longer accepted.

    Members:
        revoked: Their thumbprints.
        voided: Approvals that they had given and that were not used.
    """

    revoked: tuple[str, ...]
    voided: tuple[str, ...]


class RevealedCode(Struct, frozen=True, kw_only=True):
    """Code that a person passes to an agent's client so that the agent may continue.

    Members:
        approval_id: The approval that it belongs to.
        code: The code of a challenge, or the token that confirms a start or a step.
    """

    approval_id: str
    code: str


REASON_CHARS_MAX: Final = 1000
CODE_CHARS_MAX: Final = 40
PASSPHRASE_CHARS_MAX: Final = 1024
ANCHOR_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"  # as an [[anchor]] may be called
Passphrase = Annotated[str, Meta(min_length=1, max_length=PASSPHRASE_CHARS_MAX)]
KeyName = Annotated[str, Meta(pattern=ANCHOR_NAME)] | None


class Decide(RequestBody, frozen=True, kw_only=True):
    """A decision on an approval.

    Members:
        decision: What is decided; return: a request to the registry of names is to be revised.
        reason: Told to the caller.
        tool_class: The answer, where it is asked what a tool does, or what becomes of a provisional name.
    """

    decision: Literal["approve", "deny", "return"]
    reason: Annotated[str, Meta(max_length=REASON_CHARS_MAX)] | None = None
    tool_class: Literal["read_only", "reversible", "irreversible", "promote", "remove"] | None = field(
        name="class", default=None
    )


class DecideApproval(Decide, frozen=True, kw_only=True):
    """Request body of a decision on an approval, as JSON.

    Members:
        proof: The proof that approving takes: {type, token}, or the token alone.
        code: To enrol the first approver: the setup code that the terminal of the node shows.
    """

    proof: Raw | UnsetType = UNSET
    code: Annotated[str, Meta(max_length=CODE_CHARS_MAX)] | None = None


class DecideApprovalForm(Decide, frozen=True, kw_only=True):
    """Request body of a decision on an approval, as the form on the page sends it.

    Members:
        proof: The proof as text.
        code: The setup code, for the first approver.
        folded: yes: also what the page folded, and did not show in full.
    """

    proof: str | None = None
    code: str | None = None
    folded: Literal["yes"] | None = None


class RevealCode(RequestBody, frozen=True, kw_only=True):
    """Request to see the code of an agent's challenge, or the token of an agent's start or step.

    Members:
        proof: The token of a proof that an operator asks.
    """

    proof: Annotated[str, Meta(min_length=1, max_length=65_536)]


class EditProposal(RequestBody, frozen=True, kw_only=True):
    """A request to replace the params of a proposal in a room.

    Members:
        params: The whole params of the proposed method, as they are to be sent.
    """

    params: Raw


class MakeKey(RequestBody, frozen=True, kw_only=True):
    """Request to create an operator key on the node's machine.

    Members:
        name: What to call it, and its approver.
        passphrase: Its passphrase, kept nowhere.
    """

    name: Annotated[str, Meta(pattern=ANCHOR_NAME)]
    passphrase: Annotated[str, Meta(max_length=PASSPHRASE_CHARS_MAX)]


class SignApproval(RequestBody, frozen=True, kw_only=True):
    """Request to sign with an operator key, with the passphrase that unlocks it for one signature.

    Members:
        passphrase: Kept nowhere.
        key: Which key; null: the only one.
        answer: The answer, where the question has several; reveal: to be shown a code.
    """

    passphrase: Passphrase
    key: KeyName = None
    answer: Literal["read_only", "reversible", "irreversible", "reveal"] | None = field(name="class", default=None)


class InvitePasskey(RequestBody, frozen=True, kw_only=True):
    """A request to invite a person to create a passkey.

    Members:
        name: Whose passkey it will be.
    """

    name: Annotated[str, Meta(pattern=ANCHOR_NAME)]


class EnrolPasskey(RequestBody, frozen=True, kw_only=True):
    """A passkey that a browser has created. Byte strings are in base64url.

    Members:
        client_data: clientDataJSON of the answer.
        attestation: attestationObject of the answer.
    """

    client_data: str
    attestation: str


# Classification of tools by their effects

ToolClass = Literal["read_only", "reversible", "irreversible"]


class ToolRuling(Struct, frozen=True, kw_only=True):
    """The class of one tool, in the form that is signed.

    Members:
        tool: The tool, by its qualified name.
        digest: The digest of its definition.
        tool_class: What it is.
    """

    tool: str
    digest: str
    tool_class: ToolClass = field(name="class")


class ClassProposal(ToolRuling, frozen=True, kw_only=True):
    """A proposed class for one tool, with the reason.

    Members:
        by: What suggests it: annotations, name, schema, or nothing (then the strictest).
        question: What a person should look at: its name and its annotations contradict.
        doubt: What speaks against calling it read_only: its name.
        is_open: Nothing is known of it yet, and its calls wait; else it is in use.
        description: What it does, in the words of its server.
    """

    by: str
    question: str | None
    doubt: str | None = None
    is_open: bool
    description: str | None


class ClassProposals(Struct, frozen=True, kw_only=True):
    """Proposals for unclassified tools, and for tools whose annotations contradict their names.

    Members:
        aggregator_id: The node, as it is signed.
        tools: By name.
    """

    aggregator_id: str
    tools: tuple[ClassProposal, ...]


class UnclassifiedTool(Struct, frozen=True, kw_only=True):
    """A tool that was not classified although it was on the signed list, with the reason.

    Members:
        tool: The tool.
        why: Why it was left out.
    """

    tool: str
    why: str


class ClassifiedTools(Struct, frozen=True, kw_only=True):
    """Result of signing the classes of several tools.

    Members:
        classified: What is remembered.
        left_out: What is not, and why.
    """

    classified: tuple[ToolRuling, ...]
    left_out: tuple[UnclassifiedTool, ...]


CLASSIFIED_MAX: Final = 200  # tools in one signature; with the longest names they fit into a body
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


class ClassifyTools(RequestBody, frozen=True, kw_only=True):
    """Classes of several tools, to be signed at once.

    Members:
        id: A UUID: confirmation_id of the proof.
        entries: One for each tool.
    """

    id: Annotated[str, Meta(pattern=_UUID)]
    entries: Annotated[tuple[ToolRuling, ...], Meta(min_length=1, max_length=CLASSIFIED_MAX)]


class UnlockForClasses(ClassifyTools, frozen=True, kw_only=True):
    """Request to sign the classes of several tools with an operator key, with the passphrase that unlocks the key for
    one signature.

    Members:
        passphrase: Kept nowhere.
        key: Which key; null: the only one.
    """

    passphrase: Passphrase
    key: KeyName = None


class SignClasses(ClassifyTools, frozen=True, kw_only=True):
    """Request to sign the classes of several tools, with the proof of the person who signs them.

    Members:
        proof: {type, token}, or the token alone.
    """

    proof: Raw


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


# Query parameters

KIND: Final = operation.ChoiceParameter(
    "kind",
    "Only approvals of this kind.",
    choices=(
        *("call", "definition", "ack", "start", "step", "verify"),
        *("proposal", "request", "enrolment", "configuration"),
    ),
)
STATUS: Final = operation.ChoiceParameter(
    "status",
    "Only approvals with this status; all: every approval.",
    choices=(
        *("pending", "approved", "used", "done", "failed", "unknown"),
        *("denied", "withdrawn", "expired", "void", "all"),
    ),
    default="pending",
)
CLASS: Final = operation.TextParameter("class", "The answer, where the question has several.", argument="answer")


# Operations

PROPOSE_CLASSES: Final = Operation(
    "GET /admin/classification",
    "What is proposed for every tool that does not say what it does, or whose name contradicts it.",
    noun="tools",
    output=ClassProposals,
)
SIGN_CLASSES: Final = Operation(
    "POST /admin/classification",
    "Say what several tools are. The proof is over id and the digest of the sorted list.",
    noun="tools",
    input=SignClasses,
    output=ClassifiedTools,
    errors=(CONFIRMATION_OVER, PROOF_INVALID),
)
ASK_CLASSES_PASSKEY: Final = Operation(
    "POST /admin/classification/passkey",
    "What a browser asks a passkey, for it to sign this list.",
    noun="tools",
    input=ClassifyTools,
    output=PasskeyRequest,
    errors=(PROOF_INVALID,),
)
PROVE_CLASSES: Final = Operation(
    "POST /admin/classification/proof",
    "A proof for this list by an operator key of the node's machine, unlocked by its passphrase.",
    noun="tools",
    input=UnlockForClasses,
    output=SignedProof,
    errors=(PROOF_INVALID, NOT_LOCAL, TOO_OFTEN),
)
REVOKE_KEY: Final = Operation(
    "DELETE /admin/keys/{ref}",
    "Take back a person's key, by the name of the anchor or its thumbprint.",
    noun="access",
    output=RevokedKeys,
)
LIST_APPROVALS: Final = Operation(
    "GET /approvals",
    "What waits for a decision, or was decided.",
    output=Approvals,
    query=(KIND, STATUS),
    is_page=True,
    errors=(SELF_APPROVAL,),
)
FOLLOW_APPROVALS: Final = Operation(
    "GET /approvals/events",
    "What waits now, then every change, each as an event named approval.",
    output=ApprovalSummary,
    is_stream=True,
    event="approval",
    errors=(SELF_APPROVAL,),
)
GET_APPROVAL: Final = Operation(
    "GET /approvals/{id}",
    "One approval in full, by its id or the beginning of it.",
    output=Approval,
    is_page=True,
    errors=(SELF_APPROVAL, AMBIGUOUS_ID),
)
DECIDE_APPROVAL: Final = Operation(
    "POST /approvals/{id}",
    "Approve, deny, or return a request to the registry of names.",
    role="operator",
    input=DecideApproval,
    form=DecideApprovalForm,
    output=Approval,
    is_page=True,
    errors=(
        ANSWER_NEEDED,
        REASON_REQUIRED,
        NOT_RETURNABLE,
        SELF_APPROVAL,
        PARTY,
        FOLDED,
        PROOF_INVALID,
        PROOF_REQUIRED,
        AMBIGUOUS_ID,
        CONFIRMATION_OVER,
        PROPOSAL_OVER,
        PROPOSAL_UNREADY,
        PROPOSAL_BARRED,
    ),
)
EDIT_PROPOSAL: Final = Operation(
    "POST /approvals/{id}/edit",
    "Void a pending proposal of a room, and have one with other params decided instead.",
    role="operator",
    input=EditProposal,
    output=Approval,
    errors=(AMBIGUOUS_ID, PROPOSAL_OVER, INVALID_PROPOSAL),
)
REVEAL_CODE: Final = Operation(
    "POST /approvals/{id}/code",
    "Show an operator, upon a proof, the code of an agent's challenge or the token of its start or step.",
    role="viewer",
    input=RevealCode,
    output=RevealedCode,
    errors=(SELF_APPROVAL, PROOF_INVALID, PROOF_REQUIRED, AMBIGUOUS_ID, CONFIRMATION_OVER),
)
ASK_PASSKEY: Final = Operation(
    "GET /approvals/{id}/passkey",
    "What a browser asks a passkey, for it to approve this.",
    output=PasskeyRequest,
    query=(CLASS,),
    errors=(ANSWER_NEEDED, SELF_APPROVAL, PROOF_INVALID, AMBIGUOUS_ID, CONFIRMATION_OVER),
)
LIST_APPROVERS: Final = Operation(
    "GET /admin/approvers",
    "Whose signature may approve, and what is not enrolled yet.",
    noun="approvers",
    output=Approvers,
)
MAKE_OPERATOR_KEY: Final = Operation(
    "POST /admin/approvers",
    "Make an operator key on the node's machine. It counts once its enrolment, the answer, is approved.",
    noun="approvers",
    input=MakeKey,
    output=Approval,
    status=201,
    errors=(KEY_NOT_MADE, NOT_LOCAL),
)
OFFER_PASSKEY: Final = Operation(
    "POST /admin/approvers/passkeys",
    "What a browser needs to make a passkey, within ten minutes.",
    noun="approvers",
    input=InvitePasskey,
    output=PasskeyOffer,
    status=201,
    errors=(NO_PASSKEYS, EXISTS),
)
TAKE_PASSKEY: Final = Operation(
    "POST /admin/approvers/passkeys/{ticket}",
    "The passkey that the browser made. It counts once its enrolment, the answer, is approved.",
    noun="approvers",
    input=EnrolPasskey,
    output=Approval,
    status=201,
    errors=(PASSKEY_INVALID, PASSKEY_INVITATION_OVER, EXISTS),
)
SIGN_APPROVAL: Final = Operation(
    "POST /approvals/{id}/proof",
    "A proof for this approval by an operator key of the node's machine, unlocked by its passphrase.",
    noun="approvers",
    role="operator",
    input=SignApproval,
    output=SignedProof,
    errors=(ANSWER_NEEDED, SELF_APPROVAL, PROOF_INVALID, NOT_LOCAL, AMBIGUOUS_ID, CONFIRMATION_OVER, TOO_OFTEN),
)
VISIT_APPROVERS: Final[Operation[None]] = Operation(
    "GET /approvers", "The page on which a person becomes an approver.", noun="approvers", is_page=True
)
INVITE_PASSKEY: Final = Operation(
    "POST /admin/passkeys",
    "Invite a person to make a passkey: an address that is good once, for ten minutes.",
    noun="passkeys",
    input=InvitePasskey,
    output=Invitation,
    status=201,
    errors=(NO_PASSKEYS,),
)
GET_INVITATION: Final = Operation(
    "GET /admin/passkeys/{ticket}", "What became of an invitation.", noun="passkeys", role="admin", output=Invitation
)
VISIT_INVITATION: Final[Operation[None]] = Operation(
    "GET /passkeys/{ticket}",
    "The page on which a person makes a passkey. The ticket is the only credential.",
    noun="passkeys",
    role="anyone",
    is_page=True,
)
ENROL_PASSKEY: Final = Operation(
    "POST /passkeys/{ticket}",
    "What the browser made there. The ticket is the only credential.",
    noun="passkeys",
    role="anyone",
    input=EnrolPasskey,
    output=Invitation,
    errors=(PASSKEY_INVALID, PASSKEY_INVITATION_OVER),
)
OPERATIONS: Final = operations_in(globals(), "approvals")

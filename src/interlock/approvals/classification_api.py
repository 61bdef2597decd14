"""Types of the operator API about the classification of tools by their effects."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Raw, Struct, field

from interlock.approvals.api import (
    ANCHOR_NAME,
    CONFIRMATION_OVER,
    PASSPHRASE_CHARS_MAX,
    PROOF_INVALID,
    TOO_OFTEN,
    PasskeyRequest,
    SignedProof,
)
from interlock.operator.operation import NOT_LOCAL, Operation, RequestBody, operations_in

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

    passphrase: Annotated[str, Meta(description="Kept nowhere.", min_length=1, max_length=PASSPHRASE_CHARS_MAX)]
    key: Annotated[
        Annotated[str, Meta(pattern=ANCHOR_NAME)] | None, Meta(description="Which key; null: the only one.")
    ] = None


class SignClasses(ClassifyTools, frozen=True, kw_only=True):
    """Classes of several tools, and the proof of the person who signs them."""

    proof: Annotated[Raw, Meta(description="{type, token}, or the token alone.")]


# Operations

PROPOSE_CLASSES: Final = Operation(
    "propose_classes",
    "tools",
    "GET /admin/classification",
    "What is proposed for every tool that does not say what it does, or whose name contradicts it.",
    output=ClassProposals,
)
SIGN_CLASSES: Final = Operation(
    "sign_classes",
    "tools",
    "POST /admin/classification",
    "Say what several tools are. The proof is over id and the digest of the sorted list.",
    role="admin",
    input=SignClasses,
    output=ClassifiedTools,
    errors=(CONFIRMATION_OVER, PROOF_INVALID),
)
ASK_CLASSES_PASSKEY: Final = Operation(
    "ask_classes_passkey",
    "tools",
    "POST /admin/classification/passkey",
    "What a browser asks a passkey, for it to sign this list.",
    role="admin",
    input=ClassifyTools,
    output=PasskeyRequest,
    errors=(PROOF_INVALID,),
)
PROVE_CLASSES: Final = Operation(
    "prove_classes",
    "tools",
    "POST /admin/classification/proof",
    "A proof for this list by an operator key of the node's machine, unlocked by its passphrase.",
    role="admin",
    input=UnlockForClasses,
    output=SignedProof,
    errors=(PROOF_INVALID, NOT_LOCAL, TOO_OFTEN),
    takes_passphrase=True,
)

OPERATIONS: Final = operations_in(globals())

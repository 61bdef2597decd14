"""Tools and skills at the operator endpoint."""

from msgspec import Raw
from starlette.responses import Response

from interlock.approvals.api import Approval, PasskeyRequest, SignedProof
from interlock.approvals.classification_api import (
    ClassifiedTools,
    ClassifyTools,
    ClassProposals,
    SignClasses,
    UnlockForClasses,
)
from interlock.approvals.trust.operator_keys import TooOften
from interlock.catalog.api import CallEvent, CallTool, ToolDetail, ToolRoutes, Tools
from interlock.drivers.api import Skills
from interlock.gate.protocol.held_call import read_proof_untrusted
from interlock.operator.approvers import refuse_far, too_often
from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.error_cases import (
    CLASSIFIED,
    CONFIRMATION_OVER,
    NOT_FOUND,
    NOT_LOCAL,
    PROOF_INVALID,
    TOO_OFTEN,
    WITHHELD,
)
from interlock.operator.event_stream import event_stream
from interlock.operator.grants import rejection
from interlock.operator.parameters import TextParameter
from interlock.operator.requests import RejectedRequest
from interlock.wire.jsonrpc.errors import Fault

CLASSIFICATION = "/admin/classification"
CALLER = TextParameter(name="as", description="The principal whose call the checks are told for.", default="local")

SEARCH = TextParameter(name="search", description="Words: only the tools that fit them best, best first.")


async def list_tools(exchange: OperatorExchange[None]) -> Tools:
    return exchange.operations.tools.list_all(SEARCH.read(exchange.request) or "")


async def list_routes(exchange: OperatorExchange[None]) -> ToolRoutes:
    return exchange.operations.tools.routes()


async def list_skills(exchange: OperatorExchange[None]) -> Skills:
    return exchange.operations.tools.skills()


async def get_tool(exchange: OperatorExchange[None]) -> ToolDetail:
    return exchange.operations.tools.get(exchange.path("name"), CALLER.read(exchange.request) or "")


async def call_tool(exchange: OperatorExchange[CallTool]) -> Response:
    arguments = exchange.body.arguments or Raw(b"{}")
    if not bytes(arguments).startswith(b"{"):
        raise RejectedRequest(400, "invalid_body", "arguments must be an object")
    made = exchange.operations.calls.call(exchange.path("name"), arguments, exchange.principal)
    return event_stream(exchange, made)


async def classify_tool(exchange: OperatorExchange[None]) -> Approval:
    return await exchange.operations.tools.classify(exchange.path("name"))


async def propose_classes(exchange: OperatorExchange[None]) -> ClassProposals:
    return exchange.operations.classification.proposals()


async def ask_classes_passkey(exchange: OperatorExchange[ClassifyTools]) -> PasskeyRequest:
    asked = exchange.operations.classification.passkey_request(exchange.body)
    if isinstance(asked, Fault):
        raise rejection(asked)
    return asked


async def prove_classes(exchange: OperatorExchange[UnlockForClasses]) -> SignedProof:
    refuse_far(exchange.request)
    body = exchange.body
    signed = await exchange.operations.classification.prove(body, body.key, body.passphrase, by=exchange.principal)
    if isinstance(signed, TooOften):
        raise too_often(signed)
    if isinstance(signed, Fault):
        raise rejection(signed)
    return SignedProof(proof=signed)


async def sign_classes(exchange: OperatorExchange[SignClasses]) -> ClassifiedTools:
    body = exchange.body
    proof = read_proof_untrusted(body.proof)
    done = (
        proof
        if isinstance(proof, Fault)
        else await exchange.operations.classification.sign(body, proof, by=exchange.principal)
    )
    if isinstance(done, Fault):
        raise rejection(done)
    return done


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/admin/tools",
        handler=list_tools,
        summary="Every tool, listed or withheld.",
        query=(SEARCH,),
    ),
    Endpoint(
        method="GET",
        path="/admin/tools/routes",
        handler=list_routes,
        summary="Where every qualified name leads (MCP-AX 7.1).",
    ),
    Endpoint(method="GET", path="/admin/skills", handler=list_skills, summary="Skills that drivers bring."),
    Endpoint(
        method="GET",
        path="/admin/tools/{name}",
        handler=get_tool,
        summary="One tool, by its qualified name or alias, and what a call of it would meet.",
        query=(CALLER,),
        errors=(NOT_FOUND, WITHHELD),
    ),
    Endpoint(
        method="POST",
        path="/admin/tools/{name}/call",
        handler=call_tool,
        summary="Call a tool, through the same guard as any client. To close the connection cancels the call.",
        role="admin",
        events=CallEvent,
    ),
    Endpoint(
        method="POST",
        path="/admin/tools/{name}/classify",
        handler=classify_tool,
        summary="Ask what a tool does that does not say it; gives the approval that then waits.",
        role="admin",
        status=201,
        errors=(NOT_FOUND, CLASSIFIED),
    ),
    Endpoint(
        method="GET",
        path=CLASSIFICATION,
        handler=propose_classes,
        summary="What is proposed for every tool that does not say what it does, or whose name contradicts it.",
    ),
    Endpoint(
        method="POST",
        path=CLASSIFICATION,
        handler=sign_classes,
        summary="Say what several tools are. The proof is over id and the digest of the sorted list.",
        role="admin",
        errors=(CONFIRMATION_OVER, PROOF_INVALID),
    ),
    Endpoint(
        method="POST",
        path=f"{CLASSIFICATION}/passkey",
        handler=ask_classes_passkey,
        summary="What a browser asks a passkey, for it to sign this list.",
        role="admin",
        errors=(PROOF_INVALID,),
    ),
    Endpoint(
        method="POST",
        path=f"{CLASSIFICATION}/proof",
        handler=prove_classes,
        summary="A proof for this list by an operator key of the node's machine, unlocked by its passphrase.",
        role="admin",
        errors=(PROOF_INVALID, NOT_LOCAL, TOO_OFTEN),
    ),
)

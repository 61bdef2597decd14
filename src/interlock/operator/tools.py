"""Tools and skills at the operator endpoint."""

from msgspec import Raw

from interlock.approvals.api import Approval, PasskeyRequest, SignedProof
from interlock.approvals.classification_api import (
    ASK_CLASSES_PASSKEY,
    PROPOSE_CLASSES,
    PROVE_CLASSES,
    SIGN_CLASSES,
    ClassifiedTools,
    ClassifyTools,
    ClassProposals,
    SignClasses,
    UnlockForClasses,
)
from interlock.approvals.trust.operator_keys import TooOften
from interlock.catalog.api import (
    CALL_TOOL,
    CALLER,
    CLASSIFY_TOOL,
    GET_TOOL,
    LIST_ROUTES,
    LIST_SKILLS,
    LIST_TOOLS,
    SEARCH,
    CallTool,
    ToolDetail,
    ToolRoutes,
    Tools,
)
from interlock.drivers.api import Skills
from interlock.gate.protocol.held_call import read_proof_untrusted
from interlock.operator.approvers import too_often
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.grants import rejection
from interlock.operator.requests import RejectedRequest
from interlock.wire.refusal import Refusal

CLASSIFICATION = "/admin/classification"


async def list_tools(exchange: OperatorExchange[None]) -> Tools:
    return exchange.operations.tools.list_all(exchange.query(SEARCH) or "")


async def list_routes(exchange: OperatorExchange[None]) -> ToolRoutes:
    return exchange.operations.tools.routes()


async def list_skills(exchange: OperatorExchange[None]) -> Skills:
    return exchange.operations.tools.skills()


async def get_tool(exchange: OperatorExchange[None]) -> ToolDetail:
    return exchange.operations.tools.get(exchange.path("name"), exchange.query(CALLER) or "")


async def call_tool(exchange: OperatorExchange[CallTool]) -> object:
    arguments = exchange.body.arguments or Raw(b"{}")
    if not bytes(arguments).startswith(b"{"):
        raise RejectedRequest(400, "invalid_body", "arguments must be an object")
    return exchange.operations.calls.call(exchange.path("name"), arguments, exchange.principal)


async def classify_tool(exchange: OperatorExchange[None]) -> Approval:
    return await exchange.operations.tools.classify(exchange.path("name"))


async def propose_classes(exchange: OperatorExchange[None]) -> ClassProposals:
    return exchange.operations.classification.proposals()


async def ask_classes_passkey(exchange: OperatorExchange[ClassifyTools]) -> PasskeyRequest:
    asked = exchange.operations.classification.passkey_request(exchange.body)
    if isinstance(asked, Refusal):
        raise rejection(asked)
    return asked


async def prove_classes(exchange: OperatorExchange[UnlockForClasses]) -> SignedProof:
    body = exchange.body
    signed = await exchange.operations.classification.prove(body, body.key, body.passphrase, by=exchange.principal)
    if isinstance(signed, TooOften):
        raise too_often(signed)
    if isinstance(signed, Refusal):
        raise rejection(signed)
    return SignedProof(proof=signed)


async def sign_classes(exchange: OperatorExchange[SignClasses]) -> ClassifiedTools:
    body = exchange.body
    proof = read_proof_untrusted(body.proof)
    done = (
        proof
        if isinstance(proof, Refusal)
        else await exchange.operations.classification.sign(body, proof, by=exchange.principal)
    )
    if isinstance(done, Refusal):
        raise rejection(done)
    return done


REQUEST_HANDLERS: RequestHandlers = {
    LIST_TOOLS: list_tools,
    LIST_ROUTES: list_routes,
    LIST_SKILLS: list_skills,
    GET_TOOL: get_tool,
    CALL_TOOL: call_tool,
    CLASSIFY_TOOL: classify_tool,
    PROPOSE_CLASSES: propose_classes,
    SIGN_CLASSES: sign_classes,
    ASK_CLASSES_PASSKEY: ask_classes_passkey,
    PROVE_CLASSES: prove_classes,
}

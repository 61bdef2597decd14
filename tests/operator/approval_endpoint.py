"""The operator door over a real inbox, asked without a network; proofs are judged by one who knows one good word."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
from starlette.requests import Request
from tests.approvals.inboxes import StoredInbox, stored_inbox

from interlock.access.tokens import credential_of
from interlock.approvals.decisions import DecisionService
from interlock.approvals.operations.inbox import InboxOperations
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.operator_keys import OperatorKeyService
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.gate.protocol.held_call import Presented
from interlock.gate.protocol.proofs import ProofQuestion, Verified, invalid
from interlock.operator.app import operator_app
from interlock.operator.operation import handlers_of
from interlock.wire.refusal import Refusal

OWN_ID = "a0a0a0a0-0000-4000-8000-000000000000"
URL = "http://127.0.0.1:7412"
OPERATOR = "ilo_" + "o" * 43
VIEWER = "ilo_" + "v" * 43
CLIENT = "ilc_" + "c" * 43
ROLES = {OPERATOR: {"viewer", "operator", "admin"}, VIEWER: {"viewer"}}


class PasswordVerifier:
    """Judges by a token that spells out what it is for."""

    def __init__(self) -> None:
        self.asked: list[ProofQuestion] = []

    async def judge(self, asked: ProofQuestion, proof: Presented) -> Verified | Refusal:
        self.asked.append(asked)
        if proof.token != signed(asked.confirmation_id, asked.call_digest):
            return invalid("signature", "the signature of the proof is wrong")
        return Verified(
            type="operator_signature", anchor="ops", issuer="bob", jti="j1", key="k1", expires_at=1_700_000_300.0
        )


def signed(id: str, digest: str) -> str:
    return f"signed.{id}.{digest}"


class ApprovalEndpoint:
    def __init__(self, desk: StoredInbox, app: Any, judge: PasswordVerifier, deciding: DecisionService) -> None:
        self.desk, self.app, self.judge, self.deciding = desk, app, judge, deciding

    async def ask(
        self, method: str, path: str, *, token: str | None = OPERATOR, body: Any = None, **more: Any
    ) -> httpx2.Response:
        headers = {"accept": "application/json", **more.pop("headers", {})}
        if token is not None:
            headers.setdefault("authorization", f"Bearer {token}")
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app), base_url=URL) as client:
            return await client.request(method, path, headers=headers, json=body, **more)


async def authenticate(request: Request) -> str | None:
    token = credential_of(request.headers.get("authorization", ""), basic=True)
    if token not in ROLES:
        return None
    request.state.roles = ROLES[token]
    return "operator:bob"


@contextlib.asynccontextmanager
async def approval_endpoint(folder: Path, *, guarded: bool = True, **rules: Any) -> AsyncIterator[ApprovalEndpoint]:
    async with stored_inbox(folder, **rules) as desk:
        judge = PasswordVerifier()
        deciding = DecisionService(desk.inbox, desk.clock, OWN_ID, judge=judge)
        anchors = Anchors((), desk.clock)
        unused: Any = None
        passkeys = PasskeyService(anchors, unused, desk.clock, lambda: URL)
        keys = OperatorKeyService(folder / "keys", anchors, desk.clock)
        approvals = InboxOperations(desk.inbox, deciding, desk.clock, anchors, passkeys, keys, aggregator_id=OWN_ID)
        handlers = handlers_of([approvals])
        app = operator_app(handlers, authenticate=authenticate if guarded else None)
        yield ApprovalEndpoint(desk, app, judge, deciding)

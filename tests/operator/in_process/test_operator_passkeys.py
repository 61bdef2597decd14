"""Passkeys at the operator door: who may make one, what a page asks of it, and what happens to what comes back."""

import contextlib
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import msgspec
import pytest
from tests.operator.approval_endpoint import (
    CLIENT,
    OPERATOR,
    OWN_ID,
    VIEWER,
    ApprovalEndpoint,
    approval_endpoint,
    authenticate,
)
from tests.servers.authenticator import PRESENT, USUAL, Authenticator, b64

from interlock.approvals.decisions import DecisionService
from interlock.approvals.operations.inbox import ApproverOperations, InboxOperations
from interlock.approvals.protocol.approval import Approval, Kind, Source, Status
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.approvals.trust.operator_keys import OperatorKeyService
from interlock.approvals.trust.passkeys import INVITATION_S, INVITATIONS_MAX, PasskeyService
from interlock.config.plan import AnchorPlan
from interlock.crypto.webauthn import find_relying_party
from interlock.operator.app import operator_app
from interlock.operator.operation import handlers_of
from interlock.store.ports import StoreError

URL = "http://127.0.0.1:7412"
ORIGIN = "http://localhost:7412"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "sec-fetch-site": "same-origin"}
FORM = BROWSER | {"content-type": "application/x-www-form-urlencoded"}
DIGEST = "ab" * 32


class Lines:
    """As much of a recorder as is asked of it."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.away = False

    async def append_now(self, line: bytes) -> None:
        if self.away:
            raise StoreError("away")
        self.kept.append(msgspec.json.decode(line))


class Passkeyed:
    def __init__(self, door: ApprovalEndpoint, desk: PasskeyService, lines: Lines) -> None:
        self.door, self.desk, self.lines = door, desk, lines

    async def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return await self.door.ask(method, path, **more)

    async def invited(self, name: str = "ada") -> Any:
        made = await self.ask("POST", "/admin/passkeys", body={"name": name})
        assert made.status_code == 201, made.text
        return made.json()

    async def challenge(self, invitation: Any) -> str:
        page = await self.ask("GET", path_of(invitation), token=None, headers=BROWSER)
        (asked,) = re.findall('data-asked="([^"]*)"', page.text)
        return str(msgspec.json.decode(unescape(asked))["challenge"])

    async def held(self, digest: str = DIGEST) -> Approval:
        return await self.door.desk.raised(digest, nonce="bm9uY2U")


@contextlib.asynccontextmanager
async def passkeyed(folder: Path, *people: Authenticator, url: str = URL) -> AsyncIterator[Passkeyed]:
    async with approval_endpoint(folder) as door:
        plans = [AnchorPlan(name=f"p{index}", passkey=one.text(), approves=("*",)) for index, one in enumerate(people)]
        anchors, clock, lines = Anchors(plans, door.desk.clock), door.desk.clock, Lines()
        anchors.load()
        desk = PasskeyService(anchors, lines, clock, lambda: url)  # type: ignore[arg-type]
        judge = ProofVerifier(door.desk.store.kv, clock, anchors, lambda: find_relying_party(url))
        deciding = door.deciding = DecisionService(door.desk.inbox, clock, OWN_ID, judge=judge)
        keys = OperatorKeyService(folder / "keys", anchors, clock)
        inbox = InboxOperations(door.desk.inbox, deciding, clock, anchors, desk, keys, aggregator_id=OWN_ID)
        unused: Any = None
        approvers = ApproverOperations(unused, unused, inbox)
        door.app = operator_app(handlers_of([inbox, approvers]), authenticate=authenticate)
        yield Passkeyed(door, desk, lines)
        await anchors.close()


def path_of(invitation: Any) -> str:
    return str(invitation["url"]).removeprefix(ORIGIN)


# Making one


async def test_an_operator_invites_and_a_browser_makes_the_passkey_without_any_other_credential(tmp_path: Path) -> None:
    async with passkeyed(tmp_path) as here:
        invitation = await here.invited()
        assert (invitation["status"], invitation["passkey"]) == ("waiting", None)
        assert invitation["url"].startswith(f"{ORIGIN}/passkeys/")
        page = await here.ask("GET", path_of(invitation), token=None, headers=BROWSER)
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        ada = Authenticator()
        body = ada.make(await here.challenge(invitation))
        made = await here.ask("POST", path_of(invitation), token=None, body=body)
        assert made.json()["passkey"] == ada.text()
        looked = (await here.ask("GET", path_of(invitation).replace("/passkeys", "/admin/passkeys"))).json()
        assert (looked["status"], looked["passkey"]) == ("made", ada.text())
        assert (here.lines.kept[0]["who"], here.lines.kept[0]["method"]) == ("operator:bob", "passkeys/make")
        done = await here.ask("GET", path_of(invitation), token=None, headers=BROWSER)
        assert looked["thumbprint"] in done.text
        again = await here.ask("POST", path_of(invitation), token=None, body=body)
        assert (again.status_code, again.json()["details"]["reason"]) == (404, "invitation")


async def test_a_passkey_that_was_made_counts_for_nothing_before_it_is_configured(tmp_path: Path) -> None:
    ada, bob = Authenticator(), Authenticator()
    async with passkeyed(tmp_path, bob) as here:
        invitation = await here.invited()
        await here.ask("POST", path_of(invitation), token=None, body=ada.make(await here.challenge(invitation)))
        raised = await here.held()
        asked = (await here.ask("GET", f"/approvals/{raised.id}/passkey")).json()
        assert asked["credentials"] == [b64(bob.credential)]
        body = {"decision": "approve", "proof": ada.sign(asked["challenge"])}
        refused = await here.ask("POST", f"/approvals/{raised.id}", body=body)
        assert refused.json()["details"]["reason"] == "key_unknown"


@pytest.mark.parametrize(("token", "status"), [(None, 401), (CLIENT, 401), (VIEWER, 403)])
async def test_only_an_admin_invites_or_reads_an_invitation(tmp_path: Path, token: str | None, status: int) -> None:
    async with passkeyed(tmp_path) as here:
        invitation = await here.invited()
        invited = await here.ask("POST", "/admin/passkeys", token=token, body={"name": "eve"})
        looked = await here.ask("GET", f"/admin{path_of(invitation)}", token=token)
        assert (invited.status_code, looked.status_code) == (status, status)


@pytest.mark.parametrize(
    "body",
    [{}, {"name": ""}, {"name": "a b"}, {"name": "../x"}, {"name": "x" * 64}, {"name": 1}, {"name": "a", "x": 1}],
)
async def test_a_passkey_is_named_as_an_anchor_may_be(tmp_path: Path, body: Any) -> None:
    async with passkeyed(tmp_path) as here:
        assert (await here.ask("POST", "/admin/passkeys", body=body)).status_code == 400


async def test_an_invitation_is_over_after_ten_minutes_and_a_wrong_ticket_opens_nothing(tmp_path: Path) -> None:
    async with passkeyed(tmp_path) as here:
        invitation = await here.invited()
        body = Authenticator().make(await here.challenge(invitation))
        here.door.desk.clock.pass_(INVITATION_S)
        for path in (path_of(invitation), "/passkeys/x", "/passkeys/" + "a" * 5000):
            assert (await here.ask("GET", path, token=None, headers=BROWSER)).status_code == 404
            assert (await here.ask("POST", path, token=None, body=body)).status_code == 404
        assert (await here.ask("GET", f"/admin{path_of(invitation)}")).status_code == 404
        for path in ("/passkeys", "/passkeys/", "/passkeys/../approvals", "/passkeys/x/y"):
            assert (await here.ask("GET", path, token=None)).status_code in (401, 404)


async def test_the_oldest_invitation_gives_way(tmp_path: Path) -> None:
    async with passkeyed(tmp_path) as here:
        invitations = [await here.invited(f"p{index}") for index in range(INVITATIONS_MAX + 1)]
        found = [(await here.ask("GET", f"/admin{path_of(one)}")).status_code for one in invitations]
        assert found == [404] + [200] * INVITATIONS_MAX


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"challenge": b64(b"another")}, "challenge"),
        ({"origin": "https://evil.example"}, "origin"),
        ({"origin": URL}, "origin"),
        ({"type": "webauthn.get"}, "type"),
        ({"flags": PRESENT | 0x40}, "verification"),
        ({"flags": USUAL}, "authenticator_data"),
    ],
)
async def test_a_passkey_made_elsewhere_is_refused_and_the_invitation_stays_valid(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    async with passkeyed(tmp_path) as here:
        invitation = await here.invited()
        challenge, ada, changed = await here.challenge(invitation), Authenticator(), dict(changes)
        body = ada.make(changed.pop("challenge", challenge), **changed)
        refused = await here.ask("POST", path_of(invitation), token=None, body=body)
        assert (refused.status_code, refused.json()["details"]["reason"]) == (403, reason)
        assert not here.lines.kept
        good = await here.ask("POST", path_of(invitation), token=None, body=ada.make(challenge))
        assert good.status_code == 200


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"client_data":"*","attestation":"AA"}', "application/json", 400),
        (b'{"client_data":"AA"}', "application/json", 400),
        (b"x" * 70_000, "application/json", 413),
        (b"client_data=AA&attestation=AA", "application/x-www-form-urlencoded", 415),
    ],
)
async def test_bodies_that_are_no_passkey_are_refused(tmp_path: Path, content: bytes, kind: str, status: int) -> None:
    async with passkeyed(tmp_path) as here:
        path = path_of(await here.invited())
        sent = await here.ask("POST", path, token=None, content=content, headers={"content-type": kind})
        assert sent.status_code == status


async def test_a_passkey_that_cannot_be_recorded_is_not_registered(tmp_path: Path) -> None:
    async with passkeyed(tmp_path) as here:
        invitation = await here.invited()
        body = Authenticator().make(await here.challenge(invitation))
        here.lines.away = True
        assert (await here.ask("POST", path_of(invitation), token=None, body=body)).status_code == 503
        here.lines.away = False
        assert (await here.ask("POST", path_of(invitation), token=None, body=body)).status_code == 200


async def test_where_browsers_use_no_passkeys_nobody_is_invited(tmp_path: Path) -> None:
    async with passkeyed(tmp_path, url="http://192.0.2.1:7412") as here:
        refused = await here.ask("POST", "/admin/passkeys", body={"name": "ada"})
        assert (refused.status_code, refused.json()["error"]) == (409, "no_passkeys_here")


# Using one


async def test_the_page_of_a_held_call_offers_the_passkey_and_the_form_takes_it(tmp_path: Path) -> None:
    ada = Authenticator()
    async with passkeyed(tmp_path, ada) as here:
        raised = await here.held()
        page = await here.ask("GET", f"/approvals/{raised.id}", headers=BROWSER)
        assert f'data-origin="{ORIGIN}"' in page.text
        asked = (await here.ask("GET", f"/approvals/{raised.id}/passkey")).json()
        assert (asked["rpId"], asked["credentials"]) == ("localhost", [b64(ada.credential)])
        content = urlencode({"decision": "approve", "proof": ada.sign(asked["challenge"])}).encode()
        sent = await here.ask("POST", f"/approvals/{raised.id}", content=content, headers=FORM)
        assert (sent.status_code, sent.headers["location"]) == (303, f"/approvals/{raised.id}")
        one = (await here.ask("GET", f"/approvals/{raised.id}")).json()
        assert one["status"] == "approved"
        assert (one["decision"]["proof"]["type"], one["decision"]["proof"]["anchor"]) == ("operator_signature", "p0")


async def test_a_person_reads_on_the_page_why_it_was_refused(tmp_path: Path) -> None:
    ada = Authenticator()
    async with passkeyed(tmp_path, ada) as here:
        raised, other = await here.held(), await here.held("cd" * 32)
        asked = (await here.ask("GET", f"/approvals/{other.id}/passkey")).json()
        content = urlencode({"decision": "approve", "proof": ada.sign(asked["challenge"])}).encode()
        sent = await here.ask("POST", f"/approvals/{raised.id}", content=content, headers=FORM)
        assert (sent.status_code, sent.headers["content-type"]) == (403, "text/html; charset=utf-8")
        assert "Nothing was decided: the passkey signed another call" in sent.text
        assert [one.status for one in here.door.desk.inbox.waiting()] == [Status.PENDING] * 2
        missing = await here.ask("GET", "/approvals/nosuchthing", headers=BROWSER)
        assert (missing.status_code, "No such approval" in missing.text) == (404, True)


async def test_a_viewer_sees_no_buttons(tmp_path: Path) -> None:
    async with passkeyed(tmp_path, Authenticator()) as here:
        raised = await here.held()
        page = await here.ask("GET", f"/approvals/{raised.id}", token=VIEWER, headers=BROWSER)
        assert page.status_code == 200
        assert "<form" not in page.text and "<button" not in page.text


@pytest.mark.parametrize("token", [None, CLIENT])
async def test_a_client_opens_neither_the_page_nor_what_it_asks_of_a_passkey(tmp_path: Path, token: str | None) -> None:
    async with passkeyed(tmp_path, Authenticator()) as here:
        raised = await here.held()
        for path in (f"/approvals/{raised.id}", f"/approvals/{raised.id}/passkey"):
            assert (await here.ask("GET", path, token=token, headers=BROWSER)).status_code == 401


async def test_for_a_definition_the_passkey_signs_what_the_tool_is(tmp_path: Path) -> None:
    ada = Authenticator()
    async with passkeyed(tmp_path, ada) as here:
        inbox = here.door.desk.inbox
        draft = inbox.draft(Kind.DEFINITION, Source.AX, requested_by="client:alice", tool="files.x", digest="ef" * 32)
        raised = await inbox.raise_(draft)
        assert isinstance(raised, Approval)
        path = f"/approvals/{raised.id}"
        unsaid = await here.ask("GET", f"{path}/passkey")
        assert (unsaid.status_code, unsaid.json()["error"]) == (400, "answer_needed")
        asked = (await here.ask("GET", f"{path}/passkey?class=irreversible")).json()
        proof = ada.sign(asked["challenge"])
        other = await here.ask("POST", path, body={"decision": "approve", "class": "read_only", "proof": proof})
        assert other.json()["details"]["reason"] == "digest"
        good = await here.ask("POST", path, body={"decision": "approve", "class": "irreversible", "proof": proof})
        assert good.json()["decision"]["answer"] == "irreversible"


async def test_nothing_is_asked_of_a_passkey_for_what_is_over_or_unknown(tmp_path: Path) -> None:
    async with passkeyed(tmp_path, Authenticator()) as here:
        raised = await here.held()
        path = f"/approvals/{raised.id}"
        assert (await here.ask("GET", f"{path}/passkey?class=read_only")).status_code == 400
        assert (await here.ask("GET", f"{path}/passkey?x=1")).status_code == 400
        assert (await here.ask("GET", "/approvals/nosuch/passkey")).status_code == 404
        await here.ask("POST", path, body={"decision": "deny"})
        over = await here.ask("GET", f"{path}/passkey")
        assert (over.status_code, over.json()["error"]) == (409, "confirmation_denied")


async def test_without_passkeys_the_page_says_how_else_and_asks_none(tmp_path: Path) -> None:
    async with passkeyed(tmp_path) as here:
        raised = await here.held()
        page = await here.ask("GET", f"/approvals/{raised.id}", headers=BROWSER)
        assert 'id="passkey"' not in page.text
        assert f"interlock approve {raised.id}" in page.text
        refused = await here.ask("GET", f"/approvals/{raised.id}/passkey")
        assert refused.json()["details"]["reason"] == "not_entitled"
        assert OPERATOR not in page.text

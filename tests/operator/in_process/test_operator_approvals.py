"""The inbox at the operator door: who may look, who may decide, and with what."""

import asyncio
import base64
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.operator.approval_endpoint import (
    CLIENT,
    OPERATOR,
    OWN_ID,
    VIEWER,
    ApprovalEndpoint,
    approval_endpoint,
    signed,
)

from interlock.approvals.api import Approval as ApprovalView
from interlock.approvals.cli.inbox import preview
from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.protocol.approval import Approval, Kind, Requires, Source, Status
from interlock.approvals.protocol.digests import signed_digest

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
HOSTILE = Raw(b'{"path":"</pre><script src=//evil.example>alert(1)</script>","\\u202e":"x","n":1.10,"b":[]}')


async def asked_what(door: ApprovalEndpoint, tool: str = "files.delete") -> Approval:
    raised = await door.desk.inbox.raise_(
        door.desk.inbox.draft(Kind.DEFINITION, Source.AX, requested_by="client:alice", tool=tool, digest="t1")
    )
    assert isinstance(raised, Approval)
    return raised


# Looking


async def test_waiting_approvals_are_listed_without_arguments_and_shown_with_them(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        listed = (await door.ask("GET", "/approvals")).json()
        assert [one["id"] for one in listed["approvals"]] == [raised.id]
        assert listed["approvals"][0]["left_s"] == 300
        assert "s3cret-name" not in json.dumps(listed)
        one = (await door.ask("GET", f"/approvals/{raised.id}")).json()
        assert one["params"] == {"path": "/etc/s3cret-name", "n": 123456789012345678901234567890}
        assert (one["route"], one["digest"], one["aggregator_id"]) == (["files", "delete"], "d1", OWN_ID)
        assert one["url"].endswith(f"/approvals/{raised.id}")


async def test_an_id_may_be_shortened_while_it_names_one_approval(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        one = door.desk.call("d1")
        other = door.desk.call("d2")
        twins = [
            Approval(**{field: getattr(item, field) for field in item.__struct_fields__} | {"id": f"abcd{tail}"})
            for item, tail in ((one, "1-rest"), (other, "2-rest"))
        ]
        for twin in twins:
            await door.desk.inbox.raise_(twin)
        assert (await door.ask("GET", "/approvals/abcd1")).json()["id"] == "abcd1-rest"
        ambiguous = await door.ask("GET", "/approvals/abcd")
        assert (ambiguous.status_code, ambiguous.json()["error"]) == (409, "ambiguous_id")
        assert sorted(ambiguous.json()["details"]["ids"]) == ["abcd1-rest", "abcd2-rest"]
        assert (await door.ask("GET", "/approvals/abc")).status_code == 404


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?kind=call", 200),
        ("?status=all", 200),
        ("?kind=nonsense", 400),
        ("?status=nonsense", 400),
        ("?limit=1", 400),
    ],
)
async def test_lists_are_narrowed_by_kind_and_status_and_nothing_else(tmp_path: Path, query: str, status: int) -> None:
    async with approval_endpoint(tmp_path) as door:
        await door.desk.raised()
        assert (await door.ask("GET", f"/approvals{query}")).status_code == status


async def test_kinds_and_states_narrow_the_list(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        call, definition = await door.desk.raised(), await asked_what(door)
        await door.ask("POST", f"/approvals/{call.id}", body={"decision": "deny"})

        async def ids(query: str) -> list[str]:
            return [one["id"] for one in (await door.ask("GET", f"/approvals{query}")).json()["approvals"]]

        assert await ids("") == [definition.id]
        assert await ids("?kind=call") == []
        assert await ids("?status=denied") == [call.id]
        assert await ids("?status=all&kind=definition") == [definition.id]


# Deciding


async def test_an_approval_needs_a_proof_for_this_very_approval(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised, other = await door.desk.raised("d1"), await door.desk.raised("d2")
        missing = await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "approve"})
        assert (missing.status_code, missing.json()["error"]) == (403, "proof_required")
        for wrong in (signed(other.id, "d2"), signed(raised.id, "d2"), "nonsense"):
            refused = await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "approve", "proof": wrong})
            assert (refused.status_code, refused.json()["error"]) == (403, "proof_invalid")
        assert [one.status for one in door.desk.inbox.waiting()] == [Status.PENDING] * 2
        good = {"type": "operator_signature", "token": signed(raised.id, "d1")}
        done = await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "approve", "proof": good})
        assert done.json()["status"] == "approved"
        assert done.json()["decision"]["proof"] == {"type": "operator_signature", "anchor": "ops", "jti": "j1"}
        assert door.judge.asked[-1].aggregator_id == OWN_ID
        again = await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "approve", "proof": good})
        assert (again.status_code, again.json()["error"]) == (409, "confirmation_used")


@pytest.mark.parametrize("proof", [None, "", {}, {"type": "x"}, {"token": 5}, [], 7, {"type": 1, "token": "x"}])
async def test_a_malformed_proof_is_a_bad_request_and_changes_nothing(tmp_path: Path, proof: Any) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        refused = await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "approve", "proof": proof})
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_body")
        assert door.judge.asked == []
        assert len(door.desk.inbox.waiting()) == 1


async def test_without_anybody_to_judge_nothing_is_approved(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        door.deciding.judge = None
        raised = await door.desk.raised()
        body = {"decision": "approve", "proof": signed(raised.id, "d1")}
        refused = await door.ask("POST", f"/approvals/{raised.id}", body=body)
        assert (refused.status_code, refused.json()["error"]) == (403, "proof_invalid")


class UnrelatedDrivers(DecisionReceiver):
    """Decides on trust in drivers, and knows no driver that a held call could name."""

    def is_current(self, approval: Approval) -> bool:
        return False


async def test_a_call_that_its_contract_holds_is_a_call_and_no_question_about_its_driver(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        door.deciding.receive(Source.DRIVERS, UnrelatedDrivers())
        draft = door.desk.inbox.draft(
            Kind.CALL, Source.DRIVERS, requested_by="client:alice", tool="play.song", digest="d1", tool_digest="t1"
        )
        await door.desk.inbox.raise_(draft)
        page = (await door.ask("GET", f"/approvals/{draft.id}", headers=BROWSER)).text
        assert "wants to call <code>play.song</code>" in page
        assert "installed and started" not in page and "Trust " not in page
        assert f"<th>Approval<td>{draft.id}" in page
        body = {"decision": "approve", "proof": signed(draft.id, "d1")}
        done = await door.ask("POST", f"/approvals/{draft.id}", body=body)
        assert (done.status_code, done.json()["status"]) == (200, "approved")


async def test_to_deny_the_role_is_enough_and_the_reason_is_kept(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        done = await door.ask("POST", f"/approvals/{raised.id[:8]}", body={"decision": "deny", "reason": "no"})
        assert done.json()["status"] == "denied"
        assert done.json()["params"] is None
        assert (done.json()["decision"]["by"], done.json()["decision"]["reason"]) == ("operator:bob", "no")
        assert door.judge.asked == []


async def test_a_viewer_looks_and_does_not_decide(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        assert (await door.ask("GET", f"/approvals/{raised.id}", token=VIEWER)).status_code == 200
        for body in ({"decision": "deny"}, {"decision": "approve", "proof": signed(raised.id, "d1")}):
            refused = await door.ask("POST", f"/approvals/{raised.id}", token=VIEWER, body=body)
            assert (refused.status_code, refused.json()["error"]) == (403, "role_required")
        guess = {"passphrase": "a guess that would be counted"}
        refused = await door.ask("POST", f"/approvals/{raised.id}/proof", token=VIEWER, body=guess)
        assert (refused.status_code, refused.json()["error"]) == (403, "role_required")
        assert len(door.desk.inbox.waiting()) == 1


@pytest.mark.parametrize(
    ("token", "error"), [(None, "unauthorised"), ("nonsense", "unauthorised"), (CLIENT, "self_approval")]
)
async def test_a_caller_without_a_role_sees_and_decides_nothing(tmp_path: Path, token: str | None, error: str) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        proof = signed(raised.id, "d1")
        for method, path, body in (
            ("GET", "/approvals", None),
            ("GET", f"/approvals/{raised.id}", None),
            ("GET", "/approvals/events", None),
            ("POST", f"/approvals/{raised.id}", {"decision": "deny"}),
            ("POST", f"/approvals/{raised.id}", {"decision": "approve", "proof": proof}),
        ):
            refused = await door.ask(method, path, token=token, body=body)
            assert (refused.status_code, refused.json()["error"]) == (401, error)
        assert len(door.desk.inbox.waiting()) == 1


async def test_on_the_local_socket_a_person_may_deny_and_approves_only_with_a_proof(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path, guarded=False) as door:
        raised, other = await door.desk.raised("d1"), await door.desk.raised("d2")
        path = f"/approvals/{raised.id}"
        assert (await door.ask("POST", path, token=None, body={"decision": "approve"})).status_code == 403
        denied = await door.ask("POST", f"/approvals/{other.id}", token=None, body={"decision": "deny"})
        assert denied.json()["decision"]["by"] == "local"


async def test_approvals_that_require_a_role_are_approved_by_an_operator_and_not_by_local_access(
    tmp_path: Path,
) -> None:
    async with approval_endpoint(tmp_path, guarded=False) as door:
        raised = await door.desk.raised(requires=Requires.ROLE)
        refused = await door.ask("POST", f"/approvals/{raised.id}", token=None, body={"decision": "approve"})
        assert (refused.status_code, refused.json()["error"]) == (403, "role_required")
    async with approval_endpoint(tmp_path) as door:
        done = await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "approve"})
        assert (done.json()["status"], door.judge.asked) == ("approved", [])


@pytest.mark.parametrize("requires", [Requires.ACK, Requires.CODE])
async def test_approvals_that_require_more_than_a_role_need_a_proof(tmp_path: Path, requires: Requires) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised(requires=requires)
        refused = await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "approve"})
        assert refused.json()["error"] == "proof_required"


async def test_a_definition_is_approved_with_what_the_tool_is_and_the_proof_says_the_same(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        asked = await asked_what(door)
        path = f"/approvals/{asked.id}"
        proof = signed(asked.id, signed_digest(asked, "reversible"))
        unsaid = await door.ask("POST", path, body={"decision": "approve", "proof": proof})
        assert (unsaid.status_code, unsaid.json()["error"]) == (400, "answer_needed")
        other = {"decision": "approve", "class": "read_only", "proof": proof}
        assert (await door.ask("POST", path, body=other)).json()["error"] == "proof_invalid"
        good = {"decision": "approve", "class": "reversible", "proof": proof}
        assert (await door.ask("POST", path, body=good)).json()["decision"]["answer"] == "reversible"


async def test_a_call_takes_no_class(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        body = {"decision": "approve", "class": "read_only", "proof": signed(raised.id, "d1")}
        assert (await door.ask("POST", f"/approvals/{raised.id}", body=body)).status_code == 400


@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"decision":"maybe"}', "application/json", 400),
        (b'{"decision":"deny","surprise":1}', "application/json", 400),
        (b'{"decision":"deny","reason":"' + b"x" * 1001 + b'"}', "application/json", 400),
        (b'{"decision":"deny","reason":"' + b"x" * 70_000 + b'"}', "application/json", 413),
        (b'{"decision":"deny"}', "text/plain", 415),
        (b"decision=deny", "multipart/form-data", 415),
    ],
)
async def test_bodies_that_are_not_a_decision_are_refused(
    tmp_path: Path, content: bytes, media_type: str, status: int
) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        refused = await door.ask(
            "POST", f"/approvals/{raised.id}", content=content, headers={"content-type": media_type}
        )
        assert refused.status_code == status
        assert len(door.desk.inbox.waiting()) == 1


async def test_an_unknown_id_is_not_found_and_a_late_decision_says_why(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        assert (await door.ask("POST", "/approvals/nosuch", body={"decision": "deny"})).status_code == 404
        raised = await door.desk.raised()
        door.desk.clock.pass_(300)
        late = await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "deny"})
        assert (late.status_code, late.json()["error"]) == (409, "confirmation_expired")


# Pages


async def test_arguments_that_look_like_a_changed_definition_are_shown_whole(tmp_path: Path) -> None:
    """A tool that replaces text has arguments of these very names; what they have in common is part of the call."""
    text = [*("line" * 3 for _ in range(9)), "rm -rf /", "end"]
    arguments = Raw(json.dumps({"before": text, "after": text}).encode())
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised(params=arguments)
        page = await door.ask("GET", f"/approvals/{raised.id}", headers=BROWSER)
        assert page.text.count("rm -rf /") == 2
        whole = msgspec.json.decode((await door.ask("GET", f"/approvals/{raised.id}")).content, type=ApprovalView)
        shown = "\n".join(line.plain for line in preview(whole, 100, ascii_only=True))
        assert shown.count("rm -rf /") == 2


async def test_a_browser_gets_a_page_that_shows_the_call_and_nothing_a_caller_wrote_can_act_on_it(
    tmp_path: Path,
) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised(
            params=HOSTILE, capability={"mutable": True, "reversible": False}, agent="<b>\u202ex"
        )
        page = await door.ask("GET", f"/approvals/{raised.id}", headers=BROWSER)
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src 'self';" in policy and "trusted-types 'none'" in policy
        assert re.findall("<script[^>]*>[^<]*</script>", page.text) == [
            '<script type="module" src="/console/approval.js"></script>'
        ]
        assert page.text.count("<script") == 1 and "<style" not in page.text
        assert "\u202e" not in page.text
        shown = unescape(page.text)
        for said in ("files.delete", "client:alice", "files / delete", "cannot be undone", "300 s", '"n": 1.10'):
            assert said in shown
        assert '</pre><script src=//evil.example>alert(1)</script>"' in shown
        assert "http" not in page.text.replace("http-equiv", "")
        assert OPERATOR not in page.text


async def test_long_arguments_are_folded_with_every_key_and_approving_them_takes_a_second_word(tmp_path: Path) -> None:
    rows = [{"n": one} for one in range(9000)]
    params = json.dumps({"rows": rows, "recursive": True}).encode()
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised(params=Raw(params))
        page = unescape((await door.ask("GET", f"/approvals/{raised.id}", headers=BROWSER)).text)
        assert '"recursive": true' in page
        assert '"n": <9000 x other value' in page
        assert page.count('name="folded" value="yes" required') == page.count('value="approve"') > 0
        own = FORM | {"sec-fetch-site": "same-origin"}
        content = f"decision=approve&proof={signed(raised.id, 'd1')}".encode()
        refused = await door.ask("POST", f"/approvals/{raised.id}", content=content, headers=own)
        assert (refused.status_code, refused.json()["error"]) == (409, "folded")
        assert len(door.desk.inbox.waiting()) == 1
        taken = await door.ask("POST", f"/approvals/{raised.id}", content=content + b"&folded=yes", headers=own)
        assert taken.status_code == 303


async def test_the_page_says_whose_word_the_effect_is(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        capability = {"mutable": True, "reversible": False}
        for n, (factors, said) in enumerate(
            (
                ((), "The server says that it changes something"),
                (("classified_here",), "As configured here, it changes"),
            )
        ):
            raised = await door.desk.raised(capability=capability, factors=factors, digest=f"whose{n}")
            page = (await door.ask("GET", f"/approvals/{raised.id}", headers=BROWSER)).text
            assert said in page
            assert ("<th>The server says" in page) is (factors == ())


async def test_the_page_of_all_that_waits_holds_no_arguments(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        page = await door.ask("GET", "/approvals", headers=BROWSER)
        assert '<script type="module" src="/console/inbox.js">' in page.text
        listed = await door.ask("GET", "/approvals")
        assert raised.id in listed.text
        assert "s3cret-name" not in page.text + listed.text


async def test_a_browser_is_asked_for_a_token_and_a_clients_token_is_refused(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        place = f"/approvals/{(await door.desk.raised()).id}"

        async def status(password: str | None) -> int:
            basic = base64.b64encode(f"me:{password}".encode()).decode()
            headers = BROWSER if password is None else BROWSER | {"authorization": f"Basic {basic}"}
            return (await door.ask("GET", place, token=None, headers=headers)).status_code

        refused = await door.ask("GET", place, token=None, headers=BROWSER)
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert [await status(one) for one in (None, OPERATOR, CLIENT, "x:y")] == [401, 200, 401, 401]
        api = await door.ask("GET", "/approvals", token=None)
        assert api.headers["www-authenticate"].startswith("Bearer ")
        empty = await door.ask("GET", "/approvals", token=None, headers=BROWSER)
        assert empty.status_code == 200 and "files.delete" not in empty.text  # its script asks, and is told to log in


FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://127.0.0.1:7412"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1:7412"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({}, False),
    ],
)
async def test_a_form_decides_only_from_the_endpoints_own_page(
    tmp_path: Path, headers: dict[str, str], taken: bool
) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        sent = await door.ask(
            "POST", f"/approvals/{raised.id}", content=b"decision=deny&reason=no", headers=FORM | headers
        )
        assert sent.status_code == (303 if taken else 403)
        assert len(door.desk.inbox.waiting()) == (0 if taken else 1)


async def test_a_proof_that_was_signed_elsewhere_can_be_pasted(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path) as door:
        raised = await door.desk.raised()
        own = FORM | {"sec-fetch-site": "same-origin"}
        bare = await door.ask("POST", f"/approvals/{raised.id}", content=b"decision=approve&proof=", headers=own)
        assert bare.json()["error"] == "proof_required"
        content = f"decision=approve&proof={signed(raised.id, 'd1')}%0A".encode()
        assert (await door.ask("POST", f"/approvals/{raised.id}", content=content, headers=own)).status_code == 303


# Events


async def test_events_tell_what_waits_then_every_change_and_end_with_the_node(tmp_path: Path) -> None:
    async with approval_endpoint(tmp_path, guarded=False) as door:
        raised = await door.desk.raised()
        sent: asyncio.Queue[bytes] = asyncio.Queue()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sent.put_nowait(message["body"])

        async def receive() -> Any:
            return await asyncio.get_running_loop().create_future()

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/approvals/events",
            "raw_path": b"/approvals/events",
            "query_string": b"",
            "headers": [],
            "server": ("x", 1),
            "scheme": "http",
        }
        stream = asyncio.ensure_future(door.app(scope, receive, send))
        try:
            async with asyncio.timeout(10):
                seen = [await _event(sent)]
                await door.ask("POST", f"/approvals/{raised.id}", body={"decision": "deny"})
                seen.append(await _event(sent))
                assert [(one["id"], one["status"]) for one in seen] == [(raised.id, "pending"), (raised.id, "denied")]
                door.desk.inbox.end_listening()
                await stream
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)


async def _event(sent: "asyncio.Queue[bytes]") -> dict[str, Any]:
    while True:
        lines = (await sent.get()).decode().splitlines()
        if lines[:1] == ["event: approval"]:
            data = next(line for line in lines if line.startswith("data: "))
            assert "s3cret-name" not in data
            found: dict[str, Any] = json.loads(data.removeprefix("data: "))
            return found

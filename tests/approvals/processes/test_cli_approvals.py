"""Do people see what they decide on, and do the verbs say what happened, to people and to programs?"""

import json
import os
import pty
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import astuple
from tests.cli.program import PATIENCE_S, Inline, Interlock
from tests.operator.fake_approvals import CALL_ID, CHANGE_ID, DEFINITION_ID, OWN_ID, FakeApprovals
from tests.operator.fake_node import FakeOperations, FakePublicEndpoint, tool

from interlock.approvals.protocol.approval import Approval, Kind, Source
from interlock.approvals.protocol.digests import classification_digest, signed_digest
from interlock.ax.protocol.registration.authority import Anchor
from interlock.core.clock import Clock
from interlock.crypto.jose import read_key_untrusted
from interlock.crypto.jwt_verification import check_signature
from interlock.gate.protocol.held_call import CONFIRMATION, call_digest
from interlock.gate.protocol.proofs import ProofQuestion, Verified, judge_confirmation


@pytest.fixture
def inbox(node: FakeOperations) -> FakeApprovals:
    return node.approvals


@pytest.fixture
def key(inline: Inline) -> str:
    """The public half of the key ada, which has no passphrase."""
    return str(inline("access", "key", "ada", "--no-passphrase", "--json").json["anchor"]["key"])


def verified(proof: Any, key: str, id: str, tool: str, digest: str) -> Verified:
    judged = judge_confirmation(
        proof,
        ProofQuestion(confirmation_id=id, call_digest=digest, nonce="", tool=tool, aggregator_id=OWN_ID),
        anchors=(Anchor(name="ada", keys=read_key_untrusted(key), approves=("*",)),),
        now=Clock.wall(),
        verify=check_signature,
    )
    assert isinstance(judged, Verified), judged
    return judged


def test_the_table_has_what_waits_and_how_long_is_left(inline: Inline, inbox: FakeApprovals) -> None:
    done = inline("approvals")
    assert done.code == 0
    heads, *rows = [line.split() for line in done.lines]
    assert heads == ["ID", "KIND", "TOOL", "OR", "ITEM", "ASKED", "BY", "EXPIRES"]
    assert rows[0] == ["3f9c0a1b", "call", "files.delete", "client:agent", "(coder)", "4", "min"]
    assert [row[1:3] for row in rows[1:]] == [["definition", "notes.tidy"], ["definition", "notes.read"]]
    assert "never" in done.lines[2]


def test_one_kind_can_be_asked_for_and_an_empty_inbox_is_reported(inline: Inline, inbox: FakeApprovals) -> None:
    assert [line.split()[0] for line in inline("approvals", "--kind", "call").lines[1:]] == ["3f9c0a1b"]
    inbox.all = []
    done = inline("approval")
    assert (done.code, done.out, done.err) == (0, "", "nothing waits for a decision\n")
    assert inline("approvals", "--all", "--json").json == {"approvals": [], "total": 0}


def test_json_is_what_the_node_answered(inline: Inline, inbox: FakeApprovals) -> None:
    assert [one["id"] for one in inline("approvals", "--json").json["approvals"]] == [
        CALL_ID,
        DEFINITION_ID,
        CHANGE_ID,
    ]
    shown = inline("approvals", "show", "3f9c", "--json").json
    assert (shown["id"], shown["params"]["n"]) == (CALL_ID, 1.1)


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_the_preview_shows_every_character_of_the_arguments_and_hides_none(
    inline: Inline, inbox: FakeApprovals, width: str
) -> None:
    done = inline("approvals", "show", "3f9c", COLUMNS=width)
    assert done.code == 0
    said = " ".join(done.out.split())
    for part in (
        "files.delete",
        "client:agent, through coder",
        "files → delete",
        "cannot be undone",
        "4 min",
        "ada, change-desk",
    ):
        assert part in said
    body = done.out.partition("arguments")[2]
    assert "".join(body.split()).startswith(
        '{"path":"/srv/\\u202egpj.exe","text":"\\u202ex\\u007f","n":1.10,"deep":{"list":[1,2,[]]}}'
    )
    assert "\u202e" not in done.out
    assert "\x7f" not in done.out
    assert max(map(len, done.lines)) <= int(width)
    assert "interlock approve 3f9c0a1b" in done.out


def test_where_nobody_could_approve_the_preview_says_what_to_do(inline: Inline, inbox: FakeApprovals) -> None:
    inbox.all[0]["approvers"] = []
    assert "no one yet: interlock status says what to do" in inline("approvals", "show", "3f9c").out


def test_a_changed_definition_is_shown_as_what_changed(inline: Inline, inbox: FakeApprovals) -> None:
    done = inline("approvals", "show", "7e57c")
    body = done.out.partition("what the server says now")[2]
    assert '-   "description": "Reads."' in body
    assert '+   "description": "Reads, and sends."' in body
    assert "nothing is called" in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("approvals", "show"), 2, "usage"),
        (("approvals", "3f9c0a1b"), 2, "usage"),
        (("approvals", "show", "3f9c", "more"), 2, "usage"),
        (("approvals", "show", "3f9c", "--watch"), 2, "usage"),
        (("approvals", "show", "nosuch"), 1, "not_found"),
        (("approvals", "show", "7e57"), 1, "ambiguous_id"),
        (("approvals", "--kind", "nonsense"), 2, "usage"),
        (("deny", "nosuch"), 1, "not_found"),
        (("approve", "nosuch", "--yes"), 1, "not_found"),
        (("approve", "3f9c", "--class", "read_only", "--yes"), 2, "usage"),
        (("approve", "7e57ab", "--yes"), 2, "answer_needed"),
        (("approve", "3f9c"), 1, "not_confirmed"),
    ],
)
def test_impossible_actions_are_refused_with_a_named_error(
    inline: Inline, inbox: FakeApprovals, key: str, arguments: tuple[str, ...], code: int, error: str
) -> None:
    done = inline(*arguments, "--json")
    assert (done.code, done.json["error"]) == (code, error)
    assert inbox.decided == []


def test_without_a_node_the_verbs_say_so(inline: Inline) -> None:
    for arguments in (("approvals",), ("approve", "3f9c"), ("deny", "3f9c")):
        assert inline(*arguments).code == 4


def test_approving_signs_what_was_shown(inline: Inline, inbox: FakeApprovals, key: str) -> None:
    digest = inbox.all[0]["digest"]
    done = inline("approve", "3f9c", "--yes", "--reason", "fine")
    assert done.code == 0
    assert "files → delete" in done.out
    assert done.lines[-1] == "approved: client:agent can now repeat this call once (approved, 5 min left)"
    (decided,) = inbox.decided
    assert (decided["id"], decided["reason"], decided["by"]) == (CALL_ID, "fine", "local")
    assert verified(decided["proof"], key, CALL_ID, "files.delete", digest).issuer == "ada"


def test_a_call_that_is_not_what_its_digest_says_is_not_signed(inline: Inline, inbox: FakeApprovals, key: str) -> None:
    inbox.all[0]["digest"] = "0" * 64
    done = inline("approve", "3f9c", "--yes", "--json")
    assert (done.code, done.json["error"]) == (1, "not_what_is_shown")
    assert inbox.decided == []


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        ("denied", "confirmation_denied", "an operator said no"),
        ("done", "confirmation_used", "the call it was for has been made"),
        ("expired", "confirmation_expired", "it was not decided, or not used, in time"),
    ],
)
def test_decided_approvals_are_reported_and_not_signed(
    inline: Inline, inbox: FakeApprovals, key: str, status: str, error: str, says: str
) -> None:
    inbox.all[0] |= {"status": status, "params": None}  # the arguments are gone
    done = inline("approve", "3f9c", "--yes", "--json")
    assert (done.code, done.json["error"]) == (1, error)
    assert says in done.json["message"]
    assert inbox.decided == []


@pytest.mark.parametrize("id", ["7e57ab", "7e57c0"])
def test_a_definition_that_is_not_what_its_digest_says_is_not_signed(
    inline: Inline, inbox: FakeApprovals, key: str, id: str
) -> None:
    for one in inbox.all[1:]:
        one["digest"] = "0" * 64
    words = ("--class", "read_only") if id == "7e57ab" else ()
    done = inline("approve", id, "--yes", "--json", *words)
    assert (done.code, done.json["error"]) == (1, "not_what_is_shown")
    assert inbox.decided == []


def test_a_class_is_part_of_what_is_signed(inline: Inline, inbox: FakeApprovals, key: str) -> None:
    assert inline("approve", "7e57ab", "--class", "reversible", "--yes").code == 0
    (decided,) = inbox.decided
    assert decided["answer"] == "reversible"
    asked = Approval(
        id=DEFINITION_ID,
        kind=Kind.DEFINITION,
        source=Source.AX,
        requested_by="x",
        tool="notes.tidy",
        digest=inbox.all[1]["digest"],
        created_at=0.0,
    )
    verified(decided["proof"], key, DEFINITION_ID, "notes.tidy", signed_digest(asked, "reversible"))


def test_a_change_is_accepted_without_a_class(inline: Inline, inbox: FakeApprovals, key: str) -> None:
    done = inline("approve", "7e57c0", "--yes")
    assert (done.code, done.lines[-1]) == (0, "done: notes.read is remembered")
    assert inbox.decided[0]["answer"] is None


@pytest.mark.parametrize(
    ("factor", "sentence"),
    [
        ("definition_changed", "clients see it as it is now defined, and it is treated as you say"),
        ("definition_added", "clients see it and may use it from now on, and it is treated as you say"),
    ],
)
def test_who_gives_a_changed_tool_a_class_reads_that_clients_see_it_then(
    inline: Inline, inbox: FakeApprovals, key: str, factor: str, sentence: str
) -> None:
    inbox.all[1]["factors"] = [factor, "unclassified"]
    assert sentence in " ".join(inline("approvals", "show", "7e57ab").out.split())
    done = inline("approve", "7e57ab", "--class", "reversible", "--yes")
    assert (done.code, done.lines[-1]) == (0, "done: clients see notes.tidy as it was shown here")


def test_a_proof_that_was_signed_elsewhere_is_passed_on(interlock: Interlock, inbox: FakeApprovals) -> None:
    done = interlock("approve", "3f9c", "--yes", "--proof", "-", "--json", stdin="a.b.c\n")
    assert (done.code, done.json["status"]) == (0, "approved")
    assert inbox.decided[0]["proof"].token == "a.b.c"


def test_denying_needs_no_key_and_tells_the_reason(inline: Inline, inbox: FakeApprovals) -> None:
    done = inline("deny", "3f9c", "--reason", "not on a Friday")
    assert (done.code, done.out) == (0, "denied: files.delete, asked by client:agent\n")
    assert inbox.decided == [{"id": CALL_ID, "status": "denied", "by": "local", "reason": "not on a Friday"}]


def on_terminal(interlock: Interlock, typed: str, *arguments: str) -> int:
    """The exit code of a command that a person talks to."""
    outer, inner = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "interlock", *arguments],
            cwd=interlock.folder,
            env=interlock.env | {"TERM": "dumb"},
            stdin=inner,
            stdout=subprocess.DEVNULL,
            stderr=inner,
        )
        os.write(outer, typed.encode())
        code = process.wait(PATIENCE_S)
        print(os.read(outer, 65536).decode())  # what the person saw, for a test that fails
        return code
    finally:
        os.close(inner)
        os.close(outer)


@pytest.mark.parametrize(("typed", "code", "decisions"), [("n\n", 3, 0), ("y\n", 0, 1)])
def test_a_person_who_does_not_agree_leaves_the_approval_waiting(
    interlock: Interlock, inbox: FakeApprovals, key: str, typed: str, code: int, decisions: int
) -> None:
    assert on_terminal(interlock, typed, "approve", "3f9c") == code
    assert len(inbox.decided) == decisions


@pytest.fixture
def long_call(inbox: FakeApprovals) -> FakeApprovals:
    """Behind more than anybody reads stands what the call is about."""
    params = json.dumps({"rows": [{"n": one} for one in range(2000)], "note": "x" * 900, "recursive": True}).encode()
    one = inbox.all[0]
    digest = call_digest(
        params,
        aggregator_id=OWN_ID,
        tool=one["tool"],
        route=one["route"],
        caller=one["requested_by"],
        tool_digest=one["tool_digest"],
    )
    inbox.all[0] = {**one, "params": Raw(params), "digest": digest}
    return inbox


def test_long_arguments_are_folded_and_no_key_is_hidden(inline: Inline, long_call: FakeApprovals) -> None:
    done = inline("approvals", "show", "3f9c", COLUMNS="200")
    assert "long values are folded" in done.out
    for part in ('"recursive": true', '"n": <2000 x other value', '"note": <text, 902 characters>', '"rows": <list'):
        assert part in done.out
    assert len(done.lines) < 40


@pytest.mark.parametrize(("typed", "code", "decisions"), [("y\nn\n", 3, 0), ("y\ny\n", 0, 1), ("n\n", 3, 0)])
def test_approving_a_folded_call_needs_a_second_confirmation(
    interlock: Interlock, long_call: FakeApprovals, key: str, typed: str, code: int, decisions: int
) -> None:
    assert on_terminal(interlock, typed, "approve", "3f9c") == code
    assert len(long_call.decided) == decisions


def test_claims_of_the_server_are_marked_as_its_own_and_those_of_the_operator_are_not(
    inline: Inline, inbox: FakeApprovals
) -> None:
    said = " ".join(inline("approvals", "show", "3f9c", COLUMNS="200").out.split())
    assert "the server says that it changes something and cannot be undone" in said
    assert "the server says: mutable true" in said
    inbox.all[0]["factors"] = ["classified_here"]
    said = " ".join(inline("approvals", "show", "3f9c", COLUMNS="200").out.split())
    assert "as configured here, it changes something and cannot be undone" in said
    assert "the server says" not in said


def test_watching_reports_each_item_when_it_appears_or_changes(interlock: Interlock, inbox: FakeApprovals) -> None:
    with interlock.start("approvals", "--watch", "--all", "--json") as running:
        assert [json.loads(running.next_line())["id"] for _ in range(3)] == [CALL_ID, DEFINITION_ID, CHANGE_ID]
        inbox.all[0]["status"] = "denied"
        told = json.loads(running.next_line())
        assert (told["id"], told["status"]) == (CALL_ID, "denied")
        assert running.interrupt().code == 0


def test_a_call_that_waits_for_a_decision_ends_with_three(
    inline: Inline, node: FakeOperations, public_endpoint: FakePublicEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {
        "content": [{"type": "text", "text": "Nothing was executed."}],
        "isError": True,
        "structuredContent": {"status": "confirmation_required", "confirmation_id": CALL_ID},
        "_meta": {CONFIRMATION: {"status": "confirmation_required", "confirmation_id": CALL_ID}},
    }
    monkeypatch.setattr("interlock.cli.client.mcp.McpClient.call", lambda *_, **__: json.dumps(held).encode())
    done = inline("tools", "call", "demo.say")
    assert (done.code, done.out) == (3, "Nothing was executed.\n")
    assert f"interlock approvals show {CALL_ID[:8]}" in done.err
    assert inline("tools", "call", "demo.say", "--json").code == 3
    held["_meta"] = {CONFIRMATION: {"status": "confirmation_denied", "confirmation_id": CALL_ID}}
    denied = inline("tools", "call", "demo.say")
    assert (denied.code, denied.out, denied.err) == (1, "Nothing was executed.\n", "")
    held["_meta"] = {}
    assert inline("tools", "call", "demo.say").code == 1


# Classifying


@pytest.fixture
def unclassified(node: FakeOperations, inbox: FakeApprovals) -> FakeApprovals:
    """notes.tidy and notes.read say nothing of what they do; asked about, they have approvals."""
    node.tool_list += [
        tool("notes.tidy", unclassified=True, capability={}, description="Tidies up. And more."),
        tool("notes.read", unclassified=True, capability={}, description=None),
    ]
    node.is_classified = False
    return inbox


def test_where_nobody_is_there_to_ask_strict_rules_are_printed_to_paste(
    inline: Inline, unclassified: FakeApprovals
) -> None:
    done = inline("tools", "classify")
    assert done.code == 0
    rules = tomllib.loads(done.out)["tool"]
    assert rules == [
        {"match": "notes.tidy", "mutable": True, "reversible": False},
        {"match": "notes.read", "mutable": True, "reversible": False},
    ]
    assert "# Tidies up." in done.lines
    assert [one["match"] for one in tomllib.loads(inline("tools", "classify", "*.tidy").out)["tool"]] == ["notes.tidy"]
    listed = inline("tools", "classify", "--json").json["unclassified"]
    assert [one["name"] for one in listed] == ["notes.tidy", "notes.read"]
    assert unclassified.decided == []


def test_nothing_to_classify_is_reported(inline: Inline, node: FakeOperations, inbox: FakeApprovals) -> None:
    assert inline("tools", "classify").err == "every tool says what it does\n"
    assert inline("tools", "classify", "x.*").err == "no tool to classify matches x.*\n"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("yes\n", ("irreversible", "read_only")),
        ("nonsense\nnotes.gone=read_only\ntidy=reversible\nyes\n", ("reversible", "read_only")),
        ("notes.tidy=read-only, read=irreversible\nyes\n", ("read_only", "irreversible")),
        ("notes.add=read_only\nn\nyes\n", ("irreversible", "read_only")),  # its name says otherwise: asked, and no
        ("notes.add=read_only\ny\nyes\n", ("irreversible", "read_only")),
        ("no\n", None),
    ],
)
def test_all_tools_are_classified_in_one_table_with_one_signature(
    interlock: Interlock, node: FakeOperations, unclassified: FakeApprovals, key: str, typed: str, expected: Any
) -> None:
    node.tool_list.append(tool("notes.add", unclassified=True, capability={}))
    code = on_terminal(interlock, typed, "tools", "classify")
    if expected is None:
        assert (code, node.classification.signed) == (3, [])
        return
    ((wanted, proof),) = node.classification.signed
    said = {one.tool: one.tool_class for one in wanted.entries}
    is_insisted = typed == "notes.add=read_only\ny\nyes\n"
    assert said == {
        **{"notes.tidy": expected[0], "notes.read": expected[1]},
        "notes.add": "read_only" if is_insisted else "irreversible",
    }
    verified(
        proof, key, wanted.id, "notes.tidy", classification_digest(wanted.id, map(astuple, reversed(wanted.entries)))
    )


def test_classes_can_be_signed_without_a_terminal(
    inline: Inline, node: FakeOperations, unclassified: FakeApprovals, key: str
) -> None:
    done = inline("tools", "classify", "notes.*", "--class", "tidy=reversible", "--yes", "--key", "ada", "--json")
    assert [one["class"] for one in done.json["classified"]] == ["reversible", "read_only"]
    assert inline("tools", "classify", "--class", "other=reversible", "--yes").code == 2
    assert inline("tools", "classify", "--class", "tidy=harmless", "--yes").code == 2
    assert len(node.classification.signed) == 1


def test_a_withheld_tool_is_asked_about_by_its_name(
    interlock: Interlock, node: FakeOperations, unclassified: FakeApprovals, key: str
) -> None:
    node.tool_list = [one for one in node.tool_list if one["name"] != "notes.tidy"]
    assert on_terminal(interlock, "nonsense\nread-only\n", "tools", "classify", "notes.tidy") == 0
    (decided,) = unclassified.decided
    assert (decided["id"], decided["answer"]) == (DEFINITION_ID, "read_only")
    asked = Approval(
        id=DEFINITION_ID,
        kind=Kind.DEFINITION,
        source=Source.AX,
        requested_by="x",
        tool="notes.tidy",
        digest=unclassified.all[1]["digest"],
        created_at=0.0,
    )
    verified(decided["proof"], key, DEFINITION_ID, "notes.tidy", signed_digest(asked, "read_only"))

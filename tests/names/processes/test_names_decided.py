"""Who decides on names, who is told, and every action of a controller over HTTP, each with its refusal."""

import csv
import http.client
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.gate.held_calls import ADA, GATED, anchor
from tests.names.registering import asked, decide, fetch, signed, stated
from tests.servers.minting import SigningKey, key
from tests.support.node_process import RunningNode, running_node

EVE, ZOO, LION = (key("EdDSA", name) for name in ("eve", "zoo", "lion"))
PUBLISHED = "/assignments/mcp-tool-surface-names/mcp-tool-surface-names"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[RunningNode]:
    experts = anchor("ada", ADA, "names.*") + anchor("eve", EVE, "plant.*")  # eve decides on other things
    with running_node(folder, {}, '[auth]\nanonymous = "never"\n' + GATED + experts) as running:
        yield running


def person(node: RunningNode, *more: str) -> str:
    name = f"person{len(more)}"
    made = node.cli("access", "token", "--for", "operator", "--name", name, *more, "--json")
    return str(json.loads(made.stdout)["token"])


def as_person(node: RunningNode, path: str, body: Any, secret: str) -> tuple[int, Any]:
    """Of an operator over the network."""
    place = urlsplit(node.operator_url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
    try:
        headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def proposed(folder: Path, name: str, controller: str = "Kite", **members: Any) -> dict[str, Any]:
    read = json.loads(Path(asked(folder, name)).read_text())
    return {**read, "surface_name": name, "change_controller": controller, "vendor_prefix": "none", **members}


def filed(node: RunningNode, folder: Path, name: str, **members: Any) -> tuple[Any, str]:
    """By a client over HTTP: what it is answered, and the approval that waits."""
    body = json.dumps(proposed(folder, name, cross_vendor=True, **members))
    status, _, told = fetch(node, "/registry/requests", body)
    assert status == 202, told
    return json.loads(told), waiting(node, name)


def waiting(node: RunningNode, subject: str) -> str:
    tool = f"names.{subject}"
    (found,) = [one["id"] for one in node.admin("/approvals?kind=request")["approvals"] if one["tool"] == tool]
    return str(found)


def request_of(node: RunningNode, made: Any) -> Any:
    """As the one who filed it reads it."""
    return json.loads(fetch(node, f"/registry/requests/{made['request']['id']}")[2])


@pytest.mark.req("REG-5-2", "REG-5-9", "REG-5-10")
@pytest.mark.parametrize("way", ["api", "cli"])
@pytest.mark.parametrize(("answer", "state"), [("deny", "rejected"), ("return", "revision_requested")])
def test_a_request_is_rejected_or_returned_with_a_reason_that_its_filer_reads(
    node: RunningNode, folder: Path, way: str, answer: str, state: str
) -> None:
    name = f"fly_{way}_{answer}"
    made, approval = filed(node, folder, name)
    assert made["state"] == "in_review"
    outcomes = [(one["criterion"], one["outcome"]) for one in made["criteria"]]
    assert outcomes == [(1, "pass"), (2, "needs_expert"), (3, "pass"), (4, "pass"), (5, "pass")]
    reasons = {one["code"]: one["reason"] for one in made["request"]["findings"]}
    assert "was not reached" in reasons["skipped_offline"]
    body = {"decision": answer}
    words = ("deny", approval, *(("--return",) if answer == "return" else ()))
    if way == "api":
        operator, viewer = person(node), person(node, "--scope", "read")
        status, told = as_person(node, f"/approvals/{approval}", body | {"reason": "no"}, viewer)
        assert (status, told["error"]) == (403, "role_required")
        assert as_person(node, f"/approvals/{approval}", body, operator)[1]["error"] == "reason_required"
        status, told = as_person(node, f"/approvals/{approval}", body | {"reason": "section 2 is empty"}, operator)
        assert (status, told["status"]) == (200, "denied"), told
        by = "operator:person0"
    else:
        refused = node.cli(*words)
        assert refused.returncode == 1 and "give a reason" in refused.stderr
        assert node.cli(*words, "--reason", "section 2 is empty").returncode == 0
        by = node.admin(f"/approvals/{approval}")["decision"]["by"]
    read = request_of(node, made)
    assert (read["state"], read["reason"], read["decided_by"]) == (state, "section 2 is empty", by)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", read["decided_on"])
    assert f"{state}  section 2 is empty" in node.cli("names", "show", name).stdout
    assert node.admin(f"/approvals/{approval}")["decision"]["reason"] == "section 2 is empty"
    again = json.dumps(proposed(folder, name, cross_vendor=True, previous=made["request"]["id"]))
    resubmitted = json.loads(fetch(node, "/registry/requests", again)[2])
    assert request_of(node, resubmitted)["previous"] == made["request"]["id"]
    shown = json.loads(node.cli("names", "show", name, "--json").stdout)["requests"]
    assert [one.get("previous") for one in shown] == [None, made["request"]["id"]]


@pytest.mark.req("REG-5-9", "REG-5-11", "REG-5-1")
def test_only_an_expert_accepts_and_the_entry_is_published_at_once(node: RunningNode, folder: Path) -> None:
    made, approval = filed(node, folder, "fly_high")
    attached = node.cli("names", "attach", made["request"]["id"], str(folder / "fly_high.json"))
    assert attached.returncode == 0, attached.stderr
    operator, viewer = person(node), person(node, "--scope", "read")
    body = {"decision": "approve", "reason": "read it"}
    by_eve = body | {"proof": signed(node, approval, by=EVE)}
    for secret, sent, status, error in (
        (viewer, body | {"proof": signed(node, approval)}, 403, "role_required"),
        (operator, body, 403, "proof_required"),
        (operator, by_eve, 403, "proof_invalid"),  # who approves calls is no expert of names
    ):
        told = as_person(node, f"/approvals/{approval}", sent, secret)
        assert (told[0], told[1]["error"]) == (status, error), told
    assert fetch(node, "/registry/names/fly_high")[0] == 404
    status, done = as_person(node, f"/approvals/{approval}", body | {"proof": signed(node, approval)}, operator)
    assert (status, done["status"]) == (200, "done"), done
    entry = json.loads(fetch(node, "/registry/names/fly_high")[2])
    assert entry["status"] == "Active"
    assert entry["first_registered"] == request_of(node, made)["decided_on"] == done["decision"]["at"][:10]
    for form in ("xml", "csv", "txt", "json"):  # the next question after the decision has it
        assert b"fly_high" in fetch(node, f"{PUBLISHED}.{form}")[2]
    assert (request_of(node, made)["decided_by"], request_of(node, made)["reason"]) == ("expert:ada", "read it")


@pytest.mark.req("REG-4.1-2", "REG-5-3", "REG-5-2")
@pytest.mark.parametrize("name", ["Fly_High", "fly-high", "fly.high", "_fly", "fly__high", "f" * 65])
def test_no_other_spelling_enters_by_any_way(node: RunningNode, folder: Path, name: str) -> None:
    before = fetch(node, "/registry/names")[2]
    status, _, told = fetch(node, "/registry/requests", json.dumps(proposed(folder, name, cross_vendor=True)))
    code = "name_too_long" if len(name) > 64 else "name_syntax"
    answer = json.loads(told)
    assert (status, answer["error"]) == (409, code)
    outcomes = [one["outcome"] for one in answer["details"]["criteria"]]
    assert outcomes == ["fail", *["not_checked"] * 4]
    asked_for = node.cli("names", "request", name, "--from", asked(folder, "cli"))
    assert asked_for.returncode == 1
    published = list(csv.reader(io.StringIO(fetch(node, f"{PUBLISHED}.csv")[2].decode(), newline="")))
    published[1][0] = name
    text = io.StringIO(newline="")
    csv.writer(text).writerows(published)
    (folder / "other.csv").write_text(text.getvalue(), newline="")
    imported = node.cli("names", "import", str(folder / "other.csv"), "--source", "elsewhere", "--trusted")
    assert imported.returncode == 1 and "no surface name" in imported.stderr
    assert fetch(node, "/registry/names")[2] == before


def registered(node: RunningNode, folder: Path, name: str, controller: str, by: SigningKey, **members: Any) -> None:
    """Of a controller that signs."""
    if fetch(node, f"/registry/names/{name}")[0] == 200:
        return
    asking = proposed(folder, name, controller, cross_vendor=True, controller_key=json.dumps(by.jwk()), **members)
    told = post(node, "/registry/requests", by, controller, "request", name, asking)
    assert told[0] == 202, told
    assert decide(node, waiting(node, name))["status"] == "done"


def post(
    node: RunningNode, path: str, by: SigningKey, controller: str, action: str, subject: str, body: Any = None
) -> tuple[int, Any]:
    statement = stated(node, by, action, subject, body, iss=controller)
    status, _, answer = fetch(node, path, statement, "application/jose")
    return status, json.loads(answer)


@pytest.fixture
def zoo(node: RunningNode, folder: Path) -> Any:
    """Zoo has zoo_feed, which is public, and Lion has lion_roar; what one of them asks for a name or prefix."""
    open_ = {"authentication_scope": "public", "no_authentication_planned": True}
    registered(node, folder, "zoo_feed", "Zoo", ZOO, vendor_prefix="zoo_", **open_)
    registered(node, folder, "lion_roar", "Lion", LION)

    def ask(by: str, action: str, subject: str, body: Any = None) -> tuple[int, str]:
        kind = "prefixes" if subject.endswith("_") else "names"
        signer = {"Zoo": ZOO, "Lion": LION}[by]
        status, told = post(node, f"/registry/{kind}/{subject}/{action}", signer, by, action, subject, body)
        return status, told.get("state") or told["error"]

    return ask


@pytest.mark.req("REG-N-3", "REG-4.1-8")
def test_each_action_of_a_controller_over_http_and_its_refusal(node: RunningNode, zoo: Any) -> None:
    ended = {"who": "Lion", "evidence": "switched off"}
    claim = {"kind": "publication_date", "url": "https://lion.example/", "date": "2020-02-02"}
    for by, action, subject, body, wanted in (
        ("Lion", "deprecate", "zoo_feed", None, (403, "not_change_controller")),
        ("Zoo", "reinstate", "zoo_feed", None, (409, "illegal_transition")),
        ("Zoo", "deprecate", "zoo_feed", {"successor": "No-Name"}, (409, "name_syntax")),
        ("Zoo", "deprecate", "zoo_feed", {"successor": "zoo_eat"}, (200, "Deprecated")),
        ("Zoo", "withdraw", "zoo_feed", None, (409, "deprecation_too_short")),
        ("Lion", "reinstate", "zoo_feed", None, (403, "not_change_controller")),
        ("Zoo", "reinstate", "zoo_feed", None, (200, "Active")),
        ("Lion", "declare", "zoo_feed", {"who": " "}, (409, "bad_implementation")),
        ("Lion", "declare", "zoo_feed", {"who": "Tiger"}, (403, "not_change_controller")),
        ("Zoo", "declare", "zoo_feed", {"who": "Tiger"}, (200, "recorded")),
        ("Lion", "declare", "zoo_feed", {"who": "Lion"}, (200, "recorded")),
        ("Lion", "declare", "zoo_feed", {"who": "Lion"}, (409, "exists")),
        ("Lion", "end", "zoo_feed", ended, (403, "not_change_controller")),
        ("Zoo", "end", "zoo_feed", ended | {"evidence": " "}, (409, "evidence_required")),
        ("Zoo", "end", "zoo_feed", ended, (200, "recorded")),
        ("Zoo", "end", "zoo_feed", ended, (404, "not_found")),
        ("Lion", "confirm-public", "zoo_feed", None, (403, "not_change_controller")),
        ("Lion", "confirm-public", "lion_roar", None, (409, "not_public")),
        ("Zoo", "confirm-public", "zoo_feed", None, (200, "Active")),
        ("Lion", "consent", "zoo_", {"controller": "Lion", "until": "2999-01-01"}, (403, "not_change_controller")),
        ("Zoo", "consent", "zoo_", {"controller": "Lion", "until": "2020-01-01"}, (409, "bad_date")),
        ("Zoo", "consent", "zoo_", {"controller": "Lion", "until": "2999-01-01"}, (200, "recorded")),
        ("Lion", "dispute", "zoo_", {"controller": "Lion", "evidence": []}, (409, "evidence_required")),
        ("Zoo", "dispute", "zoo_", {"controller": "Zoo", "evidence": [claim]}, (409, "not_disputed")),
        ("Lion", "dispute", "zoo_", {"controller": "Lion", "evidence": [claim]}, (202, "in_review")),
        ("Lion", "transfer", "zoo_feed", {"to": "Lion"}, (403, "not_change_controller")),
        ("Zoo", "transfer", "zoo_feed", {"to": "Nobody"}, (409, "unknown_controller")),
        ("Zoo", "transfer", "zoo_feed", {"to": "Lion"}, (200, "Active")),
        ("Lion", "transfer", "zoo_feed", {"to": "Lion"}, (200, "Active")),
        ("Zoo", "deprecate", "zoo_feed", None, (403, "not_change_controller")),
        ("Lion", "amend", "zoo_feed", {"semantics": "section 3"}, (200, "accepted")),
        ("Lion", "transfer", "zoo_feed", {"to": "Zoo"}, (200, "Active")),
        ("Zoo", "transfer", "zoo_feed", {"to": "Zoo"}, (200, "Active")),
        ("Lion", "register", "lion_", {"controller": "Lion"}, (404, "not_found")),  # a prefix comes with its first name
    ):
        assert zoo(by, action, subject, body) == wanted, (by, action, subject, body)
    forged = post(node, "/registry/names/lion_roar/declare", ZOO, "Lion", "declare", "lion_roar", {"who": "Lion"})
    assert (forged[0], forged[1]["error"]) == (403, "not_change_controller")
    entry = json.loads(fetch(node, "/registry/names/zoo_feed")[2])
    assert (entry["change_controller"], entry["specification"]["semantics"]) == ("Zoo", "section 3")


@pytest.mark.req("REG-N-3", "REG-7.2-3")
def test_a_dispute_is_cancelled_over_http_by_the_client_who_filed_it(node: RunningNode, folder: Path, zoo: Any) -> None:
    claim = {"kind": "publication_date", "url": "https://lion.example/", "date": "2020-02-02"}
    body = {"controller": "Lion", "evidence": [claim]}
    _, made = post(node, "/registry/prefixes/zoo_/dispute", LION, "Lion", "dispute", "zoo_", body)
    assert "criteria" not in made
    id = made["request"]["id"]
    path = f"/registry/requests/{id}/cancel"
    assert post(node, path, ZOO, "Zoo", "cancel", id)[1]["error"] == "not_change_controller"
    assert post(node, path, LION, "Lion", "cancel", id)[1]["state"] == "cancelled"
    assert post(node, path, LION, "Lion", "cancel", id)[1]["error"] == "illegal_transition"

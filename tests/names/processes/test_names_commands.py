"""The registry from the command line: asked for, decided with a proof, changed, published, taken over elsewhere."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from tests.gate.held_calls import ADA, GATED, Client, anchor, sign_configuration
from tests.names.registering import (
    ROOT,
    SCHEMA,
    asked,
    bearer,
    decide,
    fetch,
    rewritten_registry,
    signed,
    stated,
    written,
)
from tests.servers.minting import key
from tests.support.node_process import RunningNode, running_node, wait_for

from interlock.approvals.api import Approval
from interlock.operator.approvals import approval_page

WIDER = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[RunningNode]:
    with running_node(folder, {}, '[auth]\nanonymous = "never"\n' + GATED + anchor("ada", ADA, "*")) as running:
        yield running


@pytest.fixture
def acme(node: RunningNode, folder: Path) -> str:
    """A name that Acme has; the first test asks for it step by step."""
    if node.cli("names", "show", "acme_search").returncode:
        made = node.cli("names", "request", "acme_search", "--from", asked(folder, "acme_search"), "--json")
        assert decide(node, json.loads(made.stdout)["approval"])["status"] == "done"
    return "acme_search"


def revisions_of(node: RunningNode, name: str) -> Any:
    return json.loads(node.cli("names", "show", name, "--json").stdout)["entry"]["specification"]["revision"]


@pytest.mark.req("REG-6-1", "REG-5-4", "REG-5-1", "REG-5-2", "REG-5-9", "REG-5-11", "REG-5-15", "REG-9-5")
def test_a_name_is_asked_for_decided_and_shown(node: RunningNode, folder: Path) -> None:
    fresh = [line.split()[0] for line in node.cli("names", "list").stdout.splitlines()[1:]]
    gates, handbook, ingest, procedures = fresh
    assert (gates, handbook, ingest, procedures) == (
        "org_alter_enforcement_gates",
        "org_alter_handbook",
        "org_alter_ingest",
        "org_alter_sop_registry",
    )
    checked = node.cli("names", "check", "Acme.search")
    assert checked.returncode == 1 and "register the last segment alone: search" in checked.stdout
    waits = node.cli("names", "request", "acme_search", "--from", asked(folder, "acme_search"), "--json")
    assert waits.returncode == 3, waits.stderr
    made = json.loads(waits.stdout)
    assert made["state"] == "in_review"
    unsigned = node.admin(f"/approvals/{made['approval']}", "POST", {"decision": "approve", "reason": "yes"})
    assert unsigned["error"] == "proof_required"
    by_another = {
        "decision": "approve",
        "reason": "yes",
        "proof": signed(node, made["approval"], by=key("EdDSA", "eve")),
    }
    assert node.admin(f"/approvals/{made['approval']}", "POST", by_another)["error"] == "proof_invalid"
    client = fetch(node, f"/approvals/{made['approval']}", json.dumps({"decision": "deny", "reason": "no"}))
    assert client[0] == 404  # clients are shown no inbox
    assert node.admin(f"/approvals/{made['approval']}")["status"] == "pending"
    outcomes = json.loads(node.cli("names", "check", "acme_search", "--from", asked(folder, "c"), "--json").stdout)
    assert [one["outcome"] for one in outcomes["criteria"]] == ["pass"] * 5
    told = node.cli("approvals", "show", made["approval"]).stdout
    assert "the registry of names takes this up as it is shown; nothing is called" in " ".join(told.split())
    assert "what is asked of the registry" in told
    how = ("approve", made["approval"], "--yes", "--proof")
    silent = node.cli(*how, signed(node, made["approval"]))
    assert silent.returncode == 1 and "could not be fetched" in silent.stderr  # the reference was not fetched here
    assert f"interlock approve {made['approval'][:8]} --reason WHY" in silent.stderr
    unread = node.cli(*how, signed(node, made["approval"]), "--reason", "looked at")
    assert unread.returncode == 1 and "interlock names attach acme_search FILE" in unread.stderr
    copy = folder / "specification.txt"
    copy.write_text("1. What acme_search means")
    attached = node.cli("names", "attach", "acme_search", str(copy), "--json")
    digest = f"sha256:{hashlib.sha256(copy.read_bytes()).hexdigest()}"
    assert json.loads(attached.stdout)["digest"] == digest, attached.stderr
    assert Path(json.loads(attached.stdout)["path"]).read_bytes() == copy.read_bytes()
    for words, said in (
        (("acme_other", str(copy)), "no request acme_other waits"),
        (("acme_search", str(folder / "nothing")), "No such file"),
        (("acme_search", os.devnull), "a document has 1 to"),
        (("acme_search", "/dev/zero"), "has more than 5242880 bytes"),
    ):
        refused = node.cli("names", "attach", *words)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr
    done = node.cli(*how, signed(node, made["approval"]), "--reason", "looked at")
    assert done.stdout.endswith("accepted: interlock names show acme_search has it as it is now\n"), done.stderr
    shown = node.cli("names", "show", "acme_search", "--log").stdout
    assert "Active" in shown and "accept" in shown and "by expert:ada" in shown and "attach" in shown
    entry = json.loads(node.cli("names", "show", "acme_search", "--json").stdout)["entry"]
    assert entry["specification"]["document_digest"] == digest
    again = node.cli("name", "request", "acme_search", "--from", asked(folder, "acme_search"))
    assert again.returncode == 1 and "is registered to Acme" in again.stderr
    audited = node.cli("audit", "tail", "--json").stdout
    assert "names/accept" in audited
    verified = node.cli("audit", "verify", "--json")
    assert verified.returncode == 0 and json.loads(verified.stdout)["names"]["intact"] is True
    copy_of = RunningNode(node.process, node.status_at_start, folder / "tampered", node.config)
    shutil.copytree(node.data, copy_of.data, ignore=shutil.ignore_patterns("run"))
    with contextlib.closing(sqlite3.connect(copy_of.data / "names.db")) as db, db:
        db.execute("UPDATE record SET data = replace(data, 'Acme', 'Evil') WHERE name = 'acme_search'")
    tampered = copy_of.cli("audit", "verify")
    assert tampered.returncode == 1 and "the log of the registry of names is BROKEN at record" in tampered.stdout
    broken = json.loads(copy_of.cli("audit", "verify", "--json").stdout)
    assert (broken["intact"], broken["names"]["intact"], broken["names"]["records"]) == (True, False, 4)
    rewritten = rewritten_registry(copy_of.data / "names.db")
    told = json.loads(copy_of.cli("audit", "verify", "--json").stdout)
    assert (told["intact"], told["names"]["broken"]["flaw"]) == (True, "rewritten"), told
    assert told["names"]["broken"]["sequence"] == rewritten  # whole in itself, and not what the audit log has
    with contextlib.closing(sqlite3.connect(copy_of.data / "names.db")) as db, db:
        db.execute("DELETE FROM record WHERE sequence >= ?", (rewritten,))
    cut = copy_of.cli("audit", "verify")
    assert cut.returncode == 1 and "BROKEN at record 5 (tail_removed)" in cut.stdout, cut.stdout
    (copy_of.data / "names.db").unlink()
    gone = json.loads(copy_of.cli("audit", "verify", "--json").stdout)
    assert (gone["intact"], gone["names"]["broken"]["flaw"]) == (True, "tail_removed")
    (copy_of.data / "names.db").write_bytes(b"no database" * 1000)
    unread = json.loads(copy_of.cli("audit", "verify", "--json").stdout)
    assert (unread["intact"], unread["names"]["intact"]) == (True, False)
    assert "names.db" in unread["names"]["broken"]["reason"]


@pytest.mark.req("REG-5-10", "REG-N-2", "REG-N-3")
def test_a_request_is_returned_with_reasons_or_cancelled(node: RunningNode, folder: Path) -> None:
    vague = node.cli(
        "names", "request", "acme_vague", "--from", asked(folder, "acme_vague"), "--scope", "authenticated"
    )
    assert vague.returncode == 1 and "authenticated does not say which credential" in vague.stderr
    made = json.loads(node.cli("names", "request", "acme_list", "--from", asked(folder, "l"), "--json").stdout)
    shown_there = json.dumps(node.admin(f"/approvals/{made['approval']}"))
    page = approval_page(msgspec.json.decode(shown_there, type=Approval)).body
    assert b'value="deny">Deny<' in page and b'value="return">Return to be revised<' in page
    bare = node.cli("deny", made["approval"], "--return")
    assert bare.returncode == 1 and "give a reason" in bare.stderr
    assert "returned" in node.cli("deny", made["approval"], "--return", "--reason", "which section?").stdout
    shown = json.loads(node.cli("names", "show", "acme_list", "--json").stdout)
    assert [(one["state"], one["reason"]) for one in shown["requests"]] == [("revision_requested", "which section?")]
    again = node.cli(
        *("names", "request", "acme_list", "--from", asked(folder, "l"), "--json"),
        *("--previous", shown["requests"][0]["id"]),
    )
    id = json.loads(again.stdout)["document"]["id"]
    assert "cancelled" in node.cli("names", "cancel", id).stdout
    over = node.cli("names", "cancel", id)
    assert over.returncode == 1 and "does not cancel" in over.stderr


@pytest.mark.req("REG-7.3-1", "REG-7.3-3", "REG-8.2-1", "REG-N-3", "REG-4.1-8", "REG-7.2-2", "REG-7.2-3")
def test_each_verb_of_a_controller_and_its_refusal(node: RunningNode, folder: Path, acme: str) -> None:
    override = ("--override", "the vendor wrote to us")
    refusals = (
        (("deprecate", "acme_search"), "does not act for Acme"),
        (
            ("deprecate", "acme_search"),
            "interlock names sign deprecate NAME --controller NAME --key NAME; or in its place",
        ),
        (("verify", "acme_search", "/dev/zero"), "has more than 4194304 bytes"),
        (
            ("request", "acme_x", "--controller", "Acme"),
            "; a specification is required; say which credential the server asks for",
        ),
        (("withdraw", "acme_search", *override), "at the earliest"),
        (("reinstate", "acme_search", *override), "cannot be reinstated"),
        (("transfer", "acme_search", "--to", "Zebra", *override), "no one acts for Zebra"),
        (("confirm-public", "acme_search", *override), "asks for member-recognition"),
        (("consent", "zoo_", "--controller", "Zebra", "--until", "2999-01-01"), "zoo_"),
        (("end", "acme_search", "--by", "x", "--evidence", "y", *override), "x"),
        (("show", "acme_serch"), "acme_search"),
        (("amend", "acme_nothing", "--reference", "RFC 1"), "acme_nothing"),
    )
    for words, said in refusals:
        refused = node.cli("names", *words)
        assert refused.returncode == 1 and said in refused.stderr, (words, refused.stderr)
    before = revisions_of(node, acme)
    wider = written(folder, "wider.json", WIDER)
    done = node.cli("names", "amend", "acme_search", "--arguments", wider, *override)
    assert done.returncode == 0 and "accepted" in done.stdout, done.stderr
    narrower = written(folder, "narrower.json", SCHEMA)
    breaking = node.cli("names", "amend", "acme_search", "--arguments", narrower, *override, "--json")
    assert breaking.returncode == 3, breaking.stderr
    decide(node, json.loads(breaking.stdout)["approval"])
    entry = json.loads(node.cli("names", "show", "acme_search", "--json").stdout)["entry"]
    assert (entry["specification"]["revision"], entry["specification"]["is_breaking"]) == (before + 2, True)
    stranger = node.cli("names", "declare", "acme_search", "--by", "Zebra")
    assert stranger.returncode == 1 and "does not act for" in stranger.stderr
    assert node.cli("names", "declare", "acme_search", "--by", "Zebra", *override).returncode == 0
    ended = node.cli("names", "end", "acme_search", "--by", "Zebra", "--evidence", "switched off", *override)
    assert ended.returncode == 0, ended.stderr
    assert (
        node.cli("names", "consent", "acme_", "--controller", "Zebra", "--until", "2999-01-01", *override).returncode
        == 0
    )
    claim = ("--controller", "Zebra", "--evidence", "https://example.org/", "--date", "2020-02-02", "--json")
    dispute = node.cli("names", "dispute", "acme_", *claim)
    assert dispute.returncode == 3, dispute.stderr
    decide(node, json.loads(dispute.stdout)["approval"])
    held = {one["prefix"]: one["controller"] for one in node.admin("/admin/names/prefixes")["prefixes"]}
    assert held == {"acme_": "Zebra", "org_alter_": "Alter Meridian Pty Ltd"}
    assert "Deprecated" in node.cli("names", "deprecate", "acme_search", *override).stdout
    assert "in the controller's place" in node.cli("names", "show", "acme_search", "--log").stdout


@pytest.mark.req("REG-8.1-4", "REG-6-4")
def test_a_definition_is_compared_with_the_specification(node: RunningNode, folder: Path, acme: str) -> None:
    same = written(folder, "same.json", {"name": "acme_search", "inputSchema": SCHEMA, "outputSchema": SCHEMA})
    assert "identical" in node.cli("names", "verify", "acme_search", same).stdout
    other = {"type": "object", "properties": {"q": {"type": "integer"}}}
    wrong = written(folder, "wrong.json", {"name": "acme_search", "inputSchema": other, "outputSchema": SCHEMA})
    refused = node.cli("names", "verify", "acme_search", wrong)
    assert refused.returncode == 1 and "mismatch" in refused.stdout and "`q` is" in refused.stdout
    unknown = node.cli("names", "verify", "org_alter_ingest", same)
    assert unknown.returncode == 1 and "unverifiable" in unknown.stdout


@pytest.mark.req("REG-9-4", "REG-N-5", "REG-9-2", "REG-9-3")
def test_another_node_mirrors_the_registry_pins_it_and_trusts_it_later(
    node: RunningNode, folder: Path, acme: str
) -> None:
    published = folder / "published.json"
    assert node.cli("names", "publish", "--out", str(published)).returncode == 0
    digest = f"sha256:{hashlib.sha256(published.read_bytes()).hexdigest()}"
    other = RunningNode(node.process, node.status_at_start, folder / "other", node.config)  # no node runs there
    source = ("--source", "https://registry.example.org")
    wrong = other.cli("names", "import", str(published), *source, "--pin", "sha256:00")
    assert wrong.returncode == 1 and digest in wrong.stderr
    done = other.cli("names", "import", str(published), *source, "--pin", digest)
    assert done.returncode == 0 and "5 entries" in done.stdout and "not trusted" in done.stdout, done.stderr
    assert other.cli("names", "import", str(published), *source).returncode == 0  # the same again
    mirrored = json.loads(other.cli("names", "publish").stdout)
    original = json.loads(published.read_text())
    assert [one["surface_name"] for one in mirrored["entries"]] == [one["surface_name"] for one in original["entries"]]
    found = {one["surface_name"]: one.get("source") for one in mirrored["entries"]}
    assert found["acme_search"] == "https://registry.example.org"
    taken = node.cli("names", "import", str(published), "--source", "elsewhere")
    assert taken.returncode == 0, taken.stderr  # what is the same word for word is no conflict
    changed = published.read_text().replace("draft-03", "draft-99")
    (folder / "changed.json").write_text(changed)
    refused = node.cli("names", "import", str(folder / "changed.json"), "--source", "elsewhere")
    assert refused.returncode == 1 and "acme_search" in refused.stderr
    broken = folder / "broken.xml"
    broken.write_text('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>')
    hostile = node.cli("names", "import", str(broken))
    assert hostile.returncode == 1 and "document type" in hostile.stderr
    assert node.cli("names", "trust", "nowhere").returncode == 1
    assert "trusted" in node.cli("names", "trust", "elsewhere").stdout


@pytest.mark.req("REG-9-2", "REG-9-3", "REG-9-5", "REG-8.3-2", "REG-7.1-2")
def test_the_registry_is_read_over_http_with_tags(node: RunningNode, acme: str) -> None:
    status, headers, body = fetch(node, "/assignments/mcp-tool-surface-names/mcp-tool-surface-names.xml")
    assert (status, headers["content-type"]) == (200, "application/xml")
    tag = headers["etag"]
    again = fetch(node, "/assignments/mcp-tool-surface-names/mcp-tool-surface-names.xml", **{"if-none-match": tag})
    assert (again[0], again[2]) == (304, b"")
    published = node.cli("names", "publish", "--form", "xml").stdout
    assert published.encode().strip() == body.strip()
    for form, kind in (("csv", "text/csv"), ("txt", "text/plain"), ("json", "application/json")):
        status, headers, _ = fetch(node, f"/assignments/mcp-tool-surface-names/mcp-tool-surface-names.{form}")
        assert status == 200 and headers["content-type"].startswith(kind)
    published_json = fetch(node, "/assignments/mcp-tool-surface-names/mcp-tool-surface-names.json")[2]
    schema = fetch(node, "/assignments/mcp-tool-surface-names/mcp-tool-surface-names.schema.json")
    assert schema[1]["content-type"] == "application/schema+json"
    validator = jsonschema_rs.Draft202012Validator(json.loads(schema[2]))
    assert validator.is_valid(json.loads(published_json))
    assert not validator.is_valid(json.loads(published_json) | {"entries": [{"surface_name": "acme_search"}]})
    listed = json.loads(fetch(node, "/registry/names")[2])
    assert listed["names"][0]["surface_name"] == "acme_search"
    assert listed["registry"] == node.status_at_start["node"]["aggregator_id"]
    shown = json.loads(node.cli("names", "show", "acme_search", "--json").stdout)["entry"]
    assert json.loads(fetch(node, "/registry/names/acme_search")[2]) == shown
    revisions = json.loads(fetch(node, "/registry/names/acme_search/revisions")[2])["revisions"]
    assert [one["revision"] for one in revisions] == list(range(1, revisions_of(node, acme) + 1))
    prefixes = json.loads(fetch(node, "/registry/prefixes")[2])
    assert prefixes["held"].startswith("by procedure")
    assert "by procedure: no signature proves it" in (ROOT / "docs" / "names.md").read_text()
    one = "/registry/names/acme_search"
    for path in ("/registry/names", one, f"{one}/revisions", "/registry/prefixes"):
        tag = fetch(node, path)[1]["etag"]
        again = fetch(node, path, **{"if-none-match": tag})
        assert (again[0], again[2]) == (304, b"")
        assert fetch(node, path, **{"if-none-match": '"other"'})[0] == 200
    for path in ("/registry/names/unknown", "/registry/nothing", "/assignments/x/y.xml", "/registry/requests/x"):
        status, _, body = fetch(node, path)
        assert (status, json.loads(body)["error"]) == (404, "not_found")
    for authorization in ("", "Bearer ilc_wrong"):
        assert fetch(node, "/registry/names", authorization=authorization)[0] == 401
    written_before = node.config.read_text()
    node.config.write_text(written_before + "\n[registry]\npublic_read = true\n")
    sign_configuration(node)
    wait_for(lambda: fetch(node, "/registry/names", authorization="")[0] == 200)
    assert fetch(node, "/registry/requests", "{}", authorization="")[0] == 401
    node.config.write_text(written_before)
    wait_for(lambda: fetch(node, "/registry/names", authorization="")[0] == 401)


@pytest.mark.req("REG-4.1-8", "REG-9-5", "REG-N-3", "REG-5-1")
def test_a_controller_signs_what_it_asks_for_and_nothing_counts_twice(node: RunningNode, folder: Path) -> None:
    zoo, mallory = key("EdDSA", "zoo"), key("EdDSA", "mallory")
    asking = json.loads(Path(asked(folder, "zoo_feed")).read_text())
    asking |= {"surface_name": "zoo_feed", "change_controller": "Zoo", "vendor_prefix": "zoo_"}
    asking["controller_key"] = json.dumps(zoo.jwk())

    def post(path: str, statement: str) -> tuple[int, Any]:
        status, _, body = fetch(node, path, statement, "application/jose")
        return status, json.loads(body)

    refusals = (
        (stated(node, mallory, "request", "zoo_feed", asking), "not_change_controller"),
        (stated(node, zoo, "request", "zoo_feed", asking, aud="elsewhere"), "wrong_registry"),
        (stated(node, zoo, "request", "zoo_feed", asking, exp=time.time() - 60), "statement_expired"),
        (stated(node, zoo, "withdraw", "zoo_feed", asking), "statement_invalid"),
        ("rubbish", "statement_invalid"),
    )
    for statement, error in refusals:
        assert post("/registry/requests", statement)[1]["error"] == error
    status, made = post("/registry/requests", stated(node, zoo, "request", "zoo_feed", asking))
    assert (status, made["state"]) == (202, "in_review")
    (waiting,) = [one for one in node.admin("/approvals?kind=request")["approvals"] if one["tool"] == "names.zoo_feed"]
    assert decide(node, waiting["id"])["status"] == "done"
    read = json.loads(fetch(node, f"/registry/requests/{made['request']['id']}")[2])
    assert read["state"] == "accepted"
    once = stated(node, zoo, "deprecate", "zoo_feed")
    assert post("/registry/names/zoo_feed/deprecate", once)[1]["state"] == "Deprecated"
    assert post("/registry/names/zoo_feed/reinstate", stated(node, zoo, "reinstate", "zoo_feed"))[0] == 200
    assert post("/registry/names/zoo_feed/deprecate", once)[1]["error"] == "statement_replayed"
    forged = stated(node, mallory, "deprecate", "zoo_feed")
    assert post("/registry/names/zoo_feed/deprecate", forged) == post("/registry/names/zoo_feed/deprecate", forged)
    assert post("/registry/names/zoo_feed/deprecate", forged)[0] == 403
    given = stated(node, zoo, "consent", "zoo_", {"controller": "Acme", "until": "2999-01-01"})
    assert post("/registry/prefixes/zoo_/consent", given)[0] == 200
    assert post("/registry/names/zoo_feed/withdraw", stated(node, zoo, "withdraw", "zoo_feed"))[1]["error"] == (
        "deprecation_too_short"
    )
    assert fetch(node, "/registry/requests", "x" * 1_100_000, "application/jose")[0] == 413
    assert fetch(node, "/registry/requests", "x", "text/plain")[0] == 415
    unsigned = fetch(node, "/registry/requests", json.dumps(asking))
    assert (unsigned[0], json.loads(unsigned[2])["error"]) == (403, "not_change_controller")


def documented(heading: str) -> list[str]:
    """The commands of the first block of docs/names.md that has this in it."""
    blocks = (ROOT / "docs" / "names.md").read_text().split("```\n")[1::2]
    return next(block for block in blocks if heading in block).splitlines()


@pytest.mark.req("REG-4.1-8")
def test_the_documented_way_of_a_controllers_signature(node: RunningNode, folder: Path) -> None:
    place = folder / "controller"
    place.mkdir()
    (place / "home").mkdir()
    asking = json.loads(Path(asked(folder, "x")).read_text()) | {"vendor_prefix": "none", "cross_vendor": True}
    del asking["change_controller"]
    (place / "request.json").write_text(json.dumps(asking))
    env = {**os.environ, "HOME": str(place / "home"), "XDG_CONFIG_HOME": str(place / "home" / "config")}

    def run(line: str) -> Any:
        said, _, out = line.partition(" > ")
        if said.startswith("interlock "):
            words = [word.replace("Acme", "Kite").replace("acme", "kite") for word in said.split()[1:]]
            done = node.cli(*words, env=env, cwd=place)
            assert done.returncode == 0, done.stderr
            if out:
                (place / out).write_text(done.stdout)
            return None
        url, sent = said.rpartition("$URL")[2], said.partition("@")[2].split()[0]
        assert 'Content-Type: application/jose"' in said
        status, _, body = fetch(node, url.replace("acme", "kite"), (place / sent).read_text(), "application/jose")
        return status, json.loads(body)

    make_key, sign_request, send_request, sign_end, send_end = documented("names sign request")
    run(make_key)
    run(sign_request)
    status, made = run(send_request)
    assert (status, made["state"]) == (202, "in_review"), made
    (waiting,) = [one for one in node.admin("/approvals?kind=request")["approvals"] if one["tool"] == "names.kite_find"]
    assert decide(node, waiting["id"])["status"] == "done"
    run(sign_end)
    assert run(send_end)[1]["state"] == "Deprecated"
    assert run(send_end)[1]["error"] == "statement_replayed"
    elsewhere = node.cli(
        *("names", "sign", "reinstate", "kite_find", "--controller", "Kite", "--key", "kite", "--json"),
        *("--registry", "elsewhere"),
        env=env,
    )
    statement = json.loads(elsewhere.stdout)
    assert statement["path"] == "/registry/names/kite_find/reinstate"
    assert json.loads(fetch(node, statement["path"], statement["statement"], "application/jose")[2])["error"] == (
        "wrong_registry"
    )
    for words, said in (
        (("expel", "kite_find"), "actions are request"),
        (("deprecate", "kite_find", "--key", "nobody"), "there is no key nobody"),
        (("deprecate", "kite_find", "--from", str(place / "request.jwt")), "is not JSON"),
        (("request", "kite_find", "--from", asked(folder, "other")), "asks for another controller: Acme"),
    ):
        defaults = () if "--key" in words else ("--key", "kite")
        refused = node.cli("names", "sign", *words, *defaults, "--controller", "Kite", env=env)
        assert refused.returncode in (1, 2) and said in refused.stderr, (words, refused.stderr)


@pytest.mark.req("REG-9-5", "REG-5-9", "REG-7.1-1")
def test_clients_are_offered_the_registry_as_tools_that_decide_nothing(
    node: RunningNode, folder: Path, acme: str
) -> None:
    with Client(node, token=bearer(node), path="/mcp?names=qualified") as client:
        assert [one["name"] for one in client.ask("tools/list", {})["result"]["tools"]] == []  # each costs tokens
        written_before = node.config.read_text()
        node.config.write_text(written_before + "\n[registry]\ntools = true\n")
        tools = wait_for(lambda: client.ask("tools/list", {})["result"]["tools"])
        names = {one["name"]: one for one in tools}
        assert sorted(names) == ["names.check", "names.lookup", "names.request", "names.verify"]
        reads = {name: one["annotations"].get("readOnlyHint", False) for name, one in names.items()}
        assert reads == {"names.check": True, "names.lookup": True, "names.request": False, "names.verify": True}
        found = client.call("names.lookup", {"name": "acme_search"})["structuredContent"]
        assert found == json.loads(fetch(node, "/registry/names/acme_search")[2])
        missing = client.call("names.lookup", {"name": "acme_unknown"})
        assert missing["isError"] and missing["structuredContent"]["error"] == "not_found"
        checked = client.call("names.check", {"surface_name": "acme_search", "change_controller": "Zebra"})
        assert checked["structuredContent"]["criteria"][4]["outcome"] == "fail"
        verified = {"name": "acme_search", "definition": {"inputSchema": SCHEMA, "outputSchema": SCHEMA}}
        assert client.call("names.verify", verified)["structuredContent"]["verdict"] == "identical"
        asking = json.loads(Path(asked(folder, "x")).read_text())
        asking |= {"surface_name": "lion_feed", "change_controller": "Lion", "vendor_prefix": "lion_"}
        made = client.call("names.request", asking)["structuredContent"]
        assert made["state"] == "in_review"
        bad = client.call("names.request", {"surface_name": "a-b", "change_controller": "x"})
        assert bad["structuredContent"]["error"] == "name_syntax"
        listed = json.loads(fetch(node, "/registry/names")[2])["names"]
        assert "lion_feed" not in {one["surface_name"] for one in listed}
        node.config.write_text(written_before)
        wait_for(lambda: client.ask("tools/list", {})["result"]["tools"] == [])

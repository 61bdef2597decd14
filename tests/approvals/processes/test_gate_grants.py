"""Does a standing grant let pass what a person signed, as often as they said, and nothing else?

A real node, a server that writes down what it did, and proofs made as a signer outside Interlock would make them.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import preloaded
from tests.approvals.processes.test_gate_definitions import Operator
from tests.ax.tree import ACCESS, ax_url, parents, wait_parent
from tests.gate.held_calls import (
    ADA,
    ANCHORED,
    BOB,
    ERAS,
    MALLORY,
    ActuatorLog,
    Client,
    actuator_table,
    anchor,
    deny,
    gated_node,
    proof,
    token,
)
from tests.servers.minting import SigningKey
from tests.support.node_process import RunningNode, running_node, wait_for

FIRE = "plant.fire"
MORTAL = Path(__file__).parents[2] / "gate" / "dying_node.py"


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> ActuatorLog:
    return ActuatorLog(tmp_path_factory.mktemp("diary") / "diary.jsonl")


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, diary: ActuatorLog, operator: Operator) -> Iterator[RunningNode]:
    own_key = operator.anchor.replace("name = 'ada'", "name = 'ada-here'")
    with gated_node(tmp_path_factory.mktemp("grants"), diary, ANCHORED + own_key) as running:
        yield running


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    with Client(node) as made:
        yield made


def draft(node: RunningNode, **wanted: Any) -> Any:
    return node.admin("/admin/grants/draft", "POST", wanted)


def signed(drafted: Mapping[str, Any], signer: SigningKey = ADA, **changes: Any) -> str:
    terms = drafted["terms"]
    demand = {
        "aggregator_id": terms["aggregator_id"],
        "confirmation_id": terms["id"],
        "call_digest": drafted["digest"],
    }
    return proof(demand, signer, **changes)


def sign(node: RunningNode, drafted: Mapping[str, Any], signer: SigningKey = ADA, **changes: Any) -> Any:
    body = {"terms": drafted["terms"], "proof": signed(drafted, signer, **changes)}
    return node.admin("/admin/grants", "POST", body)


def granted(node: RunningNode, rules: list[Any], who: str = "local", tool: str = FIRE, **limits: Any) -> Any:
    made = sign(node, draft(node, tool=tool, who=who, rules=rules, **limits))
    assert made.get("state") == "active", made
    return made


def ran(result: Mapping[str, Any]) -> bool:
    return bool(result.get("structuredContent") == {"did": "fire"})


def text(result: Mapping[str, Any]) -> str:
    return str(result["content"][0]["text"])


def shown(node: RunningNode, grant: Mapping[str, Any]) -> Any:
    return node.admin(f"/admin/grants/{grant['terms']['id']}")


def test_waiting_calls_are_approved_with_the_grant_that_covers_them(
    node: RunningNode, diary: ActuatorLog, client: Client
) -> None:
    waited = [client.held(FIRE, {"waits": number})["confirmation_id"] for number in (1, 2, 3)]
    grant = granted(node, [{"at": "/waits", "kind": "range", "value": [0, 2]}], calls=2)
    assert sorted(grant["approvals"]) == sorted(waited[:2]) and grant["used"] == 0
    found = [node.admin(f"/approvals/{id}") for id in waited]
    assert [one["status"] for one in found] == ["approved", "approved", "pending"]
    assert found[0]["decision"]["by"] == f"grant:{grant['terms']['id']}"
    before = len(diary)
    assert ran(client.call(FIRE, {"waits": 1}))
    wait_for(lambda: node.admin(f"/approvals/{waited[0]}")["status"] == "done")
    assert (shown(node, grant)["used"], len(diary)) == (1, before + 1)
    revoked = node.admin(f"/admin/grants/{grant['terms']['id']}/revoke", "POST")
    assert revoked["state"] == "over"
    again = client.held(FIRE, {"waits": 2})  # the grant approved it, and is over
    assert again["confirmation_id"] != waited[1]
    assert node.admin(f"/approvals/{waited[1]}")["status"] == "void"
    for id in (again["confirmation_id"], waited[2]):
        deny(node, {"confirmation_id": id})


def test_a_call_that_waits_is_released_by_the_command_that_signs(
    node: RunningNode, client: Client, operator: Operator
) -> None:
    held = client.held(FIRE, {"released": 1})["confirmation_id"]
    words = ("approve", held[:8], "--standing", "--yes", "--key", "ada", "--calls", "1")
    said = node.cli(*words, env=operator.env)
    assert "approved with it: 1 waiting call, which local makes again" in said.stdout, said
    assert node.admin("/approvals")["approvals"] == []
    assert ran(client.call(FIRE, {"released": 1}))


@pytest.mark.parametrize("era", ERAS)
def test_a_grant_from_a_held_call_covers_it_and_calls_like_it(node: RunningNode, diary: ActuatorLog, era: str) -> None:
    path = f"/srv/{era}/a"
    with Client(node, era) as client:
        demand = client.held(FIRE, {"path": path, "litres": 2, "mode": "soft"})
        drafted = draft(node, approval=demand["confirmation_id"], calls=3)
        assert [(one["at"], one["kind"], one["value"]) for one in drafted["terms"]["rules"]] == [
            ("/litres", "range", [0, 2]),
            ("/mode", "equals", "soft"),
            ("/path", "below", f"/srv/{era}"),
        ]
        grant = sign(node, drafted)
        assert (grant["state"], grant["anchor"], grant["used"]) == ("active", "ada", 0)
        assert ran(client.call(FIRE, {"path": path, "litres": 2, "mode": "soft"}))
        assert ran(client.call(FIRE, {"path": f"/srv/{era}/b/c", "litres": 1.5, "mode": "soft"}))
        for outside, why in (
            ({"path": "/etc/b", "litres": 1, "mode": "soft"}, f"/path must be a path below /srv/{era}"),
            ({"path": f"/srv/{era}/../b", "litres": 1, "mode": "soft"}, "/path must be a path below"),
            ({"path": path, "litres": 3, "mode": "soft"}, "/litres must be a number from 0 to 2"),
            ({"path": path, "litres": 1, "mode": "hard"}, '/mode must be "soft"'),
            ({"path": path, "litres": 1, "mode": "soft", "force": True}, "/force is not among its arguments"),
            ({"path": path, "litres": 1}, "/mode is missing"),
        ):
            held = client.call(FIRE, outside)
            assert f"The standing grant {grant['terms']['id']} does not cover it: {why}" in text(held), text(held)
        assert ran(client.call(FIRE, {"path": f"/srv/{era}/d", "litres": 0, "mode": "soft"}))
        assert "is used up (3 calls)" in text(client.call(FIRE, {"path": f"/srv/{era}/e", "litres": 0, "mode": "soft"}))
    now = shown(node, grant)
    assert (now["state"], now["used"], len(now["approvals"])) == ("over", 3, 3)
    uses = [node.admin(f"/approvals/{id}") for id in now["approvals"]]
    assert {one["status"] for one in uses} == {"done"}
    assert demand["confirmation_id"] in now["approvals"]  # the call that waited
    assert {(one["decision"]["by"], one["decision"]["proof"]["type"]) for one in uses} == {
        (f"grant:{grant['terms']['id']}", "standing_grant")
    }
    paths = [entry["arguments"]["path"] for entry in diary.read("fire") if "path" in entry["arguments"]]
    assert [one for one in paths if f"/{era}/" in one] == [path, f"/srv/{era}/b/c", f"/srv/{era}/d"]
    records = node.admin("/admin/audit?after=0&limit=1000")["records"]
    assert [one["verdict"] for one in records if one.get("grant") == grant["terms"]["id"]] == ["signed"]
    decided = [one for one in records if one.get("jti") == grant["terms"]["id"] and one["verdict"] == "approved"]
    assert len(decided) == 3


@pytest.mark.req("AX-11.N-9")
def test_the_page_and_the_command_name_all_ways_out_and_the_held_text_no_line_of_the_configuration(
    node: RunningNode, client: Client
) -> None:
    result = client.call(FIRE, {"n": "ways"})
    id = result["_meta"]["x-mcpax-confirmation"]["confirmation_id"]
    grant, rule = f"`interlock approve {id} --standing`", '`tools = { "fire" = "reversible" }` in `[servers.plant]`'
    assert grant in text(result)
    whole = json.dumps(result)
    assert not any(word in whole for word in (rule, 'reversible\\"', "[[tool]]", "[servers", "configuration", ".toml"))
    ways = node.admin(f"/approvals/{id}")["ways_out"]
    assert [grant in ways[0], rule in ways[1]] == [True, True]
    preview = " ".join(node.cli("approvals", "show", id).stdout.split())
    assert "--standing" in preview
    assert '"reversible"' in preview


@pytest.mark.req("AX-11.3-5")
def test_a_grant_needs_a_valid_signature_for_this_node_and_tool(node: RunningNode, client: Client) -> None:
    wanted = {"tool": FIRE, "who": "local", "rules": [{"at": "/n", "kind": "equals", "value": "forged"}], "calls": 1}
    drafted = draft(node, **wanted)
    for signer, changes in (
        (MALLORY, {}),
        (BOB, {}),  # for office.* only
        (ADA, {"call_digest": "0" * 64}),
        (ADA, {"confirmation_id": drafted["terms"]["tool_digest"]}),
        (ADA, {"aud": "another"}),
        (ADA, {"exp": 1}),
    ):
        assert sign(node, drafted, signer, **changes)["error"] == "proof_invalid"
    wider = {**drafted, "terms": {**drafted["terms"], "calls": 9}}  # not what the digest is of
    assert sign(node, wider)["error"] == "proof_invalid"
    elsewhere = {**drafted, "terms": {**drafted["terms"], "tool_digest": "0" * 64}}
    assert sign(node, elsewhere)["error"] == "changed"
    client.held(FIRE, {"n": "forged"})
    good = signed(drafted)
    assert node.admin("/admin/grants", "POST", {"terms": drafted["terms"], "proof": good})["state"] == "active"
    again = node.admin("/admin/grants", "POST", {"terms": drafted["terms"], "proof": good})
    assert again["error"] == "bad_grant"
    other = draft(node, **wanted)
    assert node.admin("/admin/grants", "POST", {"terms": other["terms"], "proof": good})["error"] == "proof_invalid"
    assert ran(client.call(FIRE, {"n": "forged"}))


@pytest.mark.parametrize(
    "wanted",
    [
        {"rules": []},
        {"who": "", "rules": [], "calls": 1},
        {"rules": [], "calls": 0},
        {"rules": [], "calls": 10_001},
        {"rules": [], "seconds": 91 * 86_400},
        {"rules": [], "seconds": -1},
        {"rules": [{"at": "/a", "kind": "below", "value": "/"}], "calls": 1},
        {"rules": [{"at": "/a", "kind": "equals", "value": "x" * 40_000}], "calls": 1},
        {"tool": "plant.look", "rules": [], "calls": 1},
        {"tool": "plant.silent", "rules": [], "calls": 1},
        {"tool": "plant.nothing", "rules": [], "calls": 1},
    ],
)
def test_a_grant_without_an_end_or_a_clear_meaning_is_not_drafted(node: RunningNode, wanted: Any) -> None:
    answer = draft(node, **{"tool": FIRE, "who": "local", **wanted})
    if wanted == {"rules": []}:  # a day, where nothing is said
        assert answer["terms"]["until"] - answer["terms"]["issued_at"] == 86_400
    else:
        assert answer["error"] in ("bad_grant", "not_grantable", "not_found"), answer


def test_a_grant_is_for_its_caller_alone(node: RunningNode, client: Client) -> None:
    rules = [{"at": "/n", "kind": "equals", "value": "whose"}]
    granted(node, rules, who="client:laptop", calls=5)
    with Client(node, token=token(node, "laptop")) as laptop, Client(node, token=token(node, "lapdog")) as other:
        client.held(FIRE, {"n": "whose"})
        other.held(FIRE, {"n": "whose"})
        assert ran(laptop.call(FIRE, {"n": "whose"}))


def test_a_revoked_grant_lets_nothing_pass(node: RunningNode, client: Client) -> None:
    grant = granted(node, [{"at": "/n", "kind": "equals", "value": "revoked"}], seconds=600)
    assert ran(client.call(FIRE, {"n": "revoked"}))
    ended = node.admin(f"/admin/grants/{grant['terms']['id'][:8]}/revoke", "POST")
    assert (ended["state"], ended["over"]) == ("over", "was revoked by local")
    assert f"{grant['terms']['id']} was revoked by local" in text(client.call(FIRE, {"n": "revoked"}))
    records = node.admin("/admin/audit?after=0&limit=1000")["records"]
    assert [one["verdict"] for one in records if one.get("grant") == grant["terms"]["id"]] == ["signed", "ended"]


def test_a_no_to_one_call_outweighs_a_grant_for_its_like(node: RunningNode, client: Client) -> None:
    demand = client.held(FIRE, {"n": "refused"})
    deny(node, demand, "not this one")
    grant = granted(node, [{"at": "/n", "kind": "one_of", "value": ["refused", "other"]}], calls=5)
    result = client.call(FIRE, {"n": "refused"})
    assert result["_meta"]["x-mcpax-confirmation"]["status"] == "confirmation_denied"
    assert ran(client.call(FIRE, {"n": "other"}))
    assert shown(node, grant)["used"] == 1


@pytest.mark.req("AX-11.3-11")
def test_of_many_calls_that_race_for_the_last_uses_exactly_as_many_pass(node: RunningNode, diary: ActuatorLog) -> None:
    grant = granted(node, [{"at": "/race", "kind": "one_of", "value": [1, 2]}], calls=3)
    results: list[bool] = []

    def run(number: int) -> None:
        with Client(node, ERAS[number % 2]) as racing:
            start.wait()
            results.append(ran(racing.call(FIRE, {"race": 1 + number // 2 % 2})))

    start = threading.Barrier(8)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert sorted(results) == [False] * 5 + [True] * 3
    assert len([entry for entry in diary.read("fire") if "race" in entry["arguments"]]) == 3
    assert (shown(node, grant)["used"], shown(node, grant)["state"]) == (3, "over")


def test_ambiguous_arguments_are_refused_before_grants_are_checked(node: RunningNode, diary: ActuatorLog) -> None:
    granted(node, [{"at": "/odd", "kind": "any"}], calls=5)
    with Client(node) as client:
        for raw in ('{"odd":1,"odd":2}', '{"odd":9007199254740993}', '{"odd":-0}'):
            body = json.dumps({"name": "@", "arguments": 0}).replace('"@"', f'"{FIRE}"').replace(": 0}", f": {raw}}}")
            message = client.wire.post(
                b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % body.encode(),
                {"content-type": "application/json", "accept": "application/json, text/event-stream"},
            ).message
            assert message["error"]["code"] in (-32602, -32020, -32600), message
    assert not [entry for entry in diary.read("fire") if "odd" in entry["arguments"]]


@pytest.mark.req("AQL-C.map-13")
def test_the_same_grant_covers_the_same_call_of_an_aql_surface(node: RunningNode) -> None:
    granted(node, [{"at": "/aql", "kind": "equals", "value": 1}], calls=1)
    with Client(node, path="/mcp/aql-single") as client:

        def send(value: int) -> Any:
            asked = {"operation": "plant__fire", "params": {"arguments": {"aql": value}}}
            return client.call("mcp_aql", asked)["structuredContent"]

        assert send(2)["error"]["code"] == "CONFIRMATION_REQUIRED"
        assert send(1) == {"success": True, "data": {"did": "fire"}}
        assert send(1)["error"]["code"] == "CONFIRMATION_REQUIRED"


def test_the_commands_sign_show_and_revoke(node: RunningNode, client: Client, operator: Operator) -> None:
    demand = client.held(FIRE, {"path": "/data/x/y", "note": "hello", "tags": ["a"], "n": 4})
    made = operator.does(
        node, "approve", demand["confirmation_id"][:8], "--standing", "--yes", "--key", "ada",
        "--below", "path=/data", "--any", "note", "--one-of", "tags=a,b", "--calls", "2", "--for", "2h",
    )  # fmt: skip
    assert [(one["at"], one["kind"], one["value"], one["each"]) for one in made["terms"]["rules"]] == [
        ("/n", "range", [0, 4], False),
        ("/note", "any", None, False),
        ("/path", "below", "/data", False),
        ("/tags", "one_of", ["a", "b"], True),
    ]
    assert (made["terms"]["calls"], made["terms"]["until"] - made["terms"]["issued_at"]) == (2, 7200)
    assert ran(client.call(FIRE, {"path": "/data/z", "tags": ["b", "a"], "n": 0}))
    id = made["terms"]["id"]
    listed = node.cli("grants", "list")
    assert id[:8] in listed.stdout
    assert "1 of 2" in listed.stdout
    in_full = node.cli("grants", "show", id[:8]).stdout
    assert "/path must be a path below /data" in in_full
    assert "interlock approvals show" in in_full
    assert node.cli("grants", "revoke", id[:8]).returncode == 0
    client.held(FIRE, {"path": "/data/z", "tags": ["b", "a"], "n": 0})
    plain = operator.does(
        node, "grants", "sign", FIRE, "--who", "local", "--max", "cli=5", "--min", "cli=2", "--calls", "1", "--yes",
        "--key", "ada",
    )  # fmt: skip
    assert plain["terms"]["rules"] == [{"at": "/cli", "kind": "range", "value": [2, 5], "each": False}]
    client.held(FIRE, {"cli": 1})
    assert ran(client.call(FIRE, {"cli": 5}))
    for words in (
        ["approve", demand["confirmation_id"], "--calls", "2"],
        ["grants", "sign", FIRE, "--who", "local", "--below", "path"],
        ["grants", "sign", FIRE, "--who", "local", "--for", "soon"],
        ["grants", "sign", FIRE, "--who", "local", "--min", "n=1"],
    ):
        assert node.cli(*words).returncode in (1, 2), words
    unsigned = node.cli("grants", "sign", FIRE, "--who", "local", env=operator.env)
    assert unsigned.returncode == 1
    assert "nothing was signed" in unsigned.stderr


@pytest.mark.req("AX-11.3-14")
def test_a_grant_is_for_one_definition(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary) as node, Client(node) as client:
        grant = granted(node, [{"at": "/n", "kind": "any"}], calls=5)
        assert ran(client.call(FIRE, {"n": 1}))
        client.call("plant.change", {"what": "description"})
        wait_for(lambda: "changed" in node.admin(f"/admin/tools/{FIRE}"), 20)
        assert "is for another definition of the tool" in text(client.call(FIRE, {"n": 2}))
        client.call("plant.change", {"what": "nothing"})
        wait_for(lambda: "changed" not in node.admin(f"/admin/tools/{FIRE}"), 20)
        assert ran(client.call(FIRE, {"n": 3}))
        assert shown(node, grant)["used"] == 2


def test_grants_survive_a_restart_and_only_as_they_were_signed(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary) as node, Client(node) as client:
        kept = granted(node, [{"at": "/n", "kind": "equals", "value": "kept"}], calls=2)
        forged = granted(node, [{"at": "/n", "kind": "equals", "value": "narrow"}], calls=2)
        assert ran(client.call(FIRE, {"n": "kept"}))
    with sqlite3.connect(tmp_path / "node" / "data" / "store.db") as store:
        forging = "UPDATE kv SET value = CAST(replace(value, 'narrow', 'wider!') AS BLOB) WHERE bucket = 'grants'"
        assert store.execute(forging).rowcount == 2
    with gated_node(tmp_path / "node", diary) as node, Client(node) as client:
        assert (shown(node, kept)["used"], shown(node, kept)["state"]) == (1, "active")
        assert shown(node, forged)["over"] == "is void: its signature does not hold"
        client.held(FIRE, {"n": "wider!"})
        assert ran(client.call(FIRE, {"n": "kept"}))
        client.held(FIRE, {"n": "kept"})
    with gated_node(tmp_path / "node", diary, ANCHORED.replace("approves = ['*']", "approves = ['office.*']")) as node:
        assert shown(node, kept)["state"] == "over"


@pytest.mark.req("AX-11.3-9")
def test_an_anchor_that_leaves_takes_its_grants_along(tmp_path: Path) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with gated_node(tmp_path / "node", diary) as node, Client(node) as client:
        grant = granted(node, [{"at": "/n", "kind": "any"}], calls=5)
        assert ran(client.call(FIRE, {"n": 1}))
        written = node.config.read_text()
        node.config.write_text(written.replace("approves = ['*']", "approves = ['office.*']"))
        wait_for(lambda: shown(node, grant)["state"] == "over", 20)
        assert "may no longer" in shown(node, grant)["over"]
        node.config.write_text(written)
        wait_for(lambda: "--standing" in text(client.call(FIRE, {"n": 2})), 20)
        assert shown(node, grant)["state"] == "over"  # for good


@pytest.mark.parametrize(("step", "used", "did"), [("grant:before", 0, 0), ("grant:after", 1, 0), ("sent", 1, None)])
def test_a_kill_never_gives_a_use_back(tmp_path: Path, step: str, used: int, did: int | None) -> None:
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    servers = {"plant": actuator_table(diary)}
    env = {"MORTAL": step, preloaded.FIRST: str(MORTAL)}
    with running_node(tmp_path / "node", servers, ANCHORED, env=env) as node:
        node.wait_link("plant", {"state": "ready"})
        grant = granted(node, [{"at": "/n", "kind": "any"}], calls=1)
        with pytest.raises((OSError, EOFError, ValueError, AssertionError)), Client(node) as client:
            client.call(FIRE, {"n": 1})
        assert node.process.wait(timeout=20) == -9
    assert len(diary) in ({0, 1} if did is None else {did})
    before = len(diary)
    with running_node(tmp_path / "node", servers, ANCHORED) as node, Client(node) as client:
        node.wait_link("plant", {"state": "ready"})
        assert shown(node, grant)["used"] == used
        assert ran(client.call(FIRE, {"n": 1})) is (used == 0)
        assert len(diary) == before + (used == 0)


@pytest.mark.timeout(90)
@pytest.mark.req("AX-11.3-16")
def test_a_grant_of_one_node_never_covers_what_the_node_below_holds(tmp_path: Path) -> None:
    diary, where = ActuatorLog(tmp_path / "diary.jsonl"), "low.plant.fire"
    gated = '[gate]\nmode = "gated"\nunannotated = "allow"\nshow_holder = true\n' + anchor("ada", ADA, "*")
    with running_node(tmp_path / "root", {}, ACCESS + gated) as root:
        more = parents((ax_url(root), "low")) + ACCESS + gated
        with running_node(tmp_path / "low", {"plant": actuator_table(diary)}, more) as low:
            low.wait_link("plant", {"state": "ready"})
            wait_parent(low, {"state": "registered"})
            wait_for(lambda: "error" not in root.admin(f"/admin/tools/{where}"), 30)
            with Client(root) as client, Client(root, token=token(root, "other")) as other:
                assert draft(root, tool=where, who="local", rules=[], calls=1)["is_held_below"] is True
                granted(root, [{"at": "/n", "kind": "any"}], tool=where, calls=9)
                held = client.held(where, {"n": 1})
                assert held["held_by"] == "low"
                assert len(diary) == 0
                drafted = draft(low, approval=held["confirmation_id"], rules=[{"at": "/n", "kind": "any"}], calls=9)
                who = drafted["terms"]["who"]
                assert "#" in who  # the parent, and the opaque mark of its caller
                sign(low, drafted)
                assert ran(client.call(where, {"n": 1}))
                assert ran(client.call(where, {"n": 2}))
                other_grant = granted(root, [{"at": "/n", "kind": "any"}], who="client:other", tool=where, calls=9)
                assert other.held(where, {"n": 2})["held_by"] == "low"  # another caller of the same parent
                assert shown(root, other_grant)["used"] == 1
                assert len(diary) == 2

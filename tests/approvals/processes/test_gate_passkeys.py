"""Passkeys against a running node: does the assertion of a verified person on the approval page, and nothing else,
release the call? The authenticator is software here; `test_gate_browser` has a real browser."""

import base64
import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.gate.held_calls import ADA, GATED, ActuatorLog, Client, anchor, enrol_waiting, gated_node, proof
from tests.servers.authenticator import PRESENT, USUAL, VERIFIED, Authenticator, Kind, b64, unb64
from tests.support.node_process import RunningNode, wait_for

KINDS: tuple[Kind, ...] = ("es256", "ed25519", "rs256")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def passkey(name: str, made: Authenticator, *approves: str) -> str:
    return f"[[anchor]]\nname = {json.dumps(name)}\npasskey = {json.dumps(made.text())}\napproves = {list(approves)}\n"


class Place:
    def __init__(self, node: RunningNode, diary: ActuatorLog, people: dict[str, Authenticator]) -> None:
        self.node, self.diary, self.people = node, diary, people
        self.origin = node.operator_url.replace("127.0.0.1", "localhost")
        for one in people.values():
            one.origin = self.origin
        made = node.cli("access", "token", "--for", "operator", "--name", "me", "--json")
        self.token = str(json.loads(made.stdout)["token"])

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None, accept: str = "*/*") -> Any:
        """The operator's TCP door, as a browser reaches it."""
        where = urlsplit(self.node.operator_url)
        basic = base64.b64encode(f"me:{token or self.token}".encode()).decode()
        headers = {"authorization": f"Basic {basic}", "accept": accept, "content-type": "application/json"}
        with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)) as connection:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if "json" in (answer.getheader("content-type") or "") else text

    def asked(self, demand: Any) -> str:
        status, said = self.ask("GET", f"/approvals/{demand['confirmation_id']}/passkey")
        assert status == 200, said
        return str(said["challenge"])

    def approve(self, demand: Any, token: str, kind: str = "operator_signature") -> Any:
        body = {"decision": "approve", "proof": {"type": kind, "token": token}}
        return self.ask("POST", f"/approvals/{demand['confirmation_id']}", body)

    def refused(self, demand: Any, token: str) -> str:
        """The word of the refusal, after which everything is as it was."""
        status, said = self.approve(demand, token)
        assert (status, said["error"]) in ((403, "proof_invalid"), (409, "confirmation_used")), said
        assert self.status(demand) == "pending"
        return str(said["details"]["reason"])

    def status(self, demand: Any) -> str:
        return str(self.node.admin(f"/approvals/{demand['confirmation_id']}")["status"])

    def ran(self, arguments: Any) -> int:
        return [entry["arguments"] for entry in self.diary.read("fire")].count(arguments)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("passkeys")
    people = {kind: Authenticator(kind) for kind in KINDS} | {"clerk": Authenticator(), "counting": Authenticator()}
    anchors = [passkey(name, one, *(("office.*",) if name == "clerk" else ("*",))) for name, one in people.items()]
    diary = ActuatorLog(folder / "diary.jsonl")
    with gated_node(folder / "node", diary, GATED + "".join(anchors) + anchor("key", ADA, "*")) as node:
        yield Place(node, diary, people)


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    with Client(place.node) as made:
        yield made


@pytest.fixture
def arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"by": request.node.name}


@pytest.fixture
def demand(client: Client, arguments: Any) -> Any:
    return client.held("plant.fire", arguments)


@pytest.mark.req("AX-11.3-6", "AX-11.3-9")
@pytest.mark.parametrize("kind", KINDS)
def test_a_passkey_releases_the_call_it_was_asked_for(
    place: Place, client: Client, demand: Any, arguments: Any, kind: Kind
) -> None:
    assert demand["approval_url"] == f"{place.origin}/approvals/{demand['confirmation_id']}"
    challenge = place.asked(demand)
    assert unb64(challenge)[:32].hex() == demand["call_digest"]
    status, said = place.approve(demand, place.people[kind].sign(challenge))
    assert (status, said["status"]) == (200, "approved")
    assert place.ran(arguments) == 0
    assert client.call("plant.fire", arguments)["structuredContent"] == {"did": "fire"}
    assert place.ran(arguments) == 1
    records = place.node.admin("/admin/audit?after=0&limit=1000")["records"]
    decisions = [one for one in records if one.get("approval") == demand["confirmation_id"] and one.get("jti")]
    assert [(one["anchor"], one["proof"], one["digest"]) for one in decisions] == [
        (kind, "operator_signature", demand["call_digest"])
    ]


def test_the_carrier_of_a_proof_may_be_the_agent_itself(
    place: Place, client: Client, demand: Any, arguments: Any
) -> None:
    token = place.people["es256"].sign(place.asked(demand))
    released = client.confirm(demand, {"type": "operator_signature", "token": token})
    assert released["result"]["structuredContent"] == {"did": "fire"}
    assert place.ran(arguments) == 1


@pytest.mark.req("AX-11.3-6")
def test_a_signature_over_another_call_or_confirmation_does_not(
    place: Place, client: Client, demand: Any, arguments: Any
) -> None:
    ada = place.people["es256"]
    other = client.held("plant.fire", arguments | {"n": 2})
    assert place.refused(demand, ada.sign(place.asked(other))) == "digest"
    assert place.refused(demand, ada.sign(b64(bytes.fromhex(demand["call_digest"])))) == "challenge"
    challenge = unb64(place.asked(demand))
    place.ask("POST", f"/approvals/{demand['confirmation_id']}", {"decision": "deny"})
    with Client(place.node, token=_client_token(place, "else")) as another:
        same = another.held("plant.fire", arguments)
        assert place.refused(same, ada.sign(b64(challenge))) in ("digest", "confirmation")
    assert place.ran(arguments) == 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"flags": PRESENT}, "verification"),
        ({"flags": VERIFIED}, "presence"),
        ({"origin": "https://evil.example"}, "origin"),
        ({"origin": "http://localhost:1"}, "origin"),
        ({"crossOrigin": True}, "origin"),
        ({"type": "webauthn.create"}, "type"),
    ],
)
def test_an_assertion_from_elsewhere_or_of_nobody_does_not(
    place: Place, demand: Any, changes: dict[str, Any], word: str
) -> None:
    assert place.refused(demand, place.people["es256"].sign(place.asked(demand), **changes)) == word


@pytest.mark.req("AX-11.3-9")
def test_passkeys_of_another_site_of_a_stranger_and_for_other_tools_do_not_approve(place: Place, demand: Any) -> None:
    ada, challenge = place.people["es256"], place.asked(demand)
    said = ada.client_data("webauthn.get", challenge)
    assert place.refused(demand, ada.signed(said, ada.data(USUAL, 0, "evil.example"))) == "party"
    stranger = Authenticator(origin=place.origin)
    assert place.refused(demand, stranger.sign(challenge)) == "key_unknown"
    assert place.refused(demand, stranger.signed(said, ada.data(USUAL, 0), ada.credential)) == "signature"
    assert place.refused(demand, place.people["clerk"].sign(challenge)) == "not_entitled"


def test_an_assertion_that_was_used_is_never_good_again(
    place: Place, client: Client, demand: Any, arguments: Any
) -> None:
    token = place.people["es256"].sign(place.asked(demand))
    assert place.approve(demand, token)[0] == 200
    again, said = place.approve(demand, token)
    assert (again, said["error"]) == (409, "confirmation_used")
    client.call("plant.fire", arguments)
    after = client.held("plant.fire", arguments)
    assert after["call_digest"] == demand["call_digest"]
    assert place.refused(after, token) == "confirmation"
    assert client.confirm(after, token)["error"]["data"]["reason"] == "confirmation"
    assert place.ran(arguments) == 1


def test_a_passkey_that_counts_backwards_has_a_copy_and_is_refused(place: Place, client: Client) -> None:
    counting = place.people["counting"]
    first, second = client.held("plant.fire", {"counting": 1}), client.held("plant.fire", {"counting": 2})
    assert place.approve(first, counting.sign(place.asked(first), counter=9))[0] == 200
    for backwards in (9, 8, 0):
        assert place.refused(second, counting.sign(place.asked(second), counter=backwards)) == "counter"
    assert place.approve(second, counting.sign(place.asked(second), counter=10))[0] == 200


def test_a_clients_credential_opens_neither_the_page_nor_its_questions(place: Place, demand: Any) -> None:
    agent, path = _client_token(place, "agent"), f"/approvals/{demand['confirmation_id']}"
    for method, at, body in (
        ("GET", path, None),
        ("GET", f"{path}/passkey", None),
        ("POST", path, {"decision": "deny"}),
    ):
        status, said = place.ask(method, at, body, token=agent, accept="text/html")
        assert (status, said["error"]) == (401, "self_approval")
    assert place.ask("POST", "/admin/passkeys", {"name": "eve"}, token=agent)[0] == 401
    assert place.status(demand) == "pending"


def test_a_persons_token_is_signed_by_their_key_and_not_by_a_passkey(place: Place, demand: Any) -> None:
    """One kind of proof never passes for the other."""
    token = proof(demand)
    assert place.refused(demand, f"{token}.QQ") == "key_unknown"
    ada = place.people["es256"]
    parts = ada.sign(place.asked(demand)).split(".")
    assert place.refused(demand, ".".join(parts[1:])) == "malformed"


@pytest.mark.parametrize("token", ["...", "a.b.c.d", "QQ.e30.QQ.QQ", "QQ." + "A" * 6000 + ".QQ.QQ"])
def test_nonsense_is_refused(place: Place, demand: Any, token: str) -> None:
    assert place.refused(demand, token) in ("malformed", "key_unknown", "too_long")


@pytest.mark.req("AX-11.3-6")
def test_a_passkey_that_was_taken_back_releases_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, ada = tmp_path_factory.mktemp("revoked"), Authenticator()
    diary = ActuatorLog(folder / "diary.jsonl")
    with gated_node(folder, diary, GATED + passkey("ada", ada, "*")) as node, Client(node) as client:
        place = Place(node, diary, {"ada": ada})
        approved, pending = client.held("plant.fire", {"n": 1}), client.held("plant.fire", {"n": 2})
        assert place.approve(approved, ada.sign(place.asked(approved)))[0] == 200
        challenge = place.asked(pending)
        done = node.cli("access", "key", "ada", "--revoke")
        assert done.returncode == 0, done.stderr
        assert place.refused(pending, ada.sign(challenge)) == "revoked"
        assert place.status(approved) == "void"
        assert client.held("plant.fire", {"n": 1})["confirmation_id"] != approved["confirmation_id"]
    assert not diary.read("fire")


def test_an_hour_old_question_is_too_old(place: Place, demand: Any) -> None:
    whole = unb64(place.asked(demand))
    old = whole[:64] + int(time.time() - 3600).to_bytes(8) + whole[72:]
    assert place.refused(demand, place.people["es256"].sign(b64(old))) == "expired"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_the_endpoint_is_at_both_addresses_of_localhost(place: Place) -> None:
    """Browsers try ::1 first, where nobody else must answer in the node's name."""
    where = urlsplit(place.node.operator_url)
    with closing(http.client.HTTPConnection("::1", where.port, timeout=20)) as connection:
        connection.request("GET", "/approvals")
        assert connection.getresponse().status == 401


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_where_another_program_answers_to_localhost_no_passkey_counts(tmp_path: Path) -> None:
    ada, diary = Authenticator(), ActuatorLog(tmp_path / "diary.jsonl")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        door = f'[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:{port}"\n'
        with (
            gated_node(tmp_path / "node", diary, GATED + door + passkey("ada", ada, "*")) as node,
            Client(node) as client,
        ):
            demand = client.held("plant.fire", {})
            assert demand["approval_url"].startswith(f"http://127.0.0.1:{port}/")
            place = Place(node, diary, {"ada": ada})
            status, said = place.ask("GET", f"/approvals/{demand['confirmation_id']}/passkey")
            assert (status, said["details"]["reason"]) == (403, "party")
            which = f"{demand['aggregator_id']}\n{demand['confirmation_id']}\n{demand['nonce']}".encode()
            signed = bytes.fromhex(demand["call_digest"]) + hashlib.sha256(which).digest()
            signed += int(time.time()).to_bytes(8) + bytes(16)
            assert place.refused(demand, ada.sign(b64(signed))) == "party"
            assert node.admin("/admin/passkeys", "POST", {"name": "ada"})["error"] == "no_passkeys_here"
    assert "localhost" in (tmp_path / "node" / "stderr.txt").read_text()


class Making:
    """`interlock` as it waits for a passkey, and the address it printed."""

    def __init__(self, node: RunningNode, *words: str) -> None:
        command = [sys.executable, "-m", "interlock", *words, "--config", str(node.config), "--data", str(node.data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.url = self.process.stderr.readline().split()[-1]

    def enrol(self, made: Authenticator) -> Any:
        """As the page does."""
        where = urlsplit(self.url)
        made.origin = f"{where.scheme}://{where.netloc}"
        with closing(http.client.HTTPConnection("127.0.0.1", where.port, timeout=20)) as connection:
            connection.request("GET", where.path, headers={"accept": "text/html"})
            page = connection.getresponse().read().decode()
            asked = json.loads(unescape(page.split('data-asked="')[1].split('"')[0]))
            body = json.dumps(made.make(asked["challenge"]))
            connection.request("POST", where.path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def ended(self) -> tuple[int, str, str]:
        with self.process:
            out, remarks = self.process.communicate(timeout=20)
        return self.process.returncode, out, remarks


def test_a_passkey_is_made_by_command_and_browser_and_counts_once_enrolled(tmp_path: Path) -> None:
    diary, ada, bob = ActuatorLog(tmp_path / "diary.jsonl"), Authenticator("ed25519"), Authenticator("es256")
    with gated_node(tmp_path / "node", diary, GATED + anchor("key", ADA, "*")) as node, Client(node) as client:
        making = Making(node, "access", "passkey", "ada", "--approves", "plant.*")
        status, said = making.enrol(ada)
        assert (status, said["passkey"]) == (200, ada.text())
        code, printed, remarks = making.ended()
        assert (code, said["thumbprint"] in remarks) == (0, True)
        assert tomllib.loads(printed) == {"anchor": [{"name": "ada", "passkey": ada.text(), "approves": ["plant.*"]}]}
        demand = client.held("plant.fire", {"n": 1})
        place = Place(node, diary, {"ada": ada, "bob": bob})
        assert place.ask("GET", f"/approvals/{demand['confirmation_id']}/passkey")[0] == 403
        with node.config.open("a") as file:
            file.write(printed)
        making = Making(node, "init", "--passkey", "--key", "bob")
        making.enrol(bob)
        code, _, remarks = making.ended()
        assert code == 0, remarks
        _, *anchors = tomllib.loads(node.config.read_text())["anchor"]
        assert [(one["name"], one["passkey"]) for one in anchors] == [("ada", ada.text()), ("bob", bob.text())]
        wait_for(lambda: len(node.admin("/admin/config")["anchor"]) == 3)
        assert place.ask("GET", f"/approvals/{demand['confirmation_id']}/passkey")[0] == 403
        enrol_waiting(node, "ada", "bob")
        status, said = place.approve(demand, bob.sign(place.asked(demand)))
        assert (status, said["decision"]["proof"]["anchor"]) == (200, "bob")
        again = node.cli("init", "--passkey", "--key", "bob")
        assert (again.returncode, "already" in again.stderr) == (1, True)


def test_without_a_node_init_writes_the_file_and_says_what_comes_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "interlock", "init", "--passkey", "--data", str(tmp_path / "data")]
    here: dict[str, Any] = {"cwd": tmp_path, "env": dict(os.environ)}
    done = subprocess.run(command, **here, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "interlock init --passkey" in done.stdout
    assert "anchor" not in tomllib.loads((tmp_path / "interlock.toml").read_text())
    again = subprocess.run(command, **here, capture_output=True, text=True, timeout=30, check=False)
    assert again.returncode == 4
    assert "interlock serve" in again.stderr


def _client_token(place: Place, name: str) -> str:
    made = place.node.cli("access", "token", "--for", "client", "--name", name, "--json")
    return str(json.loads(made.stdout)["token"])

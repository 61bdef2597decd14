"""In a real browser: does a person make a passkey, read what will happen, and release exactly that?"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gate.browser import Browser, Tab, browsing, find_chromium
from tests.gate.certificate import certify
from tests.gate.held_calls import ADA, GATED, ActuatorLog, Client, anchor, enrol_waiting, gated_node
from tests.support.node_process import RunningNode, wait_for

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install chromium (make test does, where it may)"),
    pytest.mark.timeout(120),  # a browser starts slowly beside seven others
]

VOUCHING = anchor("key", ADA, "*")  # vouches for the passkey
HOSTILE = {
    "path": "</pre><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "\u202eeman": "\u200b",
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(CHROMIUM or "", tmp_path_factory.mktemp("browser")) as started:
        yield started


class Place:
    def __init__(self, node: RunningNode, diary: ActuatorLog, tab: Tab, authenticator: str) -> None:
        self.node, self.diary, self.tab, self.authenticator = node, diary, tab, authenticator

    def ran(self, arguments: Any) -> int:
        return [entry["arguments"] for entry in self.diary.read("fire")].count(arguments)

    def shows(self, status: str) -> None:
        self.tab.wait(f"document.getElementById('approval')?.dataset.status === '{status}'")

    def verifies(self, yes: bool) -> None:
        self.tab.do("WebAuthn.setUserVerified", authenticatorId=self.authenticator, isUserVerified=yes)


def operator_token(node: RunningNode) -> str:
    made = node.cli("access", "token", "--for", "operator", "--name", "me", "--json")
    return str(json.loads(made.stdout)["token"])


def enrol(node: RunningNode, tab: Tab, name: str = "ada") -> str:
    """As a person does it: the command prints an address, the browser makes the passkey. Gives what is printed."""
    words = ["access", "passkey", name, "--config", str(node.config), "--data", str(node.data)]
    command = subprocess.Popen(
        [sys.executable, "-m", "interlock", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with command:
        assert command.stderr is not None
        tab.open(command.stderr.readline().split()[-1])
        tab.click("#make")
        tab.wait("document.getElementById('made')")
        printed, remarks = command.communicate(timeout=20)
    thumbprint = tab.value("document.querySelector('#made code').textContent")
    assert thumbprint in remarks
    return printed


def configure(node: RunningNode, printed: str) -> None:
    with node.config.open("a") as file:
        file.write(printed)
    wait_for(lambda: any(one["passkey"] for one in node.admin("/admin/config")["anchor"]))
    enrol_waiting(node, "ada")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("page")
    diary = ActuatorLog(folder / "diary.jsonl")
    with gated_node(folder / "node", diary, GATED + VOUCHING) as node, browser.tab(operator_token(node)) as tab:
        authenticator = tab.authenticator()
        printed = enrol(node, tab)
        assert printed.startswith('[[anchor]]\nname = "ada"\npasskey = "')
        configure(node, printed)
        yield Place(node, diary, tab, authenticator)


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    with Client(place.node) as made:
        yield made


@pytest.mark.req("AX-11.3-6")
def test_a_person_releases_a_call_with_the_passkey_they_made(place: Place, client: Client) -> None:
    arguments = {"target": "boiler 3", "seconds": 12}
    demand = client.held("plant.fire", arguments)
    tab = place.tab
    tab.open(demand["approval_url"])
    shown = tab.text()
    for said in (
        "local wants to call",
        "plant.fire",
        "cannot be undone",
        '"target": "boiler 3"',
        "plant / fire",
        "left",
    ):
        assert said in shown
    assert demand["call_digest"] in shown
    tab.click("#passkey")
    place.shows("approved")
    assert place.ran(arguments) == 0
    decided = place.node.admin(f"/approvals/{demand['confirmation_id']}")["decision"]
    assert (decided["by"], decided["proof"]["anchor"], decided["proof"]["type"]) == (
        "operator:me",
        "ada",
        "operator_signature",
    )
    assert client.call("plant.fire", arguments)["structuredContent"] == {"did": "fire"}
    assert place.ran(arguments) == 1
    place.shows("done")
    assert "The arguments are erased" in tab.text()


def test_without_the_person_verified_nothing_is_approved_and_the_page_says_so(place: Place, client: Client) -> None:
    demand = client.held("plant.fire", {"n": "unverified"})
    place.tab.open(demand["approval_url"])
    place.verifies(False)
    try:
        place.tab.click("#passkey")
        place.tab.wait("document.getElementById('told').textContent.startsWith('Nothing was approved')")
    finally:
        place.verifies(True)
    assert place.node.admin(f"/approvals/{demand['confirmation_id']}")["status"] == "pending"
    place.tab.click("#passkey")
    place.shows("approved")


def test_an_open_page_follows_what_happens_elsewhere_and_denying_takes_one_click(place: Place, client: Client) -> None:
    for decide in ("elsewhere", "here"):
        demand = client.held("plant.fire", {"n": decide})
        place.tab.open(demand["approval_url"])
        if decide == "here":
            place.tab.click("button[value=deny]")
        else:
            place.node.admin(f"/approvals/{demand['confirmation_id']}", "POST", {"decision": "deny", "reason": "no"})
        place.shows("denied")
        assert "Nothing ran" in place.tab.text()


def test_a_tool_nobody_classified_is_named_before_the_passkey_is_asked(place: Place, client: Client) -> None:
    demand = client.held("plant.silent", {})
    place.tab.open(demand["approval_url"])
    place.tab.click("#passkey")
    assert place.tab.value("document.querySelector('form:has(#passkey) select').validity.valid") is False
    place.tab.value("document.querySelector('form:has(#passkey) select').value = 'read_only'")
    place.tab.click("#passkey")
    place.tab.wait("document.body.innerText.includes('remembered')")
    # A moment long the tool is being listed anew, and the caller is told to call again.
    done = wait_for(lambda: client.ask("tools/call", {"name": "plant.silent", "arguments": {}}).get("result"))
    assert done["structuredContent"] == {"did": "silent"}, (demand, done)


def test_nothing_a_caller_wrote_acts_on_the_page(place: Place, client: Client) -> None:
    demand = client.held("plant.fire", HOSTILE)
    place.tab.open(demand["approval_url"])
    place.tab.wait("document.getElementById('left').textContent.endsWith(' left')")  # our own script has run
    assert place.tab.value("document.title") == "A call of plant.fire · Interlock"
    assert place.tab.value("document.images.length") == 0
    assert HOSTILE["path"] in json.loads(place.tab.value("document.querySelector('pre').textContent"))["path"]
    assert "\\u202eeman" in place.tab.text()


def test_an_address_is_no_name_so_the_page_there_leads_to_where_the_passkey_works(place: Place, client: Client) -> None:
    demand = client.held("plant.fire", {"n": "address"})
    place.tab.open(demand["approval_url"].replace("localhost", "127.0.0.1"))
    assert place.tab.value("document.querySelector('form:has(#passkey)').hidden") is True
    assert place.tab.value("document.querySelector('#elsewhere a').href") == demand["approval_url"]


def test_a_device_without_the_passkey_approves_nothing(place: Place, client: Client, browser: Browser) -> None:
    demand = client.held("plant.fire", {"n": "stranger"})
    with browser.tab(operator_token(place.node)) as tab:
        tab.authenticator()
        tab.open(demand["approval_url"])
        tab.click("#passkey")
        tab.wait("document.getElementById('told').textContent.startsWith('Nothing was approved')")
    assert place.node.admin(f"/approvals/{demand['confirmation_id']}")["status"] == "pending"


def test_a_copy_of_a_passkey_is_found_out_by_its_counter(place: Place, client: Client, browser: Browser) -> None:
    used = client.held("plant.fire", {"n": "original"})
    place.tab.open(used["approval_url"])
    place.tab.click("#passkey")
    place.shows("approved")
    (kept,) = place.tab.do("WebAuthn.getCredentials", authenticatorId=place.authenticator)["credentials"]
    assert kept["signCount"] > 1
    demand = client.held("plant.fire", {"n": "copy"})
    with browser.tab(operator_token(place.node)) as tab:
        copy = tab.authenticator()
        tab.do("WebAuthn.addCredential", authenticatorId=copy, credential=kept | {"signCount": 0})
        tab.open(demand["approval_url"])
        tab.click("#passkey")
        tab.wait("document.querySelector('.error')?.textContent.includes('counts backwards')")
    assert place.node.admin(f"/approvals/{demand['confirmation_id']}")["status"] == "pending"


def test_a_clients_token_opens_no_page(place: Place, client: Client, browser: Browser) -> None:
    demand = client.held("plant.fire", {"n": "client"})
    made = place.node.cli("access", "token", "--for", "client", "--name", "agent", "--json")
    with browser.tab(str(json.loads(made.stdout)["token"])) as tab:
        tab.open(demand["approval_url"])
        assert "plant.fire" not in tab.text()
        assert tab.value("document.getElementById('approval')") is None


def test_an_invitation_makes_one_passkey_and_none_where_the_node_knows_a_passkey(place: Place) -> None:
    made = place.node.admin("/admin/passkeys", "POST", {"name": "again"})
    place.tab.open(made["url"])
    place.tab.click("#make")
    place.tab.wait("document.getElementById('told').textContent.includes('knows already')")


def test_over_https_it_works_the_same(tmp_path: Path, browser: Browser) -> None:
    certificate, key = certify(tmp_path, "localhost")
    door = (
        f'[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
        f"tls_cert = {json.dumps(str(certificate))}\ntls_key = {json.dumps(str(key))}\n"
    )
    diary = ActuatorLog(tmp_path / "diary.jsonl")
    with (
        gated_node(tmp_path / "node", diary, GATED + VOUCHING + door) as node,
        browser.tab(operator_token(node)) as tab,
    ):
        tab.do("Security.setIgnoreCertificateErrors", ignore=True)
        tab.authenticator()
        configure(node, enrol(node, tab))
        asked = node.admin("/admin/tools/plant.silent/classify", "POST")
        assert asked["url"].startswith("https://localhost:")
        tab.open(asked["url"])
        tab.value("document.querySelector('form:has(#passkey) select').value = 'irreversible'")
        tab.click("#passkey")
        tab.wait("document.body.innerText.includes('remembered')")
        assert node.admin(f"/approvals/{asked['id']}")["decision"]["proof"]["anchor"] == "ada"

"""From a fresh node to an approved call in a real browser: log in, become the first approver, add a passkey, approve.

The node runs on a terminal of its own, as a person's does: its setup code is shown there and nowhere else.
"""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from playwright.sync_api import Error as PlaywrightError
from tests import preloaded
from tests.gate.held_calls import BOB, GATED, ActuatorLog, Client, actuator_table, anchor
from tests.operator.processes.console.conftest import Passkey, go
from tests.support import intervals
from tests.support.node_process import SOONER, RunningNode, _ask_status, wait_for, write_config

PASSPHRASE = "correct horse"
WITHIN_S = 30.0
pytestmark = pytest.mark.timeout(120)


class Terminal:
    """What a node writes on the terminal it was started on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self.text = descriptor, ""

    def wait(self, pattern: str) -> str:
        deadline = time.monotonic() + WITHIN_S
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, self.text
            if select.select([self._descriptor], [], [], 0.2)[0]:
                self.text += os.read(self._descriptor, 65536).decode("utf-8", "replace")
        return found[1]


@contextmanager
def on_terminal(folder: Path, diary: ActuatorLog) -> Iterator[tuple[RunningNode, Terminal]]:
    data, config = folder / "data", write_config(folder, {"plant": actuator_table(diary)}, GATED)
    command = [sys.executable, "-m", "interlock", "serve", "--config", str(config), "--data", str(data)]
    settings = preloaded.settings({**SOONER, intervals.SCRYPT_N: 2**12})
    env = {**os.environ, **settings, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    ours, theirs = pty.openpty()
    with (folder / "stderr.txt").open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=errors, env=env)
    os.close(theirs)
    try:
        node = RunningNode(process, _ask_status(process, data, folder), data, config)
        node.wait_link("plant", {"state": "ready"})
        yield node, Terminal(ours)
    finally:
        process.terminate()
        process.wait(timeout=20)
        os.close(ours)


class Visit:
    def __init__(self, node: RunningNode, terminal: Terminal, context: BrowserContext) -> None:
        self.node, self.terminal, self.context = node, terminal, context
        self.page = context.new_page()
        self.origin = f"http://localhost:{urlsplit(node.operator_url).port}"

    def log_in(self) -> str:
        url = str(json.loads(self.node.cli("open", "--json").stdout)["url"])
        self.page.goto(url)
        self.page.wait_for_url(lambda at: at.endswith("/"))
        return url

    def go(self, path: str) -> None:
        go(self.page, f"{self.origin}{path}")

    def approvers(self) -> dict[str, Any]:
        return {one["name"]: one for one in self.node.admin("/admin/approvers")["approvers"]}

    def status(self, demand: Any) -> str:
        return str(self.node.admin(f"/approvals/{demand['confirmation_id']}")["status"])


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Visit]:
    folder = tmp_path_factory.mktemp("visit")
    with (
        on_terminal(folder, ActuatorLog(folder / "diary.jsonl")) as (node, terminal),
        browser.new_context(viewport={"width": 1000, "height": 800}) as context,
    ):
        context.set_default_timeout(15_000)
        yield Visit(node, terminal, context)
        for page in context.pages:  # one that reloads itself cannot always be closed
            with suppress(PlaywrightError):
                page.goto("about:blank", timeout=5_000)


def test_a_login_link_logs_one_browser_in_and_is_refused_the_second_time(visit: Visit, browser: Browser) -> None:
    url = visit.log_in()
    expect(visit.page.locator("#live[data-state=live]")).to_be_visible()
    with browser.new_context() as other:
        page = other.new_page()
        page.goto(url)
        expect(page.locator("#told")).to_contain_text("You are not logged in: this link was used")


def test_a_configured_key_that_waits_is_enrolled_with_the_code(visit: Visit) -> None:
    before = visit.node.config.read_text()
    visit.node.config.write_text(before + anchor("bob", BOB, "*"))
    id = wait_for(lambda: visit.approvers().get("bob", {}).get("approval_id"))
    page = visit.page
    visit.go("/approvers")
    page.click("text=enrol it")
    expect(page.locator("#bycode")).to_contain_text("Setup code")
    assert page.url.endswith(f"/approvals/{id}")
    code = visit.terminal.wait(r"Setup code for the first approver: ([0-9A-Z-]+)")
    for path in ("/approvers", f"/approvals/{id}", "/", "/access"):  # what an agent with a shell opens too
        visit.go(path)
        page.wait_for_load_state()
        assert code not in page.content() and code.replace("-", "") not in page.content()
    visit.go(f"/approvals/{id}")
    page.fill("#bycode [name=code]", "AAAA-AAAA")
    page.click("#bycode button")
    expect(page.locator("body")).to_contain_text("the setup code is another")
    visit.go("/")
    visit.node.config.write_text(before)
    wait_for(lambda: visit.approvers() == {})


def test_the_first_approver_takes_the_code_of_the_terminal(visit: Visit) -> None:
    code = visit.terminal.wait(r"Setup code for the first approver: ([0-9A-Z-]+)")
    page = visit.page
    visit.go("/approvers")
    page.fill("#first [name=name]", "ada")
    page.fill("#first [name=passphrase]", PASSPHRASE)
    page.fill("#first [name=again]", PASSPHRASE)
    page.fill("#first [name=code]", "AAAA-AAAA")
    page.click("#first button")
    expect(page.locator("#told")).to_contain_text("the setup code is another")
    assert visit.approvers() == {}
    page.fill("#first [name=code]", code.lower())
    page.click("#first button")
    expect(page.locator("#approvers table")).to_contain_text("setup_code")
    assert (visit.approvers()["ada"]["approves"], visit.approvers()["ada"]["how"]) == (["*"], "setup_code")


def test_a_passkey_is_added_with_the_passphrase_of_the_key(visit: Visit) -> None:
    page = visit.page
    visit.go("/approvers")
    Passkey(page)
    page.fill("#passkey [name=name]", "phone")
    page.fill("#passkey [name=passphrase]", "a guess")
    page.click("#passkey button")
    expect(page.locator("#told")).to_contain_text("cannot be opened with this passphrase")
    assert "phone" not in visit.approvers()
    page.fill("#passkey [name=passphrase]", PASSPHRASE)
    page.click("#passkey button")
    expect(page.locator("#approvers table")).to_contain_text("phone")
    assert (visit.approvers()["phone"]["how"], visit.approvers()["phone"]["by"]) == ("proof", "ada")
    assert visit.node.admin("/approvals?kind=enrolment")["approvals"] == []


def test_a_held_call_is_approved_with_the_passkey_and_runs(visit: Visit) -> None:
    with Client(visit.node) as client:
        demand = client.held("plant.fire", {"n": "passkey"})
        visit.go(f"/approvals/{demand['confirmation_id']}")
        visit.page.click("#passkey")
        expect(visit.page.locator("#approval[data-status=approved]")).to_be_visible()
        decided = visit.node.admin(f"/approvals/{demand['confirmation_id']}")["decision"]
        assert (decided["proof"]["anchor"], decided["by"].partition(":")[0]) == ("phone", "browser")
        assert client.call("plant.fire", {"n": "passkey"})["structuredContent"] == {"did": "fire"}


def test_a_held_call_is_approved_with_the_key_and_not_with_another_passphrase(visit: Visit) -> None:
    page = visit.page
    with Client(visit.node) as client:
        demand = client.held("plant.fire", {"n": "key"})
        visit.go(f"/approvals/{demand['confirmation_id']}")
        page.fill("#passphrase", "a guess")
        page.click("#bykey button:not([type])")
        expect(page.locator("#told")).to_contain_text("cannot be opened with this passphrase")
        assert visit.status(demand) == "pending"
        page.fill("#passphrase", PASSPHRASE)
        page.click("#bykey button:not([type])")
        expect(page.locator("#approval[data-status=approved]")).to_be_visible()
        decided = visit.node.admin(f"/approvals/{demand['confirmation_id']}")["decision"]
        assert (decided["proof"]["anchor"], decided["proof"]["type"]) == ("ada", "operator_signature")
        assert client.call("plant.fire", {"n": "key"})["structuredContent"] == {"did": "fire"}
    written = b"".join(path.read_bytes() for path in visit.node.data.rglob("*") if path.is_file())
    assert PASSPHRASE.encode() not in written + (visit.node.data.parent / "stderr.txt").read_bytes()


def test_tools_are_classified_in_one_table_with_one_signature(visit: Visit) -> None:
    page, before = visit.page, visit.node.admin("/admin/classification")["tools"]
    assert [one["tool"] for one in before if one["is_open"]] == ["plant.silent"]
    visit.go("/tools")
    page.click("text=Classify all at once")
    table = page.locator("#classes")
    for number, one in enumerate(before):
        expect(table).to_contain_text(one["tool"])
        page.select_option(f"#class-{number}", "read_only" if one["tool"] == "plant.silent" else "")
    for typed, told in ((" a guess", "cannot be opened with this passphrase"), (PASSPHRASE, "1 tool classified")):
        page.fill("main input[type=password]", typed)
        page.click("text=Sign with the key")
        expect(page.locator("main .told[role=status]")).to_contain_text(told)
    expect(page.locator("main")).not_to_contain_text("plant.silent")
    wait_for(lambda: visit.node.admin("/admin/status")["gate"]["unclassified"] == 0)
    (said,) = [
        one for one in visit.node.admin("/admin/audit?limit=50")["records"] if one["method"] == "approvals/classify"
    ]
    assert (said["answer"], said["anchor"], said["who"].partition(":")[0]) == ("read_only", "ada", "browser")


def test_forms_sent_by_another_page_are_refused(visit: Visit) -> None:
    """From another site and from another port of the same host, with the person's browser and cookie."""
    with Client(visit.node) as client:
        demand = client.held("plant.fire", {"n": "foreign"})
    target = f"{visit.origin}/approvals/{demand['confirmation_id']}"
    form = f'<form method=post action="{target}"><input name=decision value=deny></form>'

    for origin in ("https://evil.example", "http://localhost:9"):
        page: Page = visit.context.new_page()
        page.route(f"{origin}/", lambda route: route.fulfill(body=form, content_type="text/html"))
        page.goto(f"{origin}/")
        with page.expect_response(target) as answered:
            page.evaluate("document.forms[0].submit()")
        assert answered.value.status in (401, 403)
    assert visit.status(demand) == "pending"


def test_a_revoked_session_sees_nothing_more(visit: Visit) -> None:
    page = visit.page
    visit.go("/")
    sent = "{headers: {'X-Interlock-Session': localStorage.getItem('interlock-session')}}"
    own = page.evaluate(f"fetch('/session', {sent}).then((one) => one.json())")["principal"].partition(":")[2]
    listed = json.loads(visit.node.cli("access", "list", "--json").stdout)["tokens"]
    (session,) = [one["id"] for one in listed if one["id"].startswith(own)]
    assert visit.node.cli("access", "revoke", session).returncode == 0
    page.reload()
    expect(page.locator("#sign-in")).to_be_visible()
    assert page.evaluate("fetch('/admin/status').then((one) => one.status)") == 401

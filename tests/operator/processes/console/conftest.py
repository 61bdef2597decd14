"""One node and one browser for the tests of a file, with a person who is logged in and has a passkey.

Playwright keeps an event loop running in the thread of the tests: no longer than a file, or no other test has one."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from tests.gate.browser import find_chromium
from tests.gate.held_calls import ADA, GATED, anchor, enrol_waiting
from tests.operator.garden_server import command
from tests.support.node_process import RunningNode, running_node, wait_for

WITHIN_MS = 20_000  # what a page does at once takes longer on a busy machine
OPENS_WITHIN_S = 20.0  # a page that reloads itself may interrupt some attempts
expect.set_options(timeout=WITHIN_MS)
PICTURES = os.environ.get("INTERLOCK_PICTURES")  # a folder: `make pictures` writes those of docs/console.md there
DEAD = [sys.executable, "-c", "import sys; sys.exit('no garden at /dev/ttyUSB7')"]
NAMED = '[node]\nname = "home"\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
SOONER = {"interlock.node.node_operations:LOOK_S": 0.1}  # than a user's node looks for changes
AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


class Passkey:
    """An authenticator that a test holds in its hand. It belongs to one tab."""

    def __init__(self, page: Page) -> None:
        self._devtools: CDPSession = page.context.new_cdp_session(page)
        self._devtools.send("WebAuthn.enable")
        made = self._devtools.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})
        self._id = {"authenticatorId": made["authenticatorId"]}

    def knows_its_person(self, is_verified: bool) -> None:
        self._devtools.send("WebAuthn.setUserVerified", {**self._id, "isUserVerified": is_verified})

    def move_to(self, other: "Passkey") -> None:
        """What it holds is from now on in another tab; a copy would be found out by its counter."""
        for credential in self._devtools.send("WebAuthn.getCredentials", self._id)["credentials"]:
            other._devtools.send("WebAuthn.addCredential", {**other._id, "credential": credential})
        self._devtools.send("WebAuthn.clearCredentials", self._id)


def go(page: Page, url: str) -> None:
    """Open a page by way of an empty one, because a page that reloads itself after a decision would come back."""
    deadline = time.monotonic() + OPENS_WITHIN_S
    while True:
        try:
            page.goto("about:blank")
            page.goto(url)
            return
        except PlaywrightError:
            # A reload interrupts either step. It has to end first, or it interrupts the next attempt as well.
            if time.monotonic() > deadline:
                raise
            with suppress(PlaywrightError):
                page.wait_for_load_state()


class Console:
    """A person at the console of a node."""

    def __init__(self, node: RunningNode, diary: Path, page: Page) -> None:
        self.node, self.diary, self.page = node, diary, page
        self.url = page.url.removesuffix("/")
        self.complaints: list[str] = []
        self.passkey = Passkey(page)
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, path: str) -> Page:
        go(self.page, self.url + path)
        self.page.wait_for_selector("#live[data-state=live]")
        return self.page

    def picture(self, name: str) -> None:
        if PICTURES is not None:
            self.page.screenshot(path=str(Path(PICTURES) / f"{name}.png"))

    def did(self) -> list[Any]:
        return [json.loads(line) for line in self.diary.read_text().splitlines()] if self.diary.exists() else []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("NO BROWSER: install chromium (make test does, where it may)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("console")
    words = command(folder / "diary.jsonl")
    servers = {
        "garden": {"command": words[0], "args": words[1:]},
        "shed": {"command": DEAD[0], "args": DEAD[1:]},
    }
    with running_node(folder, servers, GATED + anchor("key", ADA, "*") + NAMED, settings=SOONER) as started:
        started.wait_link("garden", {"state": "ready"})
        yield started


def log_in(node: RunningNode, context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto(json.loads(node.cli("open", "--json").stdout)["url"])
    page.wait_for_url(lambda url: url.endswith("/"))
    return page


def enrol(node: RunningNode, page: Page) -> None:
    """A passkey that counts: made in this browser, written into the configuration, and vouched for."""
    invitation = node.admin("/admin/passkeys", "POST", {"name": "ada"})["url"]
    home = page.url
    page.goto(invitation)
    page.click("#make")
    page.wait_for_selector("#made")
    made = node.admin(f"/admin/passkeys/{invitation.rpartition('/')[2]}")["passkey"]
    with node.config.open("a") as file:
        file.write(f'\n[[anchor]]\nname = "ada"\npasskey = {json.dumps(made)}\napproves = ["*"]\n')
    wait_for(lambda: any(one["passkey"] for one in node.admin("/admin/config")["anchor"]))
    enrol_waiting(node, "ada")
    page.goto(home)


@pytest.fixture(scope="module")
def context(browser: Browser, node: RunningNode) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1000, "height": 680}, color_scheme="light") as made:
        made.set_default_timeout(WITHIN_MS)
        yield made


@pytest.fixture(scope="module")
def console(node: RunningNode, context: BrowserContext) -> Console:
    page = log_in(node, context)
    made = Console(node, node.data.parent / "diary.jsonl", page)
    enrol(node, page)
    return made

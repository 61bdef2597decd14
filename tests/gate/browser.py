"""A real browser with an authenticator that a test holds in its hand, driven over the DevTools protocol.

Chromium comes from the distribution (`make test` installs it where it may); without it the tests that need it are
skipped, and say so.
"""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

WITHIN_S = 30.0
TRIES = 6  # to open a page
POLL_S = 0.05
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1000,1100",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


class Tab:
    """One page. Whoever asks for a name and a password is given `token` as the password, as a person would."""

    def __init__(self, wire: ClientConnection, session: str, token: str | None) -> None:
        self._wire, self._session, self._token = wire, session, token
        self._ids = itertools.count(1)
        self.console: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")
        self.do("Fetch.enable", handleAuthRequests=True)
        self.do("WebAuthn.enable")

    def do(self, method: str, **params: Any) -> Any:
        sent = self._send(method, params)
        deadline = time.monotonic() + WITHIN_S
        while True:
            message = json.loads(self._wire.recv(timeout=deadline - time.monotonic()))
            if message.get("id") == sent:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self._heard(message)

    def value(self, expression: str) -> Any:
        """Of JavaScript in the page; promises are waited for."""
        done = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(done["exceptionDetails"])
        return done["result"].get("value")

    def open(self, url: str) -> None:
        """By way of an empty page, and again where the page before just renewed itself and won."""
        for there in ("about:blank", url):
            arrived = f"location.href === {json.dumps(there)} && document.readyState === 'complete'"
            for _ in range(TRIES):
                self.do("Page.navigate", url=there)
                if self._comes_true(arrived, WITHIN_S / TRIES):
                    break
            else:
                raise AssertionError(f"{there} does not open; there is: {self.text()}")

    def wait(self, expression: str) -> None:
        """Until it is true."""
        if not self._comes_true(expression, WITHIN_S):
            raise AssertionError(f"{expression} is not true of: {self.text()}")

    def _comes_true(self, expression: str, within_s: float) -> bool:
        """A page that is just being left cannot be asked, and is asked again."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                if self.value(f"Boolean({expression})"):
                    return True
            self._listen(POLL_S)
        return False

    def text(self) -> str:
        return str(self.value("document.body.innerText"))

    def click(self, selector: str) -> None:
        """With a real mouse: a passkey wants a person's gesture."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.do("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def authenticator(self, **more: Any) -> str:
        """One that verifies its user, as a phone or a laptop does."""
        options = {
            "protocol": "ctap2",
            "transport": "internal",
            "hasResidentKey": True,
            "hasUserVerification": True,
            "isUserVerified": True,
            "automaticPresenceSimulation": True,
        }
        return str(self.do("WebAuthn.addVirtualAuthenticator", options=options | more)["authenticatorId"])

    def _send(self, method: str, params: dict[str, Any]) -> int:
        number = next(self._ids)
        self._wire.send(json.dumps({"id": number, "method": method, "params": params, "sessionId": self._session}))
        return number

    def _listen(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while (left := deadline - time.monotonic()) > 0:
                self._heard(json.loads(self._wire.recv(timeout=left)))

    def _heard(self, message: dict[str, Any]) -> None:
        said = message.get("params", {})
        match message.get("method"):
            case "Fetch.requestPaused":
                self._send("Fetch.continueRequest", {"requestId": said["requestId"]})
            case "Fetch.authRequired":
                asked_before = said["request"]["headers"].get("Authorization")
                give = self._token is not None and not asked_before
                answer = {"response": "ProvideCredentials", "username": "me", "password": self._token}
                answer = answer if give else {"response": "CancelAuth"}
                self._send("Fetch.continueWithAuth", {"requestId": said["requestId"], "authChallengeResponse": answer})
            case "Log.entryAdded":
                self.console.append(said["entry"]["text"])


class Browser:
    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self._ids = itertools.count(-1, -1)

    @contextlib.contextmanager
    def tab(self, token: str | None = None) -> Iterator[Tab]:
        """In a profile of its own: what one tab was told, no other knows."""
        profile = self._do("Target.createBrowserContext")["browserContextId"]
        target = self._do("Target.createTarget", url="about:blank", browserContextId=profile)["targetId"]
        session = self._do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            yield Tab(self._wire, session, token)
        finally:
            self._do("Target.disposeBrowserContext", browserContextId=profile)

    def _do(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        self._wire.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._wire.recv(timeout=WITHIN_S))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]


@contextlib.contextmanager
def browsing(program: str, folder: Path) -> Iterator[Browser]:
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
        )
    try:
        port, path = _address(folder / "profile" / "DevToolsActivePort", process)
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as wire:
            yield Browser(wire)
    finally:
        process.terminate()
        process.wait(timeout=WITHIN_S)


def _address(file: Path, process: "subprocess.Popen[bytes]") -> tuple[str, str]:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            port, path = file.read_text().split("\n")[:2]
            return port, path
        time.sleep(POLL_S)
    raise AssertionError(f"the browser did not start: {(file.parents[1] / 'chromium.log').read_text()[-2000:]}")

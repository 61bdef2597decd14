"""Does a login link let one browser in, once, as far as the machine's own socket reaches, and can it be taken back?"""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.node_process import RunningNode, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    beat = {"interlock.operator.endpoint:BEAT_S": 1.0}
    with running_node(tmp_path_factory.mktemp("login"), {}, settings=beat) as started:
        yield started


class Page:
    """What a browser sends to the operator endpoint from one of its own pages."""

    def __init__(self, node: RunningNode) -> None:
        there = urlsplit(node.operator_url)
        self.host, self.port = there.hostname or "", there.port or 0
        self.cookie = ""
        self.key = ""
        self.set_cookie = ""

    def send(self, method: str, path: str, body: Any = None, **headers: str | None) -> tuple[int, Any]:
        sent: dict[str, str | None] = {"accept": "application/json", "sec_fetch_site": "same-origin"}
        sent |= {"origin": f"http://{self.host}:{self.port}", "cookie": self.cookie, "x_interlock_session": self.key}
        if body is not None:
            sent["content_type"] = "application/json"
        named = {name.replace("_", "-"): text for name, text in (sent | headers).items() if text}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=10)) as connection:
            connection.request(method, path, data, named)
            answer = connection.getresponse()
            raw = answer.read()
            self.set_cookie = answer.headers.get("set-cookie") or ""
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(raw) if is_json else raw.decode()

    def log_in(self, url: str) -> tuple[int, Any]:
        status, said = self.send("POST", "/login", {"ticket": urlsplit(url).fragment})
        if status == 200:
            (one,) = SimpleCookie(self.set_cookie).values()
            self.cookie, self.key = f"{one.key}={one.value}", said["key"]
        return status, said


def link(node: RunningNode) -> str:
    return str(json.loads(node.cli("open", "--json").stdout)["url"])


@pytest.fixture
def page(node: RunningNode) -> Page:
    made = Page(node)
    assert made.log_in(link(node))[0] == 200
    return made


def test_a_link_lets_a_browser_in_once_as_viewer_and_admin(node: RunningNode) -> None:
    url = link(node)
    first, second = Page(node), Page(node)
    assert first.send("GET", "/login")[0] == 200  # what only looks at the link does not use it up
    status, said = first.log_in(url)
    assert (status, set(said["roles"])) == (200, {"viewer", "admin"})
    assert first.send("GET", "/session") == (200, said)
    assert first.send("GET", "/admin/status")[0] == 200
    status, said = second.log_in(url)
    assert (status, said["error"]) == (404, "login_over")
    assert second.send("GET", "/admin/status")[0] == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_ends(page: Page, node: RunningNode) -> None:
    page.log_in(link(node))
    parts = {part.strip().partition("=")[0].lower() for part in page.set_cookie.split(";")[1:]}
    assert {"httponly", "samesite", "max-age", "path"} <= parts
    assert "samesite=strict" in page.set_cookie.lower()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sec_fetch_site": "cross-site", "origin": "https://evil.example"}, "bad_origin"),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:9"}, "bad_origin"),
        ({"sec_fetch_site": None, "origin": None}, "bad_origin"),
        ({"x_interlock_session": None}, "session_key"),
        ({"x_interlock_session": "0" * 43}, "session_key"),
        ({"x_interlock_session": None, "content_type": "application/x-www-form-urlencoded"}, "session_key"),
    ],
)
def test_a_change_by_cookie_comes_from_the_nodes_own_page(page: Page, changes: dict[str, Any], error: str) -> None:
    body = {"name": "x", "for": "client"}
    status, said = page.send("POST", "/admin/tokens", body, **changes)
    assert (status, said["error"]) == (403, error)
    assert page.send("POST", "/admin/tokens", body)[0] == 201


@pytest.mark.parametrize("path", ["/session", "/admin/status", "/admin/events", "/admin/tokens", "/approvals/events"])
@pytest.mark.parametrize("accept", ["application/json", "text/html", "text/event-stream"])
def test_the_cookie_alone_is_good_for_nothing(page: Page, path: str, accept: str) -> None:
    """A browser sends it to every port of the host: another program there would have it."""
    status, said = page.send("GET", path, accept=accept, x_interlock_session=None)
    assert (status, said["error"]) == (403, "session_key")
    cookie = page.cookie.partition("=")[2]
    assert page.send("GET", path, accept=accept, x_interlock_session=cookie)[0] == 403


def test_the_cookie_alone_finds_no_approval(page: Page) -> None:
    for path in ("/approvals/a", "/approvals/0fce8822", "/approvals/0fce8822/passkey"):
        assert page.send("GET", path, accept="text/html", x_interlock_session=None)[0] == 403
    whole = "/approvals/0fce8822-1111-4111-8111-111111111111"
    assert page.send("GET", whole, accept="text/html", x_interlock_session=None)[0] == 404
    assert page.send("GET", whole, x_interlock_session=None)[0] == 403


def test_a_session_is_listed_revoked_and_makes_no_other(page: Page, node: RunningNode) -> None:
    status, said = page.send("POST", "/admin/logins")
    assert (status, said["error"]) == (403, "login_from_browser")
    own = page.send("GET", "/session")[1]["principal"].partition(":")[2]
    listed = json.loads(node.cli("access", "list", "--json").stdout)["tokens"]
    (session,) = [one for one in listed if one["id"].startswith(own)]
    assert (session["name"], session["door"]) == ("browser", "browser")
    assert 0 < _seconds_until(session["expires_at"]) <= 12 * 3600
    assert node.cli("access", "revoke", session["id"]).returncode == 0
    assert page.send("GET", "/session")[0] == 401


def test_logging_out_ends_this_session_alone(page: Page, node: RunningNode) -> None:
    other = Page(node)
    other.log_in(link(node))
    who = page.send("GET", "/session")[1]["principal"]
    assert page.send("DELETE", "/session")[0] == 200
    (record,) = [one for one in node.admin("/admin/audit?limit=1000")["records"] if one["who"] == who][1:]
    assert (record["method"], record["outcome"], record["token_for"]) == ("tokens/revoke", "revoked", "browser")
    assert (page.send("GET", "/session")[0], other.send("GET", "/session")[0]) == (401, 200)


def test_a_cookie_is_no_token_and_a_token_no_cookie(page: Page, node: RunningNode) -> None:
    name, _, value = page.cookie.partition("=")
    assert page.send("GET", "/admin/status", cookie=None, authorization=f"Bearer {value}")[0] == 401
    made = json.loads(node.cli("access", "token", "--for", "operator", "--name", "me", "--json").stdout)
    assert page.send("GET", "/admin/status", cookie=f"{name}={made['token']}")[0] == 401


def test_a_stream_ends_when_its_session_is_revoked(page: Page, node: RunningNode) -> None:
    with contextlib.closing(http.client.HTTPConnection(page.host, page.port, timeout=20)) as connection:
        connection.request("GET", "/approvals/events", headers={"cookie": page.cookie, "x-interlock-session": page.key})
        answer = connection.getresponse()
        assert answer.readline() == b": approvals\n"
        page.send("DELETE", "/session")
        assert answer.read().strip() == b""


def test_without_a_browser_the_link_is_printed(node: RunningNode) -> None:
    for words in (("open", "--print"), ("open",)):
        printed = node.cli(*words, env={"PATH": "", "HOME": str(node.data)})
        assert printed.returncode == 0, printed.stderr
        url = urlsplit(printed.stdout.strip())
        assert (url.path, url.hostname) == ("/login", "localhost")
        assert len(url.fragment) >= 43
        assert "within a minute" in printed.stderr


def test_a_browser_is_announced_by_the_users_own_configuration_file(node: RunningNode, tmp_path: Path) -> None:
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/asked\n')
    program.chmod(0o700)
    opened = node.cli("open", env={"PATH": "/usr/bin:/bin", "BROWSER": f"{program} %s", "DISPLAY": ":9"})
    assert opened.returncode == 0, opened.stderr
    assert "#" not in opened.stdout
    deadline = time.monotonic() + 10
    while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    asked = Path((tmp_path / "asked").read_text().strip().removeprefix("file://"))
    assert asked.stat().st_mode & 0o077 == 0
    assert "/login#" in asked.read_text()


def _seconds_until(at: str) -> float:
    from datetime import UTC, datetime

    return (datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds()

"""Servers that want tokens, and the people who agree to them: what tests of OAuth towards servers are made of."""

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.servers.start import raw, serving
from tests.support.authority import Authority
from tests.support.node_process import Answer, RunningNode, Wire, wait_for

MARKERS = (b"marker-access", b"marker-refresh", b"marker-secret", b"marker-code")


class Page:
    """What a browser ends up with."""

    def __init__(self, status: int, text: str, url: str) -> None:
        self.status, self.text, self.url = status, text, url


@contextlib.contextmanager
def guarded_server(authority: Authority, *options: str, era: str = "both", port: int | None = None) -> Iterator[str]:
    """The URL of a server that wants tokens of this authorization server."""
    with serving(raw("echo", "--era", era, "--guard", authority.url, *options), port or 0) as url:
        yield url


def visit(url: str, user: str = "somebody") -> Page:
    """Open a page and agree to everything; follows the redirects as a browser does."""
    request = urllib.request.Request(url, headers={"x-user": user})
    try:
        with urllib.request.urlopen(request, timeout=20) as page:
            return Page(page.status, page.read().decode(), page.url)
    except urllib.error.HTTPError as refused:
        return Page(refused.code, refused.read().decode(), refused.url)


def query(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


def ask_for_page(node: RunningNode, segment: str) -> str:
    answer = node.admin(f"/admin/links/{segment}/authorize", "POST")
    assert "url" in answer, answer
    return str(answer["url"])


def give_consent(node: RunningNode, segment: str, user: str = "somebody") -> dict[str, Any]:
    """What an operator does: see that it is wanted, open the page, agree. The link, once it is ready."""
    wait_for_consent_request(node, segment)
    page = visit(ask_for_page(node, segment), user)
    assert page.status == 200, page.text
    return node.wait_link(segment, {"state": "ready"})


def wait_for_consent_request(node: RunningNode, segment: str) -> dict[str, Any]:
    """The link, once it says that a person has to agree."""
    return node.wait_link(segment, {"state": "unauthorised", "consent": True})


def wait_for_refusal(node: RunningNode, segment: str, *words: str) -> dict[str, Any]:
    """The link, once it is unauthorised for a reason with these words in it."""
    return wait_for(
        lambda: (
            (link := node.link(segment))["state"] == "unauthorised"
            and all(word in link["reason"] for word in words)
            and link
        )
    )


def call(node: RunningNode, tool: str, token: str | None = None, **options: Any) -> Answer:
    with Wire(node, token=token) as wire:
        return wire.modern("tools/call", {"name": tool, "arguments": {}}, **options)


def result_text(answer: Answer) -> str:
    message = answer.message
    assert "result" in message, message
    return str(message["result"]["content"][0]["text"])


def whoami(node: RunningNode, segment: str, token: str | None = None) -> str:
    return result_text(call(node, f"{segment}__whoami", token))


def refresh_count(authority: Authority) -> int:
    return sum(one["grant_type"] == "refresh_token" for one in authority.do("seen", of="token"))


def find_leaks(folder: Path, *more: bytes) -> list[str]:
    """Where below the folder a secret can be read."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(marker in path.read_bytes() for marker in (*MARKERS, *more))]

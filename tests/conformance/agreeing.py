"""The suite's auth/* scenarios: a node in front of a server that wants tokens, and somebody who agrees to everything.

The person is played by following redirects: from the page that the operator door names, to the authorization server,
and back to the node's callback. Scenarios of lies expect that the node refuses to go on, and says why.
"""

import json
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tests.support.node_process import RunningNode, running_node, wait_for

from mcp import Client, MCPError

SEGMENT = "harness"
TOLD: ContextVar[Mapping[str, str]] = ContextVar("told")  # by the suite, of the scenario that runs
TURNS_MAX = 4  # pages a person is sent to before they lose patience
CIMD = "https://conformance-test.local/client-metadata.json"  # the document the suite expects; it is never fetched
PREFIX = "auth/"

# The words by which the node says that it was lied to.
REFUSED: dict[str, tuple[str, str]] = {
    "auth/resource-mismatch": ("reason", "that of another resource"),
    "auth/metadata-issuer-mismatch": ("reason", "names another issuer"),
    "auth/iss-supported-missing": ("page", "did not come from the authorization server"),
    "auth/iss-wrong-issuer": ("page", "did not come from the authorization server"),
    "auth/iss-unexpected": ("page", "did not come from the authorization server"),
    "auth/iss-normalized": ("page", "did not come from the authorization server"),
    "auth/scope-retry-limit": ("reason", "asked for and not granted"),
}
STEPPING_UP = "auth/scope-step-up"


def server_table(url: str, scenario: str, folder: Path) -> dict[str, Any]:
    """[servers.harness]: what an operator would write for the scenario."""
    context = json.loads(TOLD.get().get("MCP_CONFORMANCE_CONTEXT") or "{}")
    auth: dict[str, Any] = {name: context[name] for name in ("client_id", "client_secret") if name in context}
    if scenario.startswith("auth/client-credentials"):
        auth["grant"] = "client_credentials"
    if "private_key_pem" in context:
        key = folder / "client.pem"
        key.write_text(context["private_key_pem"])
        auth["private_key"] = str(key)
    if scenario == "auth/basic-cimd":
        auth["client_id"] = CIMD
    return {"url": url} | ({"auth": auth} if auth else {})


@contextmanager
def node(url: str, scenario: str) -> Iterator[RunningNode]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = {SEGMENT: server_table(url, scenario, folder)}
        with running_node(folder, tables, announced=False) as running:
            yield running


def settled(running: RunningNode, restarts: int = -1) -> dict[str, Any]:
    """The link, once it is ready or says why not, for another reason than before so many restarts."""

    def look() -> Any:
        link = running.link(SEGMENT)
        if link["state"] in ("ready", "slow"):
            return link
        return link if link["state"] == "unauthorised" and link["restarts"] > restarts else None

    return dict(wait_for(look, 30.0))


def agree(running: RunningNode) -> tuple[int, str]:
    """Open the page the node asks for, and come back: what the callback shows."""
    answer = running.admin(f"/admin/links/{SEGMENT}/authorize", "POST")
    assert "url" in answer, answer
    request = urllib.request.Request(answer["url"], headers={"accept": "text/html"})
    try:
        with urllib.request.urlopen(request, timeout=20) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def authorised(running: RunningNode) -> None:
    """Agree until the server is content."""
    link = settled(running)
    for _ in range(TURNS_MAX):
        if link["state"] != "unauthorised":
            return
        status, page = agree(running)
        assert status == 200, page
        link = settled(running, link["restarts"])
    assert link["state"] != "unauthorised", link


def refused(running: RunningNode, scenario: str) -> None:
    where, words = REFUSED[scenario]
    link = settled(running)
    for _ in range(TURNS_MAX):
        assert link["state"] == "unauthorised", link
        if where == "reason" and words in link["reason"]:
            answer = running.admin(f"/admin/links/{SEGMENT}/authorize", "POST")
            assert scenario == "auth/scope-retry-limit" or answer.get("error") == "auth_failed", answer
            return
        status, page = agree(running)
        if where == "page":
            assert status == 400 and words in page, page
            assert running.link(SEGMENT)["state"] == "unauthorised"
            return
        link = settled(running, link["restarts"])
    raise AssertionError(link)


async def call(client: Client, running: RunningNode, scenario: str) -> None:
    tools = [tool.name for tool in (await client.list_tools()).tools]
    assert tools == ["test-tool"], tools
    for _ in range(TURNS_MAX):
        try:
            result = await client.call_tool("test-tool", {})
        except MCPError as error:
            assert scenario == STEPPING_UP and error.error.data["reason"] == "insufficient_scope", error
            status, page = agree(running)
            assert status == 200, page
            continue
        assert result.content[0].text == "test", result
        return
    raise AssertionError("the server was never content")


def run(url: str, scenario: str, drive: Callable[[str, Callable[[Client], Awaitable[None]]], None]) -> None:
    with node(url, scenario) as running:
        if scenario in REFUSED:
            refused(running, scenario)
        else:
            authorised(running)
            drive(f"{running.url}/mcp/only/{SEGMENT}", lambda client: call(client, running, scenario))
        kept = b"".join(path.read_bytes() for path in running.data.rglob("*") if path.is_file())
        assert not re.search(rb"test-token-\d|cc-token-\d|test-client-secret|conformance-test-secret", kept)

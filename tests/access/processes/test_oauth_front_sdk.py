"""Does a client that somebody else wrote, the one of the `mcp` SDK, find its way to a token and in?"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from tests.support.authority import Authority, authority, protected_node
from tests.support.node_process import RunningNode

from mcp import Client, MCPError

MODES = ["legacy", "2026-07-28", "auto"]
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


class Memory:
    """The SDK's TokenStorage."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


@pytest.fixture(scope="module")
def corp() -> Iterator[Authority]:
    with authority() as started:
        yield started


@pytest.fixture(scope="module")
def node(corp: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with protected_node(tmp_path_factory.mktemp("oauth"), corp) as started:
        yield started


@contextlib.asynccontextmanager
async def client(node: RunningNode, mode: str, path: str = "/mcp", **options: Any) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(timeout=20, **options) as http_client,
        Client(streamable_http_client(f"{node.url}{path}", http_client=http_client), mode=mode) as opened,
    ):
        yield opened


@pytest.mark.parametrize("mode", MODES)
async def test_the_sdk_client_comes_in_with_a_bearer(corp: Authority, node: RunningNode, mode: str) -> None:
    headers = {"authorization": f"Bearer {corp.token()}"}
    async with client(node, mode, headers=headers) as opened:
        assert "good__echo" in {tool.name for tool in (await opened.list_tools()).tools}
        assert (await opened.call_tool("good__echo", {"n": 1})).structured_content == {"n": 1}


@pytest.mark.parametrize("mode", MODES)
async def test_a_bad_bearer_keeps_it_out(corp: Authority, node: RunningNode, mode: str) -> None:
    headers = {"authorization": f"Bearer {corp.token(aud='https://other.example/mcp')}"}
    with pytest.raises((MCPError, httpx2.HTTPStatusError, ExceptionGroup)):
        async with client(node, mode, headers=headers) as opened:
            await opened.list_tools()


@pytest.mark.parametrize("path", ["/mcp", "/mcp/only/good"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_finds_its_way_from_nothing_to_a_token_and_to_a_wider_token(
    corp: Authority, node: RunningNode, mode: str, path: str
) -> None:
    """From the 401 to the metadata, the authorization server, a token; from the 403 to a token with more scope."""
    storage = Memory()
    provider = ClientCredentialsOAuthProvider(
        f"{node.url}{path}", storage, client_id=f"robot-{mode}", client_secret="x", issuer=corp.url
    )
    corp.do("reset")
    prefix = "" if "only" in path else "good__"
    async with client(node, mode, path, auth=provider) as opened:
        assert (await opened.call_tool(f"{prefix}exact", {})).is_error is False
        assert corp.do("granted") == ["read write"]
        assert (await opened.call_tool(f"{prefix}fail", {})).is_error
    assert corp.do("granted") == ["read write", "read write admin"]
    assert storage.tokens is not None

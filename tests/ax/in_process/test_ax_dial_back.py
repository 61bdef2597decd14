"""Where the node connects to for a subserver that asks for it, and where not (MCP-AX 3.1)."""

import asyncio
import uuid
from typing import Any, cast

import pytest

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax import endpoint as dial_back
from interlock.ax.endpoint import check_endpoint, find_addresses
from interlock.ax.protocol.messages import Register
from interlock.config.plan import AccessRule
from interlock.links.connector import ConnectFailed, Loss
from interlock.links.pipes import HttpPipe
from interlock.wire.refusal import Refusal

GUEST = RegistrantIdentity(principal="local")
NAMED = "http://sub.example.invalid:8080/mcp"


class _Session:
    register = Register(subserver_id=str(uuid.uuid4()), segment="plant", endpoint=NAMED)


class _Link:
    registration = _Session()


def _leads_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(None, None, None, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)


@pytest.mark.parametrize(
    "path",
    [
        "/mcp/../admin",
        "/mcp/..",
        "/mcp/%2e%2e/admin",
        "/mcp/.%2E/admin",
        "/mcp/%252e%252e/admin",
        "/mcp//admin",
        "/mcp/\\admin",
        "/mcp/..%2fadmin",
        "/mcp/a%5Cb",
    ],
)
async def test_a_path_that_leads_elsewhere_than_it_reads_is_refused(path: str) -> None:
    allowed = ("http://127.0.0.1:9/mcp/*",)
    request = Register(subserver_id=str(uuid.uuid4()), segment="plant", endpoint=f"http://127.0.0.1:9{path}")
    refused = await check_endpoint(request, allowed, GUEST)
    assert refused is not None
    assert refused.details == {"member": "endpoint"}
    assert await find_addresses("http://127.0.0.1:9/mcp/a.b/c%20d", allowed, GUEST) == ("127.0.0.1",)


@pytest.mark.req("AX-3.1-3")
async def test_a_name_that_leads_elsewhere_later_is_not_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = cast(Any, None)
    dialling = dial_back._CheckedConnector(
        cast(Any, _Link()), nothing, nothing, Loss(), dial_back.DialBack(GUEST, (NAMED,))
    )
    _leads_to(monkeypatch, "127.0.0.1")
    assert await dialling._find_address() == "127.0.0.1"
    _leads_to(monkeypatch, "127.0.0.1", "10.0.0.1")
    with pytest.raises(ConnectFailed, match="not dialled"):
        await dialling._find_address()


@pytest.mark.req("AX-3.1-3")
async def test_a_name_under_a_star_never_leads_into_a_private_network(monkeypatch: pytest.MonkeyPatch) -> None:
    star, asked = ("https://*.example.invalid/mcp",), "https://sub.example.invalid/mcp"
    _leads_to(monkeypatch, "1.1.1.1")
    assert await find_addresses(asked, star, GUEST) == ("1.1.1.1",)
    for private in ("10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1"):
        _leads_to(monkeypatch, "1.1.1.1", private)
        assert isinstance(await find_addresses(asked, star, GUEST), Refusal), private
    tunnelled = RegistrantIdentity(principal="local", rule=AccessRule(who=("*",), secure_by="a tunnel"))
    assert await find_addresses(NAMED, (NAMED,), tunnelled) == (), "what the operator names may move"


@pytest.mark.req("AX-3.1-3")
async def test_the_connection_goes_to_the_address_that_was_judged() -> None:
    came = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"host: sub.example.invalid" in await reader.readuntil(b"\r\n\r\n")
        came.set()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pipe = HttpPipe(cast(Any, _Owner()), f"http://sub.example.invalid:{port}/mcp", {}, 1 << 20, "127.0.0.1")
    try:
        pipe.send(b"{}", b"", None)
        await asyncio.wait_for(came.wait(), 10)
    finally:
        await pipe.close()
        server.close()
        await server.wait_closed()


class _Owner:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

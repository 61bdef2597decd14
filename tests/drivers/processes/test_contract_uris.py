"""A URI that arrives as input is compared with what its server's sandbox may have before it is forwarded."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tests.drivers.contract_node import ContractNode, LendingProvider, binding, contract, contract_node, driver

from interlock.config.plan import Dial, SandboxPlan, Spawn

pytestmark = pytest.mark.asyncio(loop_scope="module")

INPUTS = {
    "type": "object",
    "properties": {"uri": {"type": "string", "format": "uri"}, "path": {"type": "string"}, "text": {"type": "string"}},
}
RESOURCES = [
    {"uri_template": "memo://{name}", "integrate_as": "raw"},
    {"uri_template": "file://{path}", "integrate_as": "ref_kind", "ref_kind_id": "files"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContractNode]:
    async with contract_node(tmp_path_factory.mktemp("uris"), {"new": "modern"}) as here:
        yield here


@pytest_asyncio.fixture(loop_scope="module")
async def workspace(here: ContractNode, tmp_path: Path) -> AsyncIterator[Path]:
    """The server may have this folder and example.com; what its process really may is not asked here."""
    made = contract("test.keep", inputs=INPUTS)
    lending = LendingProvider(
        here.node, "new", driver("only-mcp", binding("test.keep", "keep"), resources=RESOURCES), [made]
    )
    root = tmp_path / "workspace"
    root.mkdir()
    (root / "a").write_text("a")
    (root / "out").symlink_to("/etc")
    (root / "private").mkdir()
    plan = lending.link.plan
    assert isinstance(plan.reach, Spawn)
    sandbox = SandboxPlan(home=tmp_path / "home", write=(root,), deny=(root / "private",), egress=("example.com",))
    lending.link.plan = msgspec.structs.replace(plan, reach=msgspec.structs.replace(plan.reach, sandbox=sandbox))
    await here.offer([made], lending)
    yield root
    lending.link.plan = plan


def code_of(result: Any) -> str | None:
    return result.get("_meta", {}).get("dev.interlock/error", {}).get("code")


@pytest.mark.req("AIP-security-6")
async def test_a_uri_that_the_sandbox_permits_passes(here: ContractNode, workspace: Path) -> None:
    for uri in (f"file://{workspace}/a", f"file://{workspace}/new", "https://example.com/x", "memo://b"):
        result = await here.call("test__keep", {"uri": uri}).result()
        assert result["structuredContent"]["got"] == {"uri": uri}
    for text in ("a: b", "12:30", f"{workspace}/../etc/passwd", "mailto:nobody"):
        assert code_of(await here.call("test__keep", {"text": text}).result()) is None


@pytest.mark.req("AIP-security-6")
@pytest.mark.parametrize(
    "uri",
    [
        "file://{root}/../etc/passwd",
        "file://{root}/%2e%2e/etc/passwd",
        "file://{root}/%252e%252e/etc/passwd",
        "file://host/x",
        "file://{root}/a%00",
        "file://{root}\\a",
        "file://{root}/out/passwd",
        "file://{root}/private/key",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "https://evil.example/x",
        "http://example.com@evil.example/",
        "other://x",
    ],
)
async def test_a_uri_that_it_does_not_is_refused_and_nothing_is_sent(
    here: ContractNode, workspace: Path, uri: str
) -> None:
    written = uri.replace("{root}", str(workspace))
    before = len(await here.seen("new"))
    # A file is looked for in every text, other URIs where a schema says so.
    for field in ("uri", "path") if uri.lower().startswith("file:") else ("uri",):
        result = await here.call("test__keep", {field: written}).result()
        assert code_of(result) == "resource_uri_denied"
        assert os.fspath(workspace) not in result["content"][0]["text"]
    assert len(await here.seen("new")) == before + 1


async def test_a_server_elsewhere_has_no_files_of_ours(here: ContractNode, workspace: Path) -> None:
    link = here.node.calls.keepers["new"].link
    link.plan = msgspec.structs.replace(link.plan, reach=Dial(url="https://mcp.example.net/mcp"))
    denied = [f"file://{workspace}/a", "https://example.com/"]
    assert [code_of(await here.call("test__keep", {"uri": one}).result()) for one in denied] == [
        "resource_uri_denied",
        "resource_uri_denied",
    ]
    assert code_of(await here.call("test__keep", {"uri": "https://mcp.example.net/x"}).result()) is None


@pytest.mark.req("AIP-security-6")
async def test_every_resource_that_is_read_is_compared_as_well(here: ContractNode, workspace: Path) -> None:
    for path in ("/etc/passwd", f"{workspace}/../etc/passwd", f"{workspace}/out/passwd"):
        refused = await here.ask("resources/read", {"uri": f"mcp_files:file://{path}"}).error()
        assert refused["data"]["reason"] == "resource_uri_denied"
    permitted = await here.ask("resources/read", {"uri": f"mcp_files:file://{workspace}/a"}).error()
    assert permitted["message"] == "Resource not found"  # in its server's own words
    told = (await here.call("new__seen").result())["structuredContent"]["messages"]
    assert len([each for each in told if each["method"] == "resources/read"]) == 1

"""From a record in DNS to a driver that a running node serves: a real name server, a real MCP server over TLS."""

import asyncio
import contextlib
import json
import os
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from tests.servers.name_server import NameServer, Zone, name_server
from tests.servers.start import raw, serving
from tests.support.certificates import Authority
from tests.support.node_process import RunningNode, running_node, wait_for

DOMAIN = "example.test"


@contextlib.contextmanager
def over_tls(url: str, context: ssl.SSLContext) -> Iterator[str]:
    """The same server at an https address: bytes are passed on as they come."""
    there = urlsplit(url)
    started, over = threading.Event(), asyncio.Event()
    running: list[tuple[asyncio.AbstractEventLoop, int]] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(there.hostname, there.port)
        try:
            await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                each.transport.abort()

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
        running.append((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        started.set()
        await over.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)  # what was aborted is closed in the next turns

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    loop, port = running[0]
    try:
        yield f"https://127.0.0.1:{port}{there.path}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)


@pytest.fixture(scope="module")
def names() -> Iterator[NameServer]:
    with name_server() as made:
        yield made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RunningNode]:
    env = {"SSL_CERT_FILE": str(authority.trusted)}
    more = '[drivers]\ninsecure_hosts = ["127.0.0.1"]\n'
    with running_node(tmp_path_factory.mktemp("discover"), {}, more, env) as running:
        yield running


@pytest.mark.req("REG-7.1-4", "REG-7.1-7", "REG-N-6")
def test_a_server_named_by_a_domain_becomes_a_callable_driver(
    node: RunningNode, names: NameServer, authority: Authority
) -> None:
    workspace = node.config.parent
    options = {"env": {**os.environ, "SSL_CERT_FILE": str(authority.trusted)}, "cwd": workspace}
    how = ("discover", DOMAIN, "--resolver", names.address)
    with serving(raw("driven", "--era", "legacy")) as plain, over_tls(plain, authority.context()) as url:
        names.answers = Zone(f"_mcp.{DOMAIN}", f"v=mcp1; url={url}; pk=ed25519:abc; epoch=2", is_signed=True)
        found = node.cli(*how, "--json", **options)
        assert found.returncode == 0, found.stderr
        (one,) = json.loads(found.stdout)["servers"]
        assert (one["state"], one["url"]) == ("answers", url), one
        unsure = node.cli(*how, "--add", "--as", "found-mcp", **options)
        assert unsure.returncode == 1 and "nothing was done" in unsure.stderr
        assert not (workspace / ".drivers").exists()
        added = node.cli(*how, "--add", "--as", "found-mcp", "--yes", **options)
        assert added.returncode == 0, added.stderr
        assert "DNSSEC: by the zone's own keys" in added.stderr
        pinned = json.loads((node.data / "dns-keys.json").read_text())
        assert pinned == {f"_mcp.{DOMAIN}": {"key": "ed25519:abc", "epoch": 2}}
        names.answers = Zone(f"_mcp.{DOMAIN}", f"v=mcp1; url={url}; pk=ed25519:abc; epoch=1", is_signed=True)
        (lower,) = json.loads(node.cli(*how, "--json", **options).stdout)["servers"]
        assert (lower["state"], lower["detail"]) == ("unusable", "its epoch was 2 and went down to 1")
        driver = (workspace / ".drivers" / "found-mcp" / "DRIVER.md").read_text()
        written = yaml.safe_load(driver.split("---")[1])
        assert (written["id"], written["transport"], url in driver) == ("found-mcp", "http", True)
        wait_for(lambda: "found.keep" in node.cli("tools", "list", "--json").stdout)
        called = node.cli("tools", "call", "found.keep", "--arg", "label=hello", "--json", **options)
        assert json.loads(called.stdout)["structuredContent"]["got"]["label"] == "hello", called.stdout


def test_a_record_that_leads_to_this_machine_is_refused_unless_configured(
    node: RunningNode, names: NameServer, tmp_path: Path
) -> None:
    names.answers = Zone(f"_mcp.{DOMAIN}", "v=mcp1; url=https://127.0.0.1:9/mcp")
    config = tmp_path / "interlock.toml"
    config.write_text('[node]\nlisten = "127.0.0.1:0"\n')
    elsewhere = RunningNode(node.process, node.status_at_start, tmp_path / "data", config)
    refused = elsewhere.cli("discover", DOMAIN, "--resolver", names.address, "--add", "--yes", cwd=tmp_path)
    assert refused.returncode == 1 and "private address" in refused.stderr
    assert not (tmp_path / ".drivers").exists()

"""A driver's health check, and what a server says that is no message."""

import asyncio
import http.server
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from tests.drivers.driver_stage import (
    AheadClock,
    DriverStage,
    call_tool,
    caller,
    driver_stage,
    lend_link,
    until,
    wait_until_settled,
)

from interlock.core.link_state import LinkState
from interlock.drivers.driver_state import DriverState
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.provider import checks as checkup

KEY = "driven-mcp@1"


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[DriverStage]:
    async with driver_stage(tmp_path, AheadClock()) as stage:
        yield stage


@pytest.fixture
def answers() -> Iterator[dict[str, Any]]:
    """An HTTP server that answers with the status it is told."""
    told: dict[str, Any] = {"status": 200}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(told["status"])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told["url"] = f"http://127.0.0.1:{server.server_port}/health"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_ping_is_the_question_of_the_servers_era(stage: DriverStage, era: str) -> None:
    provider = await wait_until_settled(stage.provider("--era", era, health_check={"method": "ping"}))
    before = len(stage.log.methods)
    assert await provider.health.check() is None
    assert stage.log.methods[before:][-1] == {"legacy": "ping", "modern": "server/discover"}[era]
    assert provider.health.passed_at is not None


@pytest.mark.req("AIP-30.health-1")
async def test_a_failed_check_makes_the_driver_unavailable_and_a_passed_check_makes_it_ready(
    stage: DriverStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "EVERY_LEAST_S", 0.05)
    check = {"method": "ping", "every": "PT0.05S", "timeout_ms": 100}
    provider = await wait_until_settled(stage.provider(health_check=check))
    assert provider.state is DriverState.READY
    deaf = stage.folder / "deaf"
    deaf.touch()
    await until(lambda: provider.state is DriverState.UNAVAILABLE)
    assert provider.code == "health_check_failed"
    assert "not answered within 100 ms" in (provider.reason or "")
    deaf.unlink()
    await until(lambda: provider.state is DriverState.READY)
    assert provider.reason is None


@pytest.mark.req("AIP-30.health-1")
async def test_a_check_does_not_wake_a_server(stage: DriverStage) -> None:
    provider = await wait_until_settled(
        stage.provider(health_check={"method": "ping"}, metadata={"idle_timeout_ms": 1000})
    )
    await until(lambda: stage.node.calls.keepers[KEY].link.standing.state is LinkState.ASLEEP, 5)
    assert await provider.health.check() is None
    assert len(stage.log.starts) == 1
    assert provider.health.passed_at is None


@pytest.mark.req("AIP-30.health-1")
async def test_a_command_is_healthy_when_it_ends_as_expected(stage: DriverStage) -> None:
    flag = stage.folder / "well"
    provider = await wait_until_settled(stage.provider(health_check={"method": "exec", "cmd": f"test -e {flag}"}))
    assert "exited with code 1" in (await provider.health.check() or "")
    assert provider.state is DriverState.UNAVAILABLE
    flag.touch()
    assert await provider.health.check() is None
    assert provider.state is DriverState.READY


@pytest.mark.req("AIP-30.health-1")
async def test_an_address_is_healthy_when_it_answers_as_expected(stage: DriverStage, answers: dict[str, Any]) -> None:
    check = {"method": "http", "http": {"method": "GET", "url": answers["url"], "expect_status": 204}}
    provider = await wait_until_settled(stage.provider(health_check=check, network={"egress": ["127.0.0.1"]}))
    assert "HTTP status 200" in (await provider.health.check() or "")
    answers["status"] = 204
    assert await provider.health.check() is None


@pytest.mark.req("AIP-transport-6")
async def test_a_banner_does_no_harm_and_is_counted(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider("--banner", "1"))
    assert provider.state is DriverState.READY
    (shown,) = stage.node.operations.links.list_all().links
    assert shown.stdout_noise == 1


@pytest.mark.req("AIP-transport-6")
async def test_more_than_a_hundred_lines_of_noise_before_the_first_message_end_it(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider("--banner", "101", connection_options={"max_retries": 0}))
    assert provider.state is DriverState.UNAVAILABLE
    assert "more than 100 messages that are not JSON-RPC" in (provider.reason or "")
    await until(lambda: stage.node.calls.keepers[KEY].link.pid is None)


async def loud(stage: DriverStage, size: int) -> Any:
    connector_parts = msgspec.structs.replace(stage.environment.connector_parts, message_bytes=2000)
    stage.environment = msgspec.structs.replace(stage.environment, connector_parts=connector_parts)
    return await wait_until_settled(stage.provider("--loud", str(size), connection_options={"max_retries": 0}))


@pytest.mark.req("AIP-transport-6")
async def test_a_line_beyond_the_limit_is_noise(stage: DriverStage) -> None:
    assert (await loud(stage, 2001)).state is DriverState.READY
    (shown,) = stage.node.operations.links.list_all().links
    assert shown.stdout_noise == 1


@pytest.mark.req("AIP-transport-6")
async def test_a_line_without_an_end_ends_it(stage: DriverStage) -> None:
    provider = await loud(stage, 50_000)
    assert provider.state is DriverState.UNAVAILABLE
    assert "longer than 16 times the limit of 2000 bytes" in (provider.reason or "")


@pytest.mark.req("AIP-proto-6")
async def test_a_server_that_may_ask_callers_serves_one_call_at_a_time(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(metadata={"client_capabilities": ["elicitation"]}))
    first = await lend_link(provider, "ada")
    assert provider.find_ready_lease(caller("bob")) is None
    error = await provider.acquire(caller("bob"), 0.1)
    assert isinstance(error, DriverRefusal)
    assert error.code == "rate_limited"
    waiting = asyncio.create_task(lend_link(provider, "bob"))
    assert (await call_tool(first, n=1))["n"] == 1
    assert not waiting.done()
    first.release()
    second = await waiting
    assert (await call_tool(second, n=2))["n"] == 2
    second.release()
    assert len(stage.log.starts) == 1

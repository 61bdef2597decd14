"""Does a health check say whether a driver works, and go nowhere the driver itself may not go?"""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.drivers.installs import Files, declared, program, serving

from interlock.drivers.install.installation import Installed, Locked, plain_runner
from interlock.drivers.protocol.model import Driver, HealthCheck
from interlock.drivers.provider.checks import exec_health, http_health
from interlock.process.child import Ran

INSTALLED = Installed(command=("/bin/true",), version=None, lock=Locked(asked="", method="present"))


@pytest.fixture
def files() -> Iterator[Files]:
    with serving() as here:
        yield here


def checked(check: dict[str, Any], **fields: Any) -> tuple[Driver, HealthCheck]:
    whole = {"server": {"kind": "binary", "path": "bin/server"}, "health_check": check} | fields
    driver = declared(**whole)
    assert driver.health_check is not None
    return driver, driver.health_check


@pytest.mark.req("AIP-30.health-1")
@pytest.mark.parametrize(
    ("code", "expected", "healthy"), [(0, None, True), (3, 3, True), (1, None, False), (0, 3, False)]
)
async def test_exec_compares_the_exit_code(tmp_path: Path, code: int, expected: int | None, healthy: bool) -> None:
    command = program(tmp_path / "check", f"#!/bin/sh\nexit {code}\n")
    check = {"method": "exec", "cmd": str(command)} | ({} if expected is None else {"expect_exit": expected})
    driver, health = checked(check)
    reason = await exec_health(driver, health, INSTALLED, plain_runner(None))
    assert (reason is None) is healthy
    if reason is not None:
        assert f"exited with code {code}" in reason


@pytest.mark.req("AIP-30.health-1")
async def test_exec_runs_where_the_drivers_programs_run() -> None:
    driver, health = checked({"method": "exec", "cmd": "server --ok"})
    ran: list[tuple[str, ...]] = []

    async def running(words: tuple[str, ...]) -> Ran:
        ran.append(words)
        return Ran(returncode=1, reason="exited with code 1", stdout=b"", output=())

    assert await exec_health(driver, health, INSTALLED, running) is not None
    assert ran == [("/bin/true", "--ok")]


async def test_a_check_that_hangs_or_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    hanging = program(tmp_path / "hang", "#!/bin/sh\nexec sleep 300\n")
    driver, health = checked({"method": "exec", "cmd": str(hanging), "timeout_ms": 300})
    assert "was ended after 300 ms" in str(await exec_health(driver, health, INSTALLED, plain_runner(None)))
    driver, health = checked({"method": "exec", "cmd": "no-such-program-here"})
    assert "cannot be started" in str(await exec_health(driver, health, INSTALLED, plain_runner(None)))


def http(url: str, egress: list[str], method: str = "GET", **more: Any) -> tuple[Driver, HealthCheck]:
    options = {key: more.pop(key) for key in ("timeout_ms",) if key in more}
    return checked(
        {"method": "http", "http": {"method": method, "url": url, **more}, **options}, network={"egress": egress}
    )


@pytest.mark.req("AIP-30.health-1")
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_http_asks_and_compares_the_status(files: Files, method: str) -> None:
    files.at["/health"] = b"fine"
    assert await http_health(*http(f"{files.url}/health?x=1", ["127.0.0.1"], method)) == (
        "the health check was answered with HTTP status 404"
    )
    assert await http_health(*http(f"{files.url}/health", ["127.0.0.1"], method)) is None
    assert await http_health(*http(f"{files.url}/absent", ["127.0.0.1"], method, expect_status=404)) is None
    assert files.asked == ["/health?x=1", "/health", "/absent"]


@pytest.mark.req("AIP-30.health-1")
@pytest.mark.parametrize(
    ("egress", "url", "words"),
    [
        ([], "{here}/health", "127.0.0.1 is not in network.egress"),
        (["api.example.com"], "{here}/health", "is not in network.egress"),
        (["*"], "{here}/health", "leads into a private network"),
        (["*.example.com", "example.com"], "http://example.com/", "is not encrypted"),
        (["localhost"], "ftp://localhost/", "is none"),
        (["localhost"], "https://user:pw@localhost/", "is none"),
    ],
)
async def test_http_obeys_the_rules_of_the_drivers_network(
    files: Files, egress: list[str], url: str, words: str
) -> None:
    files.at["/health"] = b"fine"
    assert words in str(await http_health(*http(url.format(here=files.url), egress)))
    assert files.asked == []


@pytest.mark.req("AIP-security-3")
async def test_a_name_in_the_list_does_not_lead_to_this_machine(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leading(self: object, host: str, port: int) -> list[Any]:
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", leading)
    port = files.url.rpartition(":")[2]
    driver, check = http(f"http://turned.example:{port}/health", ["turned.example"])
    assert "leads to this machine" in str(await http_health(driver, check, insecure_hosts=("turned.example",)))


async def test_the_operator_may_name_a_host_without_encryption(files: Files) -> None:
    wanted = http("http://insecure.invalid/", ["insecure.invalid"], timeout_ms=2000)
    assert "is not encrypted" in str(await http_health(*wanted))
    assert "is not encrypted" not in str(await http_health(*wanted, insecure_hosts=("insecure.invalid",)))


async def test_a_server_that_does_not_answer_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        reason = await http_health(*http(url, ["127.0.0.1"], timeout_ms=300))
    assert reason == "the health check was not answered within 300 ms"
    assert "failed" in str(await http_health(*http(url, ["127.0.0.1"])))


async def test_encryption_is_proven(files: Files) -> None:
    """A port that speaks plain HTTP, or a certificate nobody vouches for, is no healthy server."""
    url = files.url.replace("http:", "https:")
    assert "failed" in str(await http_health(*http(f"{url}/health", ["127.0.0.1"])))


async def test_a_remote_server_may_be_asked_at_its_own_host(files: Files) -> None:
    files.at["/health"] = b"fine"
    server = {"kind": "remote", "url": f"{files.url}/mcp"}
    probe = {"method": "http", "http": {"method": "GET", "url": f"{files.url}/health"}}
    driver = declared(server=server, transport="http", health_check=probe)
    assert driver.health_check is not None
    assert await http_health(driver, driver.health_check) is None

"""What remote drivers show their servers, to which servers alone, and what an expired login does."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
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
from tests.drivers.driver_texts import as_driver, driver, remote, told
from tests.drivers.scripted_server import Scripted

from interlock.config.plan import Spawn
from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Installed, Locked
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.drivers.provider.keeper import InstanceLease
from interlock.drivers.provider.provider import DriverProvider

ONCE: dict[str, Any] = {"connection_options": {"max_retries": 0, "timeout_ms": 5000}}
KEPT = [{"slug": "acme-api-key", "name": "Key", "description": "Its key."}]
BEARER = {"type": "bearer", "secret": "ACME_API_KEY"}
DAY = datetime.timedelta(days=1)


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[DriverStage]:
    async with driver_stage(tmp_path) as stage:
        await stage.node.links.credentials.set_secret("acme-api-key", "the-key-of-acme")
        yield stage


def dialled(stage: DriverStage, url: str, **more: Any) -> DriverProvider:
    server = {"kind": "remote", "url": url, "auth": more.pop("server_auth", BEARER), **more.pop("server", {})}
    return stage.provider(server=server, transport="http", secrets=KEPT, **{**ONCE, **more})


@pytest.mark.req("AIP-server-8", "AIP-server-7")
@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        (BEARER, "authorization", "Bearer the-key-of-acme"),
        ({"type": "header", "header": "X-API-Key", "secret": "ACME_API_KEY"}, "x-api-key", "the-key-of-acme"),
    ],
)
async def test_every_request_has_the_revealed_credential(
    stage: DriverStage, auth: dict[str, str], header: str, value: str
) -> None:
    async with Scripted() as there:
        provider = await wait_until_settled(dialled(stage, there.url, server_auth=auth))
        assert provider.state is DriverState.READY, provider.reason
        lease = await lend_link(provider)
        await call_tool(lease)
        lease.release()
        assert there.calls == 1
        assert {headers.get(header) for _, headers, _ in there.requests} == {value}
        assert lease.link.pid is None
        assert stage.log.starts == []


@pytest.mark.req("AIP-server-8")
def test_a_literal_credential_in_a_header_is_refused() -> None:
    problems = as_driver(remote(headers={"Authorization": "Bearer something-secret"})).errors
    assert told(problems) == [("plaintext_secret", "/server/headers/Authorization")]
    assert "something-secret" not in str(problems)


@pytest.mark.req("AIP-server-13")
@pytest.mark.parametrize("text", ["${secret.X}", "${env.X}", "${secrets.X", "a${b", "${secrets.lower}"])
def test_other_placeholders_are_refused(text: str) -> None:
    problems = as_driver(driver(server={"kind": "binary", "path": "x", "env": {"A": text}})).errors
    assert told(problems) == [("placeholder_invalid", "/server/env/A")]


@pytest.mark.req("AIP-server-13")
async def test_an_unknown_name_leaves_the_driver_unauthed_and_names_the_slug(stage: DriverStage) -> None:
    server = {"kind": "remote", "url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "${secrets.NO_SUCH_KEY}"}}
    provider = await wait_until_settled(stage.provider(server=server, transport="http", secrets=KEPT, **ONCE))
    assert provider.state is DriverState.UNAUTHED
    refused = await provider.acquire(caller())
    assert isinstance(refused, DriverRefusal)
    assert refused.code == "auth_required"
    assert "no-such-key" in refused.message


@pytest.mark.req("AIP-security-11")
async def test_a_redirect_within_the_origin_keeps_the_headers_and_another_is_not_followed(stage: DriverStage) -> None:
    async with Scripted() as there, Scripted() as elsewhere:
        there.moved = {"/mcp": "/mcp/"}
        provider = await wait_until_settled(dialled(stage, there.url))
        assert provider.state is DriverState.READY, provider.reason
        lease = await lend_link(provider)
        assert await call_tool(lease) == {"path": "/mcp/"}
        lease.release()
        assert {headers["authorization"] for _, headers, _ in there.requests} == {"Bearer the-key-of-acme"}
        there.moved = {"/mcp": elsewhere.url}
        provider = await wait_until_settled(dialled(stage, there.url, id="other-mcp"))
        assert (provider.state, provider.code) == (DriverState.UNAVAILABLE, "upstream_error")
        assert "another origin" in (provider.reason or "")
        assert elsewhere.bytes == 0


@pytest.mark.req("AIP-security-11")
async def test_redirects_without_end_end(stage: DriverStage) -> None:
    async with Scripted() as there:
        there.moved = {"/mcp": "/a", "/a": "/mcp"}
        provider = await wait_until_settled(dialled(stage, there.url))
        assert (provider.state, provider.code) == (DriverState.UNAVAILABLE, "upstream_error")


@pytest.mark.req("AIP-security-11")
@pytest.mark.parametrize("status", [401, 500])
async def test_neither_log_nor_reason_holds_a_credential(
    stage: DriverStage, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level("DEBUG")
    async with Scripted() as there:
        server = {"query": {"key": "${secrets.ACME_API_KEY}"}, "headers": {"Cookie": "${secrets.ACME_API_KEY}"}}
        provider = await wait_until_settled(dialled(stage, there.url, server=server))
        there.refusal = (status, {"set-cookie": "x=the-key-of-acme"})
        lease = await lend_link(provider)
        with pytest.raises((AttributeError, KeyError)):
            await call_tool(lease)
        lease.release()
        assert there.requests[-1][0].endswith("?key=the-key-of-acme") or there.calls == 1
    assert "the-key-of-acme" not in caplog.text
    assert "the-key-of-acme" not in f"{provider.reason} {stage.node.operations.links.list_all()}"


def context(folder: Path, address: str, days: int) -> tuple[ssl.SSLContext, Path]:
    """A server's own certificate, which vouches for itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "itself")])
    builder = x509.CertificateBuilder().issuer_name(name).subject_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - 3 * DAY).not_valid_after(now + days * DAY)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain, trusted = folder / "server.pem", folder / "trusted.pem"
    chain.write_bytes(private + public)
    trusted.write_bytes(public)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(chain)
    return made, trusted


@pytest.mark.req("AIP-security-9")
@pytest.mark.parametrize(
    ("address", "days", "is_trusted", "word"),
    [
        ("127.0.0.1", 1, False, "self-signed"),
        ("127.0.0.1", -1, True, "expired"),
        ("127.0.0.2", 1, True, "not valid for"),
    ],
    ids=["self-signed", "expired", "another host"],
)
async def test_an_invalid_certificate_ends_the_connection_before_any_message(
    stage: DriverStage, address: str, days: int, is_trusted: bool, word: str
) -> None:
    tls, trusted = context(stage.folder, address, days)
    async with Scripted(tls) as there:
        provider = await wait_until_settled(
            dialled(stage, there.url, plan={"ca_file": trusted if is_trusted else None})
        )
        assert (provider.state, provider.code) == (DriverState.UNAVAILABLE, "upstream_error")
        assert "certificate" in (provider.reason or "")
        assert word in (provider.reason or "")
        assert there.bytes == 0


@pytest.mark.req("AIP-security-9")
async def test_an_authority_of_the_configuration_is_trusted_besides(stage: DriverStage) -> None:
    tls, trusted = context(stage.folder, "127.0.0.1", 1)
    async with Scripted(tls) as there:
        provider = await wait_until_settled(dialled(stage, there.url, plan={"ca_file": trusted}))
        assert provider.state is DriverState.READY, provider.reason


@pytest.mark.req("AIP-security-9")
@pytest.mark.parametrize("key", ["verify", "insecure", "tls", "ca_file", "rejectUnauthorized", "skip_tls_verify"])
async def test_no_key_of_a_driver_file_switches_that_off(stage: DriverStage, key: str) -> None:
    tls, trusted = context(stage.folder, "127.0.0.1", 1)
    value = str(trusted) if key == "ca_file" else key in ("insecure", "skip_tls_verify")
    async with Scripted(tls) as there:
        provider = await wait_until_settled(dialled(stage, there.url, server={key: value}))
        assert provider.state is DriverState.UNAVAILABLE
        assert there.bytes == 0


EXPIRES = {"auth": {"expiry": {"detect": "http_status:401"}}}


@pytest.mark.req("AIP-30.auth-2")
async def test_an_expired_login_is_noticed_once_kept_and_over_with_another_secret(stage: DriverStage) -> None:
    async with Scripted() as there:
        provider = await wait_until_settled(dialled(stage, there.url, **EXPIRES))
        there.refusal = (401, {})
        lease = await lend_link(provider)
        with pytest.raises((AttributeError, KeyError)):
            await call_tool(lease)
        lease.release()
        assert provider.state is DriverState.UNAUTHED
        refused = await provider.acquire(caller())
        assert isinstance(refused, DriverRefusal)
        assert refused.code == "auth_required"
        assert there.calls == 1
        await until(lambda: provider.state is DriverState.UNAUTHED and not provider._login_tasks)
        await provider.stop()
        before = len(there.requests)
        again = await wait_until_settled(dialled(stage, there.url, **EXPIRES))  # the node was started anew
        assert again.state is DriverState.UNAUTHED
        assert isinstance(await again.acquire(caller()), DriverRefusal)
        assert len(there.requests) == before
        there.refusal = None
        await stage.node.links.credentials.set_secret("acme-api-key", "another-key-of-acme")
        assert again.on_secret("acme-api-key") == ("driven-mcp@1",)
        await until(lambda: again.state is DriverState.READY)
        lease = await lend_link(again)
        assert await call_tool(lease) == {"path": "/mcp"}
        lease.release()
        assert there.requests[-1][1]["authorization"] == "Bearer another-key-of-acme"
        await again.stop()
        third = await wait_until_settled(dialled(stage, there.url, **EXPIRES))
        assert third.state is DriverState.READY


@pytest.mark.req("AIP-30.auth-2")
async def test_one_users_expired_login_is_nobody_elses(stage: DriverStage) -> None:
    async with Scripted() as there:
        provider = await wait_until_settled(dialled(stage, there.url, metadata={"isolation": "user"}, **EXPIRES))
        lease = await lend_link(provider, "ada")
        there.refusal = (401, {})
        with pytest.raises((AttributeError, KeyError)):
            await call_tool(lease)
        lease.release()
        there.refusal = None
        assert isinstance(await provider.acquire(caller("ada")), DriverRefusal)
        assert provider.state is DriverState.READY
        lease = await lend_link(provider, "bob")
        assert await call_tool(lease) == {"path": "/mcp"}
        lease.release()


@pytest.mark.req("AIP-19.access-1")
@pytest.mark.parametrize("isolation", ["driver", "user"])
async def test_a_secret_that_is_granted_to_others_reaches_no_process(stage: DriverStage, isolation: str) -> None:
    kept = [{**KEPT[0], "access": {"bind": [{"tool": "other"}]}}]
    async with Scripted() as there:
        server = {"kind": "remote", "url": there.url, "auth": BEARER}
        options: dict[str, Any] = {**ONCE, "metadata": {"isolation": isolation}}
        provider = await wait_until_settled(stage.provider(server=server, transport="http", secrets=kept, **options))
        assert provider.state is DriverState.UNAUTHED
        assert isinstance(await provider.acquire(caller("ada")), DriverRefusal)
        assert there.requests == []


@pytest.mark.req("AIP-security-8")
async def test_a_users_own_secret_reaches_that_users_process_alone(stage: DriverStage) -> None:
    kept = [{**KEPT[0], "access": {"bind": [{"userId": "client:ada"}]}}]
    async with Scripted() as there:
        server = {"kind": "remote", "url": there.url, "auth": BEARER}
        options: dict[str, Any] = {**ONCE, "metadata": {"isolation": "user"}}
        provider = await wait_until_settled(stage.provider(server=server, transport="http", secrets=kept, **options))
        assert (provider.state, provider.contract_ids) == (DriverState.READY, {"echoes"})
        assert there.requests == []
        lease = await lend_link(provider, "ada")
        assert await call_tool(lease) == {"path": "/mcp"}
        lease.release()
        before = len(there.requests)
        refused = await provider.acquire(caller("bob"))
        assert isinstance(refused, DriverRefusal)
        assert refused.code == "auth_required"
        assert len(there.requests) == before


@pytest.mark.req("AIP-security-8")
async def test_the_first_caller_leaves_no_trace_in_the_process_and_may_leave(stage: DriverStage) -> None:
    provider = await wait_until_settled(stage.provider(metadata={"idle_timeout_ms": 1000}))
    instance = provider._instances.find(None)  # type: ignore[union-attr]
    assert instance is not None
    provider._instances.rest(instance)  # type: ignore[union-attr]
    await until(lambda: not instance.keeper.is_usable)
    first = asyncio.ensure_future(provider.acquire(caller("ada-who-calls-first")))
    await until(lambda: len(stage.log.starts) == 2)
    first.cancel()
    (outcome,) = await asyncio.gather(first, return_exceptions=True)
    if isinstance(outcome, InstanceLease):  # it was there before the caller could go
        outcome.release()
    await until(lambda: instance.keeper.is_usable)
    lease = await lend_link(provider, "bob")
    assert (await call_tool(lease))["pid"] == stage.log.pids[-1]
    lease.release()
    assert "ada-who-calls-first" not in str(stage.log.lines)


@pytest.mark.req("AIP-30.auth-1")
async def test_a_login_is_refreshed_before_a_call_once_its_time_has_passed(tmp_path: Path) -> None:
    clock = AheadClock()
    async with driver_stage(tmp_path, clock) as stage:
        done = tmp_path / "refreshed"
        script = tmp_path / "refresh.sh"
        script.write_text(f"#!/bin/sh\necho once >> {done}\n")
        script.chmod(0o700)
        auth = {"refresh": {"cmd": str(script), "every": "PT1H"}}
        provider = await wait_until_settled(stage.provider(auth=auth))
        lease = provider.find_ready_lease(caller())
        assert lease is not None
        lease.release()
        assert not done.exists()
        clock.ahead = 3601.0
        assert provider.find_ready_lease(caller()) is None
        leases = await asyncio.gather(lend_link(provider), lend_link(provider, "bob"))
        assert done.read_text() == "once\n"
        for each in leases:
            each.release()
        lease = await lend_link(provider)
        lease.release()
        assert done.read_text() == "once\n"


@pytest.mark.req("AIP-30.auth-1")
async def test_a_failed_refresh_is_reported_and_the_call_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = AheadClock()
    async with driver_stage(tmp_path, clock) as stage:
        provider = await wait_until_settled(
            stage.provider(auth={"refresh": {"cmd": "/no/such/program", "every": "PT1H"}})
        )
        clock.ahead = 3601.0
        lease = await lend_link(provider)
        lease.release()
    assert "could not be refreshed" in caplog.text


@pytest.mark.req("AIP-30.auth-1")
def test_the_places_of_the_login_state_may_be_read_and_written_in_the_sandbox(tmp_path: Path) -> None:
    value = as_driver(driver(auth={"state": {"paths": ["./state", "/var/acme"]}})).value
    assert value is not None
    installed = Installed(command=("x",), version="1", lock=Locked(asked="", method="present"))
    reach = kind_of(value.server).compile_plan(value, installed, folder=tmp_path, data=tmp_path).reach
    assert isinstance(reach, Spawn)
    assert reach.sandbox is not None
    assert {tmp_path / "state", Path("/var/acme")} <= {*reach.sandbox.write}

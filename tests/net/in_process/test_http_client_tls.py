"""Does the HTTP client speak TLS to servers it can trust, and to no others?"""

import asyncio
import datetime
import ipaddress
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.net.http_client_peer import BOUND_S, OK, STREAM, Server, chunk, post, serving

from interlock.net.http.client import HttpClient
from interlock.net.http.connection import FailureKind

DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority that lives as long as one test run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        certificate = self._signed(self.name, self.key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        self.trusted = folder / "authority.pem"
        self.trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server_context(self, address: str, days: int = 1) -> ssl.SSLContext:
        """A context for a server with a certificate for one address."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        certificate = self._signed(x509.Name([]), key.public_key(), names, days)
        pem = self.folder / f"server-{address}-{days}.pem"
        pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.trusted))

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType, days: int = 1
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().issuer_name(self.name).subject_name(subject).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - 3 * DAY).not_valid_after(now + days * DAY)
        return builder.add_extension(extension, critical=True).sign(self.key, hashes.SHA256())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def https(server: Server, tls: ssl.SSLContext | None = None, connect_timeout_s: float = BOUND_S) -> HttpClient:
    url = f"https://127.0.0.1:{server.port}"
    return HttpClient(url, max_body_bytes=1_000_000, connect_timeout_s=connect_timeout_s, tls=tls)


async def test_a_server_with_a_trusted_certificate_is_asked_over_one_connection(authority: Authority) -> None:
    async with serving(authority.server_context("127.0.0.1")) as server:
        client = https(server, authority.client_context())
        first, second = post(client), None
        peer = await server.peer()
        assert (await peer.serve(OK))[0].startswith(b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:")
        assert await first.answer() == (200, b"ok")
        assert peer.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        second = post(client)
        await peer.request()
        await peer.send(STREAM, chunk(b"data: 1\n\n"), b"0\r\n\r\n")
        assert await second.end() == ("stream_end",)
        assert second.streamed == b"data: 1\n\n"
        assert server.accepted == 1
        await client.close()


async def test_a_large_request_and_a_large_answer_pass_whole(authority: Authority) -> None:
    body = bytes(range(256)) * 3000
    async with serving(authority.server_context("127.0.0.1")) as server:
        client = https(server, authority.client_context())
        sink = post(client, body)
        peer = await server.peer()
        assert (await peer.request()).endswith(body)
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert await sink.answer() == (200, body)
        await client.close()


async def test_an_answer_that_ends_with_its_connection_is_whole(authority: Authority) -> None:
    async with serving(authority.server_context("127.0.0.1")) as server:
        client = https(server, authority.client_context())
        sink = post(client)
        peer = await server.peer()
        await peer.serve(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await peer.close()
        assert await sink.answer() == (200, b"hello")
        await client.close()


async def test_closing_the_client_ends_a_request_over_tls(authority: Authority) -> None:
    async with serving(authority.server_context("127.0.0.1")) as server:
        client = https(server, authority.client_context())
        sink = post(client)
        await (await server.peer()).request()
        async with asyncio.timeout(BOUND_S):
            await client.close()
        assert (await sink.failure()).kind is FailureKind.CLOSED


async def test_abort_closes_a_connection_over_tls(authority: Authority) -> None:
    async with serving(authority.server_context("127.0.0.1")) as server:
        client = https(server, authority.client_context())
        sink = post(client)
        peer = await server.peer()
        await peer.request()
        await peer.send(STREAM)
        await sink.until(lambda: sink.names == ["stream"])
        third = post(client)
        await (await server.peer()).serve(OK)
        assert await third.answer() == (200, b"ok")
        await client.close()
        assert await peer.eof() == b""


async def test_a_certificate_of_an_unknown_authority_is_refused(authority: Authority) -> None:
    async with serving(authority.server_context("127.0.0.1")) as server:
        client = https(server)
        sinks = [post(client) for _ in range(3)]
        for sink in sinks:
            failure = await sink.failure()
            assert (failure.kind, failure.retry_safe) == (FailureKind.TLS, True)
            assert failure.detail.startswith("the server's certificate is not accepted: ")
        assert server.accepted == 0
        await client.close()


@pytest.mark.parametrize(("address", "days"), [("127.0.0.2", 1), ("127.0.0.1", -1)])
async def test_a_certificate_for_another_host_or_out_of_date_is_refused(
    authority: Authority, address: str, days: int
) -> None:
    async with serving(authority.server_context(address, days)) as server:
        client = https(server, authority.client_context())
        failure = await post(client).failure()
        assert (failure.kind, failure.retry_safe) == (FailureKind.TLS, True)
        assert failure.detail.startswith("the server's certificate is not accepted: ")
        await client.close()


async def test_a_server_without_tls_is_refused() -> None:
    async with serving() as server:
        client = https(server)
        sink = post(client)
        await (await server.peer()).send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        failure = await sink.failure()
        assert (failure.kind, failure.retry_safe) == (FailureKind.TLS, True)
        await client.close()


async def test_a_server_that_closes_during_the_handshake_is_refused() -> None:
    async with serving() as server:
        client = https(server)
        sink = post(client)
        await (await server.peer()).close()
        failure = await sink.failure()
        assert (failure.kind, failure.retry_safe) == (FailureKind.TLS, True)
        await client.close()


async def test_a_server_that_never_shakes_hands_is_given_up_by_all_who_wait() -> None:
    async with serving() as server:
        url = f"https://127.0.0.1:{server.port}"
        client = HttpClient(url, max_body_bytes=1, max_connections=1, connect_timeout_s=0.05)
        sinks = [post(client) for _ in range(3)]
        for sink in sinks:
            failure = await sink.failure()
            assert (failure.kind, failure.retry_safe) == (FailureKind.CONNECT_TIMEOUT, True)
            assert "0.05 s" in failure.detail
        assert server.accepted == 1
        await client.close()


async def test_closing_the_client_does_not_wait_for_a_connection_that_opens_slowly() -> None:
    async with serving() as server:
        client = https(server, connect_timeout_s=100 * BOUND_S)
        sink = post(client)
        await server.peer()
        async with asyncio.timeout(BOUND_S):
            await client.close()
        assert sink.names == ["fail"]
        assert (await sink.failure()).kind is FailureKind.CLOSED


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_that_wants_a_certificate_of_ours_fails_as_tls(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.server_context("127.0.0.1")
    context.load_verify_locations(authority.trusted)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version

    def refuse(listener: socket.socket) -> None:
        """A blocking server: unlike asyncio's it sends the alert that says why."""
        accepted, _ = listener.accept()
        accepted.settimeout(BOUND_S)
        with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as connection:
            with pytest.raises(ssl.SSLError):
                connection.do_handshake()
            # Closing with bytes unread would send a reset, which may overtake the alert.
            while socket.socket.recv(connection, 65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(BOUND_S)
        refusing = asyncio.create_task(asyncio.to_thread(refuse, listener))
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        client = HttpClient(url, max_body_bytes=1, tls=authority.client_context())
        failure = await post(client).failure()
        assert failure.kind is FailureKind.TLS
        assert failure.retry_safe == (version is ssl.TLSVersion.TLSv1_2)  # in 1.3 the refusal follows the request
        await refusing
        await client.close()

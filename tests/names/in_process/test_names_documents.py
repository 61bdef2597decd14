"""Documents behind specification references: what is fetched, how far redirects are followed, what is never reached."""

import asyncio
import datetime
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from interlock.core.clock import Clock
from interlock.names import documents as documents_module
from interlock.names.documents import DOCUMENT_BYTES_MAX, DocumentFetcher
from interlock.names.protocol.criteria import read_reference
from interlock.net.fetch import Fetcher, FetchFailed
from interlock.net.protocol.address_scope import Scope

ANSWERS = {
    "/document": b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntext",
    "/login": b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",
    "/gone": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    "/large": b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b"
    % (DOCUMENT_BYTES_MAX + 1, b"x" * (DOCUMENT_BYTES_MAX + 1)),
    "/moved3": b"HTTP/1.1 302 Found\r\nlocation: /moved2\r\ncontent-length: 0\r\n\r\n",
    "/moved2": b"HTTP/1.1 301 Moved\r\nlocation: /moved1\r\ncontent-length: 0\r\n\r\n",
    "/moved1": b"HTTP/1.1 307 Moved\r\nlocation: /document\r\ncontent-length: 0\r\n\r\n",
    "/moved4": b"HTTP/1.1 302 Found\r\nlocation: /moved3\r\ncontent-length: 0\r\n\r\n",
    "/forbidden": b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n",
    "/largest": b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (DOCUMENT_BYTES_MAX, b"x" * DOCUMENT_BYTES_MAX),
    "/silent": b"",
    "/plain": b"HTTP/1.1 302 Found\r\nlocation: http://registry.example.org/\r\ncontent-length: 0\r\n\r\n",
}


heads: list[bytes] = []  # every line of every request


@pytest.fixture
async def origin() -> AsyncIterator[str]:
    writers: list[asyncio.StreamWriter] = []
    heads.clear()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while line := await reader.readline():
            heads.append(line)
            if line.startswith(b"GET "):
                answer = ANSWERS[line.split()[1].decode()]
            if line == b"\r\n":
                writer.write(answer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in writers:
            writer.close()
            await writer.wait_closed()


@pytest.mark.req("REG-5-4")
async def test_a_document_is_fetched_over_at_most_three_redirects(origin: str) -> None:
    documents = DocumentFetcher(Clock(), within=Scope.MACHINE)
    try:
        for path in ("/document", "/moved3"):
            found = await documents.fetch_at(f"{origin}{path}")
            assert (found.outcome, found.digest) == ("retrieved", f"sha256:{hashlib.sha256(b'text').hexdigest()}")
            assert found.at is not None and datetime.datetime.fromisoformat(found.at)
        assert (await documents.fetch_at(f"{origin}/largest")).outcome == "retrieved"  # 5 MiB
        names = {line.partition(b":")[0].lower() for line in heads if b":" in line}
        assert not names & {b"authorization", b"cookie", b"proxy-authorization"}
        for path, said in (
            ("/moved4", "more than 3 redirects"),
            ("/login", "HTTP status 401"),
            ("/forbidden", "HTTP status 403"),
            ("/gone", "HTTP status 404"),
            ("/large", "5242880"),
            ("/plain", "not https"),
        ):
            found = await documents.fetch_at(f"{origin}{path}")
            assert found.outcome == "failed" and said in found.detail, (path, found)
    finally:
        await documents.close()


@pytest.mark.req("REG-5-4")
async def test_a_document_that_does_not_come_is_waited_for_ten_seconds_and_no_longer(
    origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert documents_module.FETCH_S == 10.0
    monkeypatch.setattr(documents_module, "FETCH_S", 0.1)
    documents = DocumentFetcher(Clock(), within=Scope.MACHINE)
    try:
        async with asyncio.timeout(9):  # sooner than without the limit that was set
            found = await documents.fetch_at(f"{origin}/silent")
        assert (found.outcome, found.digest) == ("failed", None)
    finally:
        await documents.close()


@pytest.mark.req("REG-5-4")
async def test_private_addresses_are_never_reached_and_an_unknown_host_is_offline(
    origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_nothing(*_: Any, **__: Any) -> None:
        raise OSError("no name server")

    documents = DocumentFetcher(Clock())
    try:
        near = await documents.fetch_at(f"{origin}/document")
        assert near.outcome == "failed" and "private address" in near.detail
        for reference in ("https://127.0.0.1/", "http://specs.example.com/", "a bare word"):
            assert (await documents.fetch(reference)).outcome == "failed"
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", find_nothing)
        unknown = await documents.fetch("https://specs.example.com/")
        assert unknown.outcome == "skipped_offline"
    finally:
        await documents.close()
    with pytest.raises(FetchFailed, match="not https"):
        await Fetcher().look("http://registry.example.org/")


@pytest.mark.req("REG-4.1-4")
@pytest.mark.parametrize(
    ("text", "kind", "data"),
    [
        ("RFC 9999", "rfc", "rfc9999"),
        ("draft-x-y-03", "draft", "draft-x-y-03"),
        ("https://datatracker.ietf.org/doc/draft-x-y/03/", "draft", "draft-x-y-03"),
        ("doi:10.17487/RFC8126", "doi", "https://doi.org/10.17487/RFC8126"),
        ("https://specs.example.com/search/1", "uri", "https://specs.example.com/search/1"),
        (f"https://github.com/a/b/blob/{'0' * 40}/c.md", "uri", f"https://github.com/a/b/blob/{'0' * 40}/c.md"),
    ],
)
def test_references_that_stay_are_recognised(text: str, kind: str, data: str) -> None:
    read = read_reference(text)
    assert (read.kind, read.data, read.unstable) == (kind, data, None)
    assert read.url is not None


@pytest.mark.req("REG-4.1-4")
@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("draft-x-y", "draft", "no revision"),
        ("https://datatracker.ietf.org/doc/draft-x-y/", "draft", "no revision"),
        ("https://github.com/a/b/blob/main/c.md", "uri", "a branch of a code host"),
        ("http://specs.example.com/", "uri", "it is http"),
        ("specification", "unknown", "no document identifier"),
        ("https://10.0.0.1/spec", "uri", "not public"),
        ("https://wiki.internal/spec", "uri", "not public"),
        ("https://localhost/spec", "uri", "not public"),
        ("https://user:secret@example.com/", "uri", "a credential"),
        ("https://[", "unknown", "no document identifier"),
    ],
)
def test_references_that_may_move_are_reported(text: str, kind: str, why: str) -> None:
    read = read_reference(text)
    assert read.kind == kind and why in (read.unstable or "")

"""The recorder, which writes the audit record of every call: what was called, by whom, and how it ended.

Records are appended in batches, off the call path: a call leaves a tuple here and goes on; encoding, hashing and the
disk come up to a second later, on another thread.
When the disk refuses, records wait (bounded) and the node says so; nothing is dropped silently.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.clock import rfc3339
from interlock.store.ports import AuditLog, StoreError, Unavailable

log = logging.getLogger("interlock.audit")

FLUSH_S: Final = 0.5
WAITING_MAX: Final = 200_000  # records kept in memory while the disk refuses
LARGE_BYTES: Final = 256 * 1024  # of arguments that are not kept until the next flush is due


class Digest(str):
    """The SHA-256 of arguments that are no longer kept."""

    __slots__ = ()


class SessionVia(str):
    """How a client came, with the id of its session at the AQL surfaces; equal to the word alone."""

    __slots__ = ("session_id",)

    def __new__(cls, via: str, session_id: str) -> "SessionVia":
        return super().__new__(cls, via)

    def __init__(self, via: str, session_id: str) -> None:
        self.session_id = session_id


# at, who, via, method, tool, arguments, verdict, outcome, seconds, reason
Entry = tuple[float, str, str, str, str, Raw | Digest | None, str, str, float, str | None]
Made = tuple[Any, ...]  # a record of another form: who encodes it when it is written, and of what

_encode = msgspec.json.Encoder().encode


class Recorder:
    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._waiting: list[Entry | bytes | Made] = []
        self.add: Callable[[Entry], None] = self._waiting.append  # for every call: without a function of our own
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._flushing = asyncio.Lock()  # one batch at a time, in order
        self.trouble: str | None = None
        self.lost = 0

    def hurry(self) -> None:
        """What was added last is large, and is to be written as soon as possible."""
        self._hurry.set()

    def add_line(self, line: bytes) -> None:
        """Adds a record that is encoded already, in its turn."""
        self._waiting.append(line)

    def add_made(self, made: Made) -> None:
        """Adds a record that its first item encodes from the rest later, on another thread."""
        self._waiting.append(made)

    async def append_now(self, line: bytes) -> None:
        """Writes a record; it is on disk when this returns, after those before. On StoreError nothing was recorded."""
        async with self._flushing:
            await self._flush()
            try:
                await self._audit.append([line])
            except OSError as refused:
                raise Unavailable(f"the audit log cannot be written: {refused.strerror}") from refused

    async def open(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="audit")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def flush(self) -> None:
        """Writes everything added before; it is on disk when this returns, unless `trouble` says why not."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        if not self._waiting:
            return
        batch = self._waiting.copy()
        self._waiting.clear()
        lines = await asyncio.to_thread(_encode_all, batch)
        count = len(lines)
        batch.clear()  # large arguments do not wait for the disk
        try:
            await self._audit.append(lines)
            self.trouble = None
        except (StoreError, OSError) as refused:
            if self.trouble is None:
                log.error("the audit log cannot be written: %s; %d records wait in memory", refused, count)
            self.trouble = str(refused)
            self._waiting[:0] = lines  # encoded: what waits for the disk holds no arguments
            excess = len(self._waiting) - WAITING_MAX
            if excess > 0:
                self.lost += excess
                del self._waiting[:excess]

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._hurry.wait()
            self._hurry.clear()
            await asyncio.shield(self.flush())


def _encode_all(batch: list[Entry | bytes | Made]) -> list[bytes]:
    return [one if isinstance(one, bytes) else _encode_any(one) for one in batch]


def _encode_any(entry: Entry | Made) -> bytes:
    encode = entry[0]
    return encode_entry(entry) if isinstance(encode, float) else encode(*entry[1:])


def digest_of(arguments: Raw | None) -> Digest:
    return _NO_ARGUMENTS if arguments is None else Digest(hashlib.sha256(arguments).hexdigest())


def encode_entry(entry: Entry) -> bytes:
    at, who, via, method, tool, arguments, verdict, outcome, seconds, reason = entry
    if arguments is None:
        digest: str = _NO_ARGUMENTS
    else:
        digest = arguments if isinstance(arguments, Digest) else hashlib.sha256(arguments).hexdigest()
    before, after = _frame(int(at), who, via, method, tool, verdict, outcome)
    more = "" if reason is None else f',"reason":{_quote(reason)}'
    if isinstance(via, SessionVia):
        more += f',"session_id":{_quote(via.session_id)}'
    return f"{before}{digest}{after}{seconds * 1000:.3f}{more}}}".encode()


@functools.lru_cache(maxsize=128)
def _frame(at: int, who: str, via: str, method: str, tool: str, verdict: str, outcome: str) -> tuple[str, str]:
    """What stands around the digest of the arguments: many calls of one second share it."""
    before = (
        f'{{"at":"{rfc3339(at)}","who":{_quote(who)},"via":"{via}","method":"{method}"'
        f',"tool":{_quote(tool)},"args_sha256":"'
    )
    return before, f'","verdict":"{verdict}","outcome":"{outcome}","ms":'


def _quote(text: str) -> str:
    return _encode(text).decode()


_NO_ARGUMENTS: Final = Digest(hashlib.sha256(b"{}").hexdigest())

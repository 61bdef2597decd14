"""The store of a data folder, opened by a command itself: for tokens while no node runs, and for the audit log.

Each method opens, does one thing and closes. What the store says no to becomes a refusal with its own words. The
answers have the operator door's shapes.
"""

import asyncio
import getpass
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from interlock.config.plan import Plan
from interlock.runtime.clock import rfc3339
from interlock.store.audit import ChainedRecord, Verdict
from interlock.store.ports import AuditLog, StoreError
from interlock.store.registry import build_audit, build_store
from interlock.store.tokens import BadTokenName, Door, Scope, TokenRecord, TokenTable
from interlock.surface.cli.failures import BadUsage, Refused
from interlock.surface.cli.node import Answer

T = TypeVar("T")

PAGE = 1000
DEFAULT_SCOPES: dict[Door, Scope] = {"client": "write", "operator": "admin"}


class StoredTokens:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder

    def issue(self, name: str, door: Door, scope: Scope | None, days: int | None) -> Answer:
        now = time.time()
        expires_at = now + (days or self._plan.auth.token_days) * 86400

        async def issue(table: TokenTable) -> dict[str, Any]:
            token, record = await table.issue(
                name=name,
                owner=getpass.getuser(),
                door=door,
                scope=scope or DEFAULT_SCOPES[door],
                now=now,
                expires_at=expires_at,
            )
            return {"token": token, "id": record.id, "name": name, "for": door, "expires_at": rfc3339(expires_at)}

        return self._with_table(issue)

    def list(self) -> Answer:
        now = time.time()

        async def listed(table: TokenTable) -> dict[str, Any]:
            records = await table.list(now)
            return {"tokens": [_token(record) for record in records if record.opens(now)]}

        return self._with_table(listed)

    def revoke(self, ref: str) -> Answer:
        async def revoke(table: TokenTable) -> dict[str, Any]:
            revoked = await table.revoke(ref, time.time())
            if not revoked:
                raise Refused("not_found", f"there is no token {ref}", hint="interlock access list shows them")
            return {"revoked": list(revoked)}

        return self._with_table(revoke)

    def _with_table(self, job: Callable[[TokenTable], Awaitable[dict[str, Any]]]) -> Answer:
        async def with_table() -> Answer:
            store = build_store(self._plan.store.backend, self._folder)
            try:
                await store.open()
                return Answer(msgspec.json.encode(await job(TokenTable(store.kv))))
            finally:
                await store.close()

        try:
            return _run(with_table())
        except BadTokenName as error:
            raise BadUsage("bad_name", str(error)) from None


class StoredAudit:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        if not (folder / "audit").is_dir():
            raise Refused(
                "no_audit_log",
                f"there is no audit log in {folder}",
                hint="a node writes it when it first runs; --data names another folder",
            )

    def verify(self) -> Verdict:
        async def verify(audit: AuditLog) -> Verdict:
            return await audit.verify()

        return self._with_log(verify)

    def export(self, after: int, write: Callable[[str], object]) -> None:
        """One JSON object per record, page by page, so that a long log needs no memory."""

        async def export(audit: AuditLog) -> None:
            at = after
            while records := await audit.read(at, PAGE):
                for record in records:
                    write(_line(record))
                at = records[-1].sequence

        self._with_log(export)

    def _with_log(self, job: Callable[[AuditLog], Awaitable[T]]) -> T:
        async def with_log() -> T:
            audit = build_audit(self._plan.store.backend, self._folder)
            try:
                await audit.open()
                return await job(audit)
            finally:
                await audit.close()

        return _run(with_log())


def _run(job: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(job)
    except StoreError as error:
        raise Refused("store_refused", str(error), hint="interlock check --effective shows the data folder") from None


def _line(record: ChainedRecord) -> str:
    """The record as it was written, byte for byte in its values, with its place in the chain before it."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(record.data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        fields = {"damaged": record.data.decode("utf-8", "backslashreplace")}
    return msgspec.json.encode({"seq": record.sequence, "hash": record.hash.hex(), **fields}).decode()


def _token(record: TokenRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "door": record.door,
        "scope": record.scope,
        "created_at": rfc3339(record.created_at),
        "expires_at": rfc3339(record.expires_at) if record.expires_at is not None else None,
        "last_used_at": None,
    }

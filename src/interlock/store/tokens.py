"""Bearer tokens: made here, kept only as hashes.

A token is a prefix that names its audience and 256 random bits. The table, bucket "tokens", maps SHA-256(token) to a
record; the token itself is shown once and never stored. So many random bits need neither salt nor a slow hash.

Of the modules of its layer only this one draws random numbers. Like them it takes the time as an argument.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Literal, NewType

import msgspec

from interlock.store.ports import Conflict, Damaged, Entry, KeyValue

TokenAudience = Literal["client", "subserver", "room", "operator", "browser"]
Scope = Literal["read", "write", "admin"]
TokenId = NewType("TokenId", str)

BUCKET = "tokens"
PREFIXES: Mapping[TokenAudience, str] = {
    "client": "ilc_",
    "subserver": "ils_",
    "room": "ilr_",
    "operator": "ilo_",
    "browser": "ilb_",  # the session of a browser at the operator endpoint, in a cookie
}
RANDOM_BITS = 256
NAME_LENGTH_MAX = 64

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = 43  # 62**43 > 2**256
ID_LENGTH = 16
_AUDIENCES: Mapping[str, TokenAudience] = {prefix: audience for audience, prefix in PREFIXES.items()}
_FORM = re.compile(rf"(il[csrob]_)[0-9A-Za-z]{{{_DIGITS}}}")
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{NAME_LENGTH_MAX - 1}}}")


class BadTokenName(ValueError):
    """A token's name becomes part of a principal, hence its narrow alphabet."""


def token_name_fault(name: str) -> str | None:
    """Why a token cannot bear this name, or None."""
    if _NAME.fullmatch(name) is not None:
        return None
    shown = name if len(name) <= NAME_LENGTH_MAX else name[: NAME_LENGTH_MAX - 1] + "…"
    return (
        f"A token name has 1 to {NAME_LENGTH_MAX} letters, digits, dots, dashes, underscores or @, "
        f"and begins with a letter or digit; {shown!r} does not."
    )


class TokenRoom(msgspec.Struct, frozen=True, kw_only=True):
    """What a token for a room is good for (MCPx 5.1)."""

    topic: str
    participant: str
    privilege: Literal["full", "restricted"] = "restricted"
    protocol: str | None = None


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: TokenId
    name: str
    owner: str
    audience: TokenAudience = msgspec.field(name="door")
    scope: Scope
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    roles: tuple[str, ...] | None = None  # of a person; None: those of the scope
    room: TokenRoom | None = None
    last_used_at: float | None = None  # to the minute, as far as the node lived to write it down

    def opens(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "TokenRecord":
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise Damaged(
                f"a token record cannot be read ({error}); revoke it by deleting the store's entry"
            ) from error


def mint(audience: TokenAudience) -> tuple[str, TokenId]:
    token = PREFIXES[audience] + _base62(secrets.randbits(RANDOM_BITS))
    return token, _token_id(token_hash(token))


def session_cookie(key_untrusted: str) -> str:
    """The cookie of the browser's session that has this key: computed from it, and never the other way round."""
    digest = hashlib.sha256(b"session:" + key_untrusted.encode("utf-8", "surrogatepass")).digest()
    return PREFIXES["browser"] + _base62(int.from_bytes(digest))


def token_hash(token_untrusted: str) -> str:
    """The key of the token in the table. Takes any string: a malformed one is in no table."""
    return hashlib.sha256(token_untrusted.encode("utf-8", "surrogatepass")).hexdigest()


def maybe_audience(token_untrusted: str) -> TokenAudience | None:
    """The audience that a token says it is for, or None if it has not the form of a token."""
    form = _FORM.fullmatch(token_untrusted)
    return None if form is None else _AUDIENCES[form[1]]


class TokenTable:
    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def issue(
        self,
        *,
        name: str,
        owner: str,
        audience: TokenAudience,
        scope: Scope,
        now: float,
        expires_at: float | None = None,
        roles: tuple[str, ...] | None = None,
        room: TokenRoom | None = None,
        token: str | None = None,
    ) -> tuple[str, TokenRecord]:
        """Make a token, to be shown once, and its record. A name may be used again: both tokens then bear it. `token`:
        one that is made already."""
        fault = token_name_fault(name)
        if fault is not None:
            raise BadTokenName(fault)
        token = mint(audience)[0] if token is None else token
        record = TokenRecord(
            id=_token_id(token_hash(token)),
            name=name,
            owner=owner,
            audience=audience,
            scope=scope,
            created_at=now,
            expires_at=expires_at,
            roles=roles,
            room=room,
        )
        await self._kv.create(BUCKET, token_hash(token), record.encode(), now)
        return token, record

    async def find(self, hash: str, now: float) -> TokenRecord | None:
        """The record of a token that is good now; None if unknown, expired or revoked."""
        entry = await self._kv.get(BUCKET, hash, now)
        if entry is None:
            return None
        record = TokenRecord.decode(entry.value)
        return record if record.opens(now) else None

    async def by_hash(self, now: float) -> dict[str, TokenRecord]:
        """All records under the hash that finds them."""
        return {entry.key: TokenRecord.decode(entry.value) for entry in await self._kv.entries(BUCKET, now)}

    async def list(self, now: float) -> list[TokenRecord]:
        """All records, expired and revoked ones too, oldest first."""
        records = [TokenRecord.decode(entry.value) for entry in await self._kv.entries(BUCKET, now)]
        return sorted(records, key=lambda record: (record.created_at, record.id))

    async def revoke(self, reference: str, now: float) -> tuple[TokenRecord, ...]:
        """Revoke the token of that id or, if no id fits, all of that name. Returns those that it revoked."""
        entries = await self._kv.entries(BUCKET, now)
        records = [(entry, TokenRecord.decode(entry.value)) for entry in entries]
        meant = [pair for pair in records if pair[1].id == reference] or [
            pair for pair in records if pair[1].name == reference
        ]
        return tuple([record for entry, record in meant if await self._revoke_one(entry, record, now)])

    async def forget_ended(self, audience: TokenAudience, now: float) -> None:
        """Removes the records of that audience that open nothing any more."""
        for hash, record in (await self.by_hash(now)).items():
            if record.audience == audience and not record.opens(now):
                await self._kv.delete(BUCKET, hash)

    async def note_used(self, hash: str, used_at: float, now: float) -> None:
        """Where somebody else is writing the record, it is not worth a second attempt."""
        entry = await self._kv.get(BUCKET, hash, now)
        if entry is None:
            return
        used = msgspec.structs.replace(TokenRecord.decode(entry.value), last_used_at=used_at)
        try:
            await self._kv.update(BUCKET, hash, used.encode(), entry.revision, now)
        except Conflict:
            pass

    async def _revoke_one(self, entry: Entry, record: TokenRecord, now: float) -> bool:
        while record.revoked_at is None:
            revoked = msgspec.structs.replace(record, revoked_at=now)
            try:
                await self._kv.update(BUCKET, entry.key, revoked.encode(), entry.revision, now)
            except Conflict:
                current = await self._kv.get(BUCKET, entry.key, now)
                if current is None:
                    return False
                entry, record = current, TokenRecord.decode(current.value)
            else:
                return True
        return False


def _token_id(hash: str) -> TokenId:
    return TokenId(hash[:ID_LENGTH])


def _base62(number: int) -> str:
    digits = []
    for _ in range(_DIGITS):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))

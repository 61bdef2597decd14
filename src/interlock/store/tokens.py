"""Bearer tokens: made here, kept only as hashes.

A token is a prefix that names its audience and 256 random bits. The table, bucket "tokens", maps SHA-256(token) to a
record; the token itself is shown once and never stored. So many random bits need neither salt nor a slow hash: they
cannot be guessed from a stolen table.

A token is revoked by a time in its record, not by deleting it, so that lists can still show it. Records are changed
with compare-and-swap, because several processes may use one store. Times are arguments: the module has no clock.
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
    """Exception for a name that a token may not have. It would become part of a principal, so only few characters are
    allowed.
    """


def token_name_fault(name: str) -> str | None:
    """Return why a text is not a valid token name, or None if it is valid."""
    if _NAME.fullmatch(name) is not None:
        return None
    shown = name if len(name) <= NAME_LENGTH_MAX else name[: NAME_LENGTH_MAX - 1] + "…"
    return (
        f"A token name has 1 to {NAME_LENGTH_MAX} letters, digits, dots, dashes, underscores or @, "
        f"and begins with a letter or digit; {shown!r} does not."
    )


class GrantedRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The access that a token for a room grants: the room, the participant and its privilege (MCPx 5.1).

    A token without a privilege leaves it to the room: full in an open room, by identity in a mixed one (MCPx 6.1).
    """

    topic: str
    participant: str
    privilege: Literal["full", "restricted"] | None = None
    protocol: str | None = None


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The data that is stored about a token. The token itself is not stored."""

    id: TokenId
    name: str
    owner: str
    audience: TokenAudience = msgspec.field(name="door")
    scope: Scope
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    roles: tuple[str, ...] | None = None  # of a person; None: those of the scope
    room: GrantedRoom | None = None
    last_used_at: float | None = None  # to the minute, as far as the node lived to write it down

    def opens(self, now: float) -> bool:
        """Return whether the token is valid at the time `now`: not expired and not revoked."""
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
    """Create a new random token. Return the token and its id."""
    token = PREFIXES[audience] + _base62(secrets.randbits(RANDOM_BITS))
    return token, TokenId(token_hash(token)[:ID_LENGTH])


def session_cookie(key_untrusted: str) -> str:
    """Return the cookie for the session of a browser that has this key. The key cannot be computed from the cookie."""
    digest = hashlib.sha256(b"session:" + key_untrusted.encode("utf-8", "surrogatepass")).digest()
    return PREFIXES["browser"] + _base62(int.from_bytes(digest))


def token_hash(token_untrusted: str) -> str:
    """Return the hash under which the token table stores a token. Texts that are no tokens are hashed too, and not
    found there.
    """
    return hashlib.sha256(token_untrusted.encode("utf-8", "surrogatepass")).hexdigest()


def find_audience(token_untrusted: str) -> TokenAudience | None:
    """Return the audience of a token, which its prefix names, or None if the text does not have the form of a token."""
    form = _FORM.fullmatch(token_untrusted)
    return None if form is None else _AUDIENCES[form[1]]


class TokenTable:
    """The records of all tokens, in a key-value store."""

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
        room: GrantedRoom | None = None,
        token: str | None = None,
    ) -> tuple[str, TokenRecord]:
        """Create a token and its record, and return both. The token itself is not stored, so show it to the user at
        once.

        Several tokens may have the same name. `token` is stored instead of a new random token. Raise BadTokenName if
        the name is invalid.
        """
        fault = token_name_fault(name)
        if fault is not None:
            raise BadTokenName(fault)
        token = mint(audience)[0] if token is None else token
        record = TokenRecord(
            id=TokenId(token_hash(token)[:ID_LENGTH]),
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
        """Return the record of the token with this hash. Return None if it is unknown, expired or revoked."""
        entry = await self._kv.get(BUCKET, hash, now)
        if entry is None:
            return None
        record = TokenRecord.decode(entry.value)
        return record if record.opens(now) else None

    async def by_hash(self, now: float) -> dict[str, TokenRecord]:
        """Return all records, keyed by the hash of their token."""
        return {entry.key: TokenRecord.decode(entry.value) for entry in await self._kv.entries(BUCKET, now)}

    async def list(self, now: float) -> list[TokenRecord]:
        """Return all records, including expired and revoked ones, oldest first."""
        records = (await self.by_hash(now)).values()
        return sorted(records, key=lambda record: (record.created_at, record.id))

    async def revoke(self, reference: str, now: float) -> tuple[TokenRecord, ...]:
        """Revoke the token with the id `reference` or, if there is none, all tokens with that name. Return the records
        of the revoked tokens as they were before.
        """
        entries = await self._kv.entries(BUCKET, now)
        records = [(entry, TokenRecord.decode(entry.value)) for entry in entries]
        meant = [pair for pair in records if pair[1].id == reference] or [
            pair for pair in records if pair[1].name == reference
        ]
        return tuple([record for entry, record in meant if await self._revoke_one(entry, record, now)])

    async def forget_ended(self, audience: TokenAudience, now: float) -> None:
        """Delete the records of all expired and revoked tokens of an audience."""
        for hash, record in (await self.by_hash(now)).items():
            if record.audience == audience and not record.opens(now):
                await self._kv.delete(BUCKET, hash)

    async def note_used(self, hash: str, used_at: float, now: float) -> None:
        """Store when a token was last used. If another writer changes the record at the same moment, nothing is
        stored.
        """
        entry = await self._kv.get(BUCKET, hash, now)
        if entry is None:
            return
        used = msgspec.structs.replace(TokenRecord.decode(entry.value), last_used_at=used_at)
        try:
            await self._kv.update(BUCKET, hash, used.encode(), entry.revision, now)
        except Conflict:
            pass

    async def _revoke_one(self, entry: Entry, record: TokenRecord, now: float) -> bool:
        """Revoke one token. If its record changes in the meantime, try again. Return False if the token was already
        revoked or has been deleted.
        """
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


def _base62(number: int) -> str:
    digits = []
    for _ in range(_DIGITS):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))

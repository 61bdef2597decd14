"""Verification codes and confirmation tokens: how they are created, compared with what an agent sends, and stored.

Only operators see a code. It stays in memory as long as its challenge is open, so that an operator can look at it
again. The disk holds only its hash, so a new code is needed after a restart. Failed attempts are counted in a sliding
window, which is stored on disk.
"""

import contextlib
import hashlib
import hmac
import re
import secrets
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import msgspec

from interlock.core.clock import Clock
from interlock.store.ports import Change, Conflict, Damaged, KeyValue

CHALLENGES: Final = "verify-challenges"
ATTEMPTS: Final = "verify-attempts"
KEYS: Final = "safety-keys"

ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
CODE_CHARS: Final = 26  # AQL-8.8.2-1
CODE_BITS: Final = 5 * CODE_CHARS  # AQL-8.8.2-1
TOKEN_PREFIX: Final = "conf_"  # noqa: S105
TOKEN_BYTES: Final = 32

FAILURES_MAX: Final = 10  # 8.8.5
WINDOW_S: Final = 60.0
WINDOW_MAX_S: Final = 3600.0
REMEMBERED_S: Final = 3600.0  # how long a violation lengthens the next window
KEPT_S: Final = 86_400.0  # a challenge that is over, to answer late attempts

_FILLING: Final = re.compile(r"[\s-]+")
_CONFUSED: Final = str.maketrans("OIL", "011")


def new_code() -> str:
    bits = secrets.randbits(CODE_BITS)  # AQL-8.8.2-1
    return "".join(ALPHABET[bits >> at & 31] for at in range(0, CODE_BITS, 5))


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def grouped(code: str) -> str:
    """Return a code in groups of five characters, so that a person can read it."""
    return "-".join(code[at : at + 5] for at in range(0, len(code), 5))


def plain_code(written: str) -> str:
    return _FILLING.sub("", written[:200]).upper().translate(_CONFUSED)


class StoredChallenge(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a verification challenge: which agent it is for, and the keyed hash of its code."""

    id: str
    principal: str
    name: str
    code_hash: str
    expires_at: float


@dataclass(eq=False)
class Codes:
    """The verification codes and confirmation tokens of a node, by the id of their approval. Methods that write raise
    StoreError if the store fails.
    """

    kv: KeyValue
    clock: Clock
    _key: bytes = field(default=b"", init=False)
    _shown: dict[str, str] = field(default_factory=dict, init=False)  # to operators, while it lives
    _challenges: dict[str, StoredChallenge] = field(default_factory=dict, init=False)
    _tokens: dict[str, str] = field(default_factory=dict, init=False)  # hash -> id of the approval

    async def open(self) -> None:
        now = self.clock.wall()
        key = secrets.token_bytes(32)
        try:
            await self.kv.create(KEYS, "codes", key, now)
        except Conflict:
            entry = await self.kv.get(KEYS, "codes", now)
            key = entry.value if entry is not None else b""
        if len(key) != 32:
            raise Damaged("the key of verification codes cannot be read; put a backup of the store in its place")
        self._key = key
        for entry in await self.kv.entries(CHALLENGES, now):
            # Nobody can verify a challenge that cannot be read; the block that it was for remains.
            with contextlib.suppress(msgspec.DecodeError):
                self._challenges[entry.key] = msgspec.json.decode(entry.value, type=StoredChallenge)

    def take_change(self, change: Change) -> None:
        """Store the hash of a verification code that another replica created, so that this replica can check the code
        too. Only the other replica can show it.
        """
        if change.entry is not None:
            self._challenges[change.key] = msgspec.json.decode(change.entry.value, type=StoredChallenge)

    async def make_code(self, id: str, principal: str, name: str, expires_at: float) -> None:
        code = new_code()
        hash = self._hash(code)
        challenge = StoredChallenge(id=id, principal=principal, name=name, code_hash=hash, expires_at=expires_at)
        now = self.clock.wall()
        await self.kv.put(CHALLENGES, id, msgspec.json.encode(challenge), now, ttl_s=expires_at - now + KEPT_S)
        self._challenges[id] = challenge
        self._shown[id] = grouped(code)

    def make_token(self, id: str) -> None:
        self._shown[id] = token = new_token()
        self._tokens[self._hash(token)] = id

    def find_challenge(self, id: str) -> StoredChallenge | None:
        return self._challenges.get(id)

    def is_code(self, challenge: StoredChallenge, written: str) -> bool:
        """Return whether the text that an agent sent is the verification code of a challenge. The comparison takes
        constant time.
        """
        return hmac.compare_digest(self._hash(plain_code(written)), challenge.code_hash)

    def find_approval_of(self, token: str) -> str | None:
        """Return the id of the approval that a confirmation token belongs to, even if that approval has ended. Return
        None for an unknown token.
        """
        return self._tokens.get(self._hash(token))

    def find_code(self, id: str) -> str | None:
        """Return the code or token of an approval, for an operator. Return None if the approval has ended, or if the
        code was created before the node started.
        """
        return self._shown.get(id)

    def forget(self, id: str) -> None:
        """Stop showing the code or token of an approval that has ended. Its hash is kept to recognise late attempts,
        and removed only when there are too many.
        """
        self._shown.pop(id, None)
        if len(self._tokens) > 10_000:
            for old in list(self._tokens)[:1000]:
                del self._tokens[old]
        if len(self._challenges) > 10_000:
            oldest = self.clock.wall() - KEPT_S
            recent = {id: challenge for id, challenge in self._challenges.items() if challenge.expires_at > oldest}
            self._challenges = recent

    def _hash(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Times of an agent's failed verification attempts, and of the attempts by which it exceeded the limit."""

    failures: tuple[float, ...] = ()
    violations: tuple[float, ...] = ()
    shut_until: float = 0.0


class Limited(msgspec.Struct, frozen=True):
    until: float
    retry_after_s: int


@dataclass(eq=False)
class Attempts:
    """Counter of failed verifications. After FAILURES_MAX failures within the window, further attempts are refused for
    a time.

    With `is_progressive`, the time doubles with each further violation within an hour, up to WINDOW_MAX_S. A violation
    is an attempt over the limit that starts a new lockout.
    """

    kv: KeyValue
    clock: Clock
    _: KW_ONLY
    is_progressive: bool
    _windows: dict[str, Window] = field(default_factory=dict, init=False)

    async def open(self) -> None:
        for entry in await self.kv.entries(ATTEMPTS, self.clock.wall()):
            try:
                self._windows[entry.key] = msgspec.json.decode(entry.value, type=Window)
            except msgspec.DecodeError:
                self._windows[entry.key] = Window(shut_until=self.clock.wall() + WINDOW_S)

    def take_change(self, change: Change) -> None:
        """Merge the failed attempts that another replica counted with those counted here."""
        if change.entry is not None:
            theirs = msgspec.json.decode(change.entry.value, type=Window)
            own = self._windows.get(change.key, Window())
            self._windows[change.key] = Window(
                failures=tuple(sorted({*own.failures, *theirs.failures})[-FAILURES_MAX:]),
                violations=tuple(sorted({*own.violations, *theirs.violations})),
                shut_until=max(own.shut_until, theirs.shut_until),
            )

    def replan(self, *, is_progressive: bool) -> None:
        self.is_progressive = is_progressive

    def count(self, who: str) -> int:
        return len(self._current(who, self.clock.wall()).failures)

    async def find_limit(self, who: str) -> Limited | None:
        """Return the limit that refuses a verification attempt of `who`, or None if the attempt is allowed. If the
        limit is progressive, the first refused attempt is stored, because it lengthens the next lockout.
        """
        now = self.clock.wall()
        window = self._current(who, now)
        if len(window.failures) < FAILURES_MAX and window.shut_until <= now:
            return None
        until = max(window.shut_until, window.failures[0] + WINDOW_S if window.failures else 0.0)
        if self.is_progressive and window.shut_until <= now:
            violations = (*window.violations, now)
            length = min(WINDOW_S * 2 ** (len(violations) - 1), WINDOW_MAX_S)
            until = max(until, window.failures[-1] + length)
            window = Window(failures=window.failures, violations=violations, shut_until=until)
            await self._keep(who, window, now)
        return Limited(until, max(1, round(until - now + 0.5)))

    async def fail(self, who: str) -> None:
        """Count a failed verification attempt of `who`. The count is in the store when this returns."""
        now = self.clock.wall()
        window = self._current(who, now)
        await self._keep(who, msgspec.structs.replace(window, failures=(*window.failures, now)[-FAILURES_MAX:]), now)

    def _current(self, who: str, now: float) -> Window:
        window = self._windows.get(who)
        if window is None:
            return Window()
        failures = window.failures
        if now >= window.shut_until:
            failures = tuple(at for at in failures if now - WINDOW_S < at <= now)
        violations = tuple(at for at in window.violations if now - REMEMBERED_S < at <= now)
        return Window(failures=failures, violations=violations, shut_until=window.shut_until)

    async def _keep(self, who: str, window: Window, now: float) -> None:
        self._windows[who] = window
        await self.kv.put(ATTEMPTS, who, msgspec.json.encode(window), now, ttl_s=WINDOW_MAX_S + REMEMBERED_S)

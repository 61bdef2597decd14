"""The operator's key, used for a person in a browser: unlocked by their passphrase for one signature, then forgotten.

The key is a file of the user who runs the node, and the file alone signs nothing: it is encrypted. The passphrase is
neither kept nor logged. One is tried at a time, because each takes 128 MiB. From the third wrong passphrase in a row
on, the next attempt must wait longer each time. Each caller is counted separately. Callers that never entered a correct
passphrase also share a second count, so that a new session gives no additional attempts; they can lock the key for each
other, but not for a caller that has entered a correct one.
"""

import asyncio
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from interlock.approvals.trust.anchors import Anchors
from interlock.core.clock import Clock
from interlock.crypto.jose import BadKey, read_key_untrusted, thumbprint
from interlock.crypto.signing import KEY_NAME, PASSPHRASE_CHARS_MIN, KeyExists, key_names, make_key, public_text
from interlock.gate.protocol.proofs import TYP, ProofQuestion, claims_of, invalid
from interlock.wire.refusal import Refusal

JTI_BYTES: Final = 16
FREE_TRIES: Final = 3  # of one caller
SHARED_TRIES: Final = 20  # of all callers together who never knew a passphrase
CALLERS_MAX: Final = 256  # that are remembered; the oldest is forgotten
WAIT_S: Final = 5.0  # after the first wrong passphrase that is not free; doubled with each
WAIT_S_MAX: Final = 300.0


class TooOften(msgspec.Struct, frozen=True):
    """Refusal after too many wrong passphrases: further attempts are refused for a time."""

    wait_s: int


@dataclass(eq=False, slots=True)
class _Tries:
    """Counter of wrong passphrases. It decides when the next attempt is allowed."""

    free: int
    wrong: int = 0
    not_before: float = 0.0
    has_known: bool = False  # a passphrase was right once

    def count(self, now: float, *, is_wrong: bool) -> None:
        self.wrong = self.wrong + 1 if is_wrong else 0
        self.has_known |= not is_wrong
        if self.wrong >= self.free:
            self.not_before = now + min(WAIT_S_MAX, WAIT_S * 2.0 ** min(self.wrong - self.free, 10))


@dataclass(eq=False)
class OperatorKeyService:
    """The keys of operators on this machine, each unlocked by a passphrase for one signature."""

    folder: Path
    anchors: Anchors
    clock: Clock
    _trying: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _callers: dict[str, _Tries] = field(default_factory=dict, init=False)
    _strangers: _Tries = field(default_factory=lambda: _Tries(SHARED_TRIES), init=False)

    def names(self) -> tuple[str, ...]:
        """Return the names of the keys on this machine that are enrolled."""
        believed = {thumbprint(key) for anchor in self.anchors.known() if anchor.approves for key in anchor.keys}
        return tuple(name for name in key_names(self.folder) if self._find_thumbprint(name) in believed)

    async def sign(
        self, question: ProofQuestion, name: str | None, passphrase: str, *, by: str
    ) -> str | Refusal | TooOften:
        """Sign a question with an operator key, and return the proof. `name` selects one of several keys, and `by` is
        the caller whose wrong passphrases are counted.
        """
        names = self.names()
        chosen = name if name is not None else names[0] if len(names) == 1 else None
        if chosen not in names:
            why = f"choose one of {', '.join(names)}" if names else "no operator key on the node's machine is enrolled"
            return invalid("key_unknown", why)
        async with self._trying:
            tries, now = self._tries(by), self.clock.now()
            wait_s = max(attempts.not_before for attempts in tries) - now
            if wait_s > 0:
                return TooOften(max(1, round(wait_s)))
            token = await asyncio.to_thread(self._sign, question, chosen, passphrase.encode(), self.clock.wall())
            for attempts in tries:
                attempts.count(self.clock.now(), is_wrong=isinstance(token, Refusal))
            return token

    async def make(self, name: str, passphrase: str) -> str | Refusal:
        """Create an operator key and return its public key, or a refusal."""
        if KEY_NAME.fullmatch(name) is None:
            return invalid("bad_name", "a key's name is 1 to 63 of the characters A-Z a-z 0-9 . _ -")
        if len(passphrase) < PASSPHRASE_CHARS_MIN:
            return invalid("bad_passphrase", f"the passphrase has at least {PASSPHRASE_CHARS_MIN} characters")
        try:
            path = self.folder / f"{name}.key"
            async with self._trying:
                return await asyncio.to_thread(make_key, path, "ed25519", passphrase.encode())
        except KeyExists:
            return invalid("exists", f"there is a key {name} already; it belongs into interlock.toml of the node")
        except OSError as error:
            return invalid("not_written", f"the key cannot be written: {error.strerror or error}")

    def _sign(self, question: ProofQuestion, name: str, passphrase: bytes, now: float) -> str | Refusal:
        from interlock.crypto.signing import KeyFileError, PassphraseWrong, read_signing_key

        try:
            key = read_signing_key(self.folder / f"{name}.key", passphrase)
        except PassphraseWrong:  # a key without one proves nothing of a person in a browser
            return invalid("passphrase", "the key cannot be opened with this passphrase")
        except KeyFileError as refused:
            return invalid("key_unfit", str(refused))
        return key.sign(TYP, claims_of(question, issuer=name, jti=secrets.token_urlsafe(JTI_BYTES), now=now))

    def _tries(self, by: str) -> tuple[_Tries, ...]:
        own = self._callers.get(by)
        if own is None:
            while len(self._callers) >= CALLERS_MAX:
                del self._callers[next(iter(self._callers))]
            own = self._callers[by] = _Tries(FREE_TRIES)
        return (own,) if own.has_known else (own, self._strangers)

    def _find_thumbprint(self, name: str) -> str | None:
        try:
            (key,) = read_key_untrusted(public_text(self.folder / f"{name}.key"))
        except (OSError, ValueError, BadKey):
            return None
        return thumbprint(key)

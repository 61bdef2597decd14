"""The anchors of a node: the signers that it trusts, with their current keys.

Anchors come from [[anchor]] entries. Keys that are written out or are in files are read at the start and when the
configuration changes. A key that cannot be read stops the start: a node must not run with less trust, or more, than its
operator wrote down. Key sets at a URL are fetched when a signature is to be judged, kept while they are fresh, and
fetched again when a signature names a key that is not in them. While no usable key set is there, no signature under it
is believed.

An anchor approves only tools for which it was enrolled (`enrolments`), even if the configuration lists more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

from interlock.access.key_sets import Get, IssuerUnavailable, KeyRing
from interlock.ax.protocol.registration.authority import KEY_UNKNOWN, Anchor
from interlock.config.plan import AnchorPlan
from interlock.core.clock import Clock
from interlock.core.part import AnchorInvalid
from interlock.crypto.jose import BadKey, Jwk, find_pem_label, read_key_untrusted, thumbprint
from interlock.crypto.webauthn import read_passkey_untrusted
from interlock.net.fetch import Fetcher
from interlock.wire.refusal import Refusal, unavailable

FILE_BYTES_MAX: Final = 512 * 1024  # as of a key set at a URL

_Judged = TypeVar("_Judged")


class Anchors:
    """The anchors (trusted keys, passkeys and key sets) of a node: those of the configuration, and those that were
    enrolled without it.
    """

    def __init__(self, plans: Sequence[AnchorPlan], clock: Clock, get: Get | None = None) -> None:
        """Create the anchors without loading any key; `open` does that. `get` fetches a document,
        by default over HTTPS.
        """
        self._fetcher = Fetcher()
        self._get = get or self._fetcher.get
        self._clock = clock
        self._plans = {plan.name: plan for plan in plans}
        self._read: dict[str, tuple[Jwk, ...]] = {}
        self._rings: dict[str, KeyRing] = {}
        self._enrolled: dict[str, AnchorPlan] = {}  # besides those of the configuration
        self._believed: Mapping[str, Sequence[str]] | None = None  # None: everybody, for what they are configured for
        self._approves: dict[str, tuple[str, ...]] = {plan.name: plan.approves for plan in plans}  # as far as believed

    def load(self) -> None:
        """Read the keys of all anchors. Raise AnchorInvalid and change nothing if one of them cannot be read."""
        self._take(self._plans)

    async def open(self) -> None:
        """Load the anchors. Raise AnchorInvalid as `load` does."""
        self.load()

    async def replan(self, plans: Sequence[AnchorPlan]) -> None:
        """Replace the configured anchors. Raise AnchorInvalid as `load` does."""
        gone = dict(self._rings)
        self._take({plan.name: plan for plan in plans})
        for name, ring in gone.items():
            if self._rings.get(name) is not ring:
                await ring.close()

    def believe(self, approves: Mapping[str, Sequence[str]], enrolled: Sequence[AnchorPlan]) -> None:
        """Set for which tools each anchor is enrolled, by the `identity` of the anchor. `enrolled` are anchors that the
        configuration does not name; they replace configured anchors of the same name.
        """
        self._believed = dict(approves)
        self._enrolled = {plan.name: plan for plan in enrolled}
        self._read |= {plan.name: _keys(plan) for plan in enrolled}
        self._find_approves()

    def identity(self, plan: AnchorPlan) -> str:
        """Return a text that identifies an anchor as long as its keys stay the same: their thumbprints, or the address
        of its key set.
        """
        if isinstance(plan.jwks, str):
            return plan.jwks
        is_read = plan.name in self._read and (self._plans | self._enrolled).get(plan.name) == plan
        return ",".join(sorted(map(thumbprint, self._read[plan.name] if is_read else _keys(plan))))

    @property
    def plans(self) -> tuple[AnchorPlan, ...]:
        return tuple((self._plans | self._enrolled).values())

    @property
    def configured(self) -> tuple[AnchorPlan, ...]:
        return tuple(self._plans.values())

    def unbelieved(self) -> tuple[AnchorPlan, ...]:
        """Return the configured anchors that are not yet enrolled for all tools that the configuration
        lists for them.
        """
        return tuple(plan for plan in self.plans if plan.approves != self._approves[plan.name])

    def _find_approves(self) -> None:
        approves = {plan.name: plan.approves for plan in self.plans}
        for plan in self.plans if self._believed is not None else ():
            is_loaded = plan.approves and (plan.name in self._read or plan.name in self._rings)
            held = (self._believed or {}).get(self.identity(plan), ()) if is_loaded else ()
            approves[plan.name] = tuple(glob for glob in plan.approves if glob in held or "*" in held)
        self._approves = approves

    def _take(self, plans: dict[str, AnchorPlan]) -> None:
        read = {plan.name: _keys(plan) for plan in plans.values() if not isinstance(plan.jwks, str)}
        rings = {
            name: self._rings[name]
            if name in self._rings and self._plans[name].jwks == plan.jwks
            else KeyRing(f"anchor {name}", "", plan.jwks, self._get, self._clock)
            for name, plan in plans.items()
            if isinstance(plan.jwks, str)
        }
        read |= {plan.name: _keys(plan) for plan in self._enrolled.values()}
        self._plans, self._read, self._rings = plans, read, rings
        self._find_approves()

    async def close(self) -> None:
        for ring in self._rings.values():
            await ring.close()
        await self._fetcher.close()

    def approver_names(self, tool: str) -> tuple[str, ...]:
        """Return the names of the anchors whose signature approves a call of the tool."""
        approves = self._approves
        return tuple(plan.name for plan in self.plans if any(fnmatchcase(tool, glob) for glob in approves[plan.name]))

    async def judge_signature(
        self, picked: Callable[[Anchor], bool], judge: Callable[[Sequence[Anchor]], _Judged | Refusal]
    ) -> _Judged | Refusal:
        """Verify a signature with the keys of all anchors, and return the result of `judge`. The key sets of the
        anchors that `picked` selects are fetched first.

        Key sets are fetched only for the anchors that `picked` selects, which are those that may have signed. If
        `judge` finds that none of them has the key, their sets are fetched again and `judge` is called once more. If a
        set that may hold the key cannot be fetched, return the refusal `unavailable`.
        """
        rings = [
            self._rings[anchor.name]
            for anchor in self.known()
            if anchor.source == "jwks" and picked(anchor) and anchor.name in self._rings
        ]
        away = IssuerUnavailable in await asyncio.gather(*(_outcome(ring.fresh()) for ring in rings))
        verdict = judge(self.known())
        if not _is_unknown_key(verdict) or not rings:
            return verdict
        away = IssuerUnavailable in await asyncio.gather(*(_outcome(ring.search()) for ring in rings)) or away
        verdict = judge(self.known())
        if _is_unknown_key(verdict) and away:
            return unavailable("anchor_keys")
        return verdict

    def known(self) -> tuple[Anchor, ...]:
        """Return every anchor (a trusted key, passkey or key set) with its current keys. A key set that was never
        fetched has none. An enrolled anchor keeps its keys even if the configuration has an anchor of the same name.
        """
        fetched = {name: ring.known for name, ring in self._rings.items()}
        return tuple(
            Anchor(
                name=plan.name,
                keys=(fetched if isinstance(plan.jwks, str) else self._read).get(plan.name, ()),
                speaks_for=frozenset(plan.speaks_for),
                approves=self._approves[plan.name],
                source="jwks" if plan.jwks is not None else "key" if plan.passkey is None else "passkey",
            )
            for plan in self.plans
        )


async def _outcome(renewal: Awaitable[object]) -> object:
    try:
        return await renewal
    except IssuerUnavailable:
        return IssuerUnavailable


def _is_unknown_key(verdict: object) -> bool:
    return isinstance(verdict, Refusal) and (verdict.details or {}).get("reason") == KEY_UNKNOWN


def _keys(plan: AnchorPlan) -> tuple[Jwk, ...]:
    source = plan.key if plan.key is not None else plan.jwks
    if source is None:
        return (read_passkey_untrusted(plan.passkey or ""),)  # the configuration made sure of it
    where = f"{source} of anchor {plan.name}" if isinstance(source, Path) else f"the key of anchor {plan.name}"
    try:
        text = _file(source) if isinstance(source, Path) else source
        if find_pem_label(text) is None:
            return read_key_untrusted(text)
        from interlock.crypto.signing import read_pem_untrusted

        return (read_pem_untrusted(text),)
    except BadKey as bad:
        raise AnchorInvalid(f"{where} is no public key: {bad}") from None
    except OSError as error:
        raise AnchorInvalid(f"{where} cannot be read: {error.strerror or error}") from None


def _file(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise BadKey(f"the file is larger than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadKey("the file is not text") from None

"""What follows from a judgement: a tool is offered, offered with a warning, or refused, alone or with its server."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from interlock.names.protocol.judgement import Judgement, SurfaceVerdict
from interlock.names.protocol.model import Entry, Status

Enforcement = Literal["reject", "session", "warn", "off"]

# Provisional and withdrawn entries only warn (REG-8.1-2).
_ENFORCED: Final = frozenset([Status.ACTIVE, Status.DEPRECATED])
_FAILS: Final = frozenset([SurfaceVerdict.MISMATCH, SurfaceVerdict.UNDECIDED])
VERIFIED: Final = frozenset([SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE, SurfaceVerdict.INPUT_ONLY])


class SurfacePolicy(msgspec.Struct, frozen=True, kw_only=True):
    enforce: Enforcement = "reject"
    per_name: Mapping[str, Enforcement] = {}
    strict: bool = False  # a server without an output schema, and every difference from a pin, is refused

    def enforcement(self, name: str) -> Enforcement:
        return self.per_name.get(name, self.enforce)

    def consequence(
        self, entry: Entry, judgement: Judgement, *, is_trusted: bool, is_accepted: bool
    ) -> Enforcement | Literal["pass"]:
        """`is_trusted`: of the source of the entry. `is_accepted`: an operator accepted this undecided pair."""
        said = self.enforcement(entry.surface_name)
        if said == "off":
            return "off"
        fails = judgement.verdict in _FAILS and not (judgement.verdict is SurfaceVerdict.UNDECIDED and is_accepted)
        if judgement.verdict is SurfaceVerdict.INPUT_ONLY:
            fails = self.strict  # REG-8.1-5
        if not fails:
            is_plain = judgement.verdict in VERIFIED and judgement.verdict is not SurfaceVerdict.INPUT_ONLY
            return "pass" if is_plain and not judgement.notes else "warn"
        return said if is_trusted and entry.status in _ENFORCED else "warn"  # REG-8.1-2, REG-N-5

"""The rulings of operators on definitions, remembered by tool and digest: what a tool is, or that it is not to be used.

Another server that copies a definition word for word gets nothing from it, and a definition that changes is another.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from interlock.config.plan import ToolClass
from interlock.core.clock import Clock
from interlock.store.ports import Change, Damaged, KeyValue

BUCKET: Final = "rulings"

Says = Literal["read_only", "reversible", "irreversible", "accept", "denied"]


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    digest: str
    says: Says
    by: str
    at: float


@dataclass(eq=False)
class Rulings:
    """Decisions of operators about tools, in memory and on disk. A decision is on disk before it counts. Methods
    raise StoreError.
    """

    kv: KeyValue
    clock: Clock
    _by_digest: dict[tuple[str, str], Ruling] = field(default_factory=dict, init=False)
    _ruled: set[str] = field(default_factory=set, init=False)

    async def open(self) -> None:
        for entry in await self.kv.entries(BUCKET, self.clock.wall()):
            try:
                self._take(msgspec.json.decode(entry.value, type=Ruling))
            except msgspec.DecodeError:
                raise Damaged(
                    f"the ruling {entry.key} cannot be read; put a backup of the store in its place"
                ) from None

    def get(self, tool: str, digest: str) -> ToolClass | None:
        """Return the class that an operator gave a tool, or None."""
        ruling = self._by_digest.get((tool, digest))
        match ruling.says if ruling is not None else None:
            case None | "accept" | "denied":
                return None
            case tool_class:
                return tool_class

    def maybe(self, tool: str, digest: str) -> Ruling | None:
        return self._by_digest.get((tool, digest))

    def knows(self, tool: str) -> bool:
        """Return whether there is any decision about a tool. For most tools there is none, and their digest is not
        needed.
        """
        return tool in self._ruled

    async def put(self, ruling: Ruling) -> None:
        key = f"{ruling.tool}/{ruling.digest}"
        await self.kv.put(BUCKET, key, msgspec.json.encode(ruling), self.clock.wall())
        self._take(ruling)

    def take_change(self, change: Change) -> Ruling | None:
        """Take over a decision that an operator made at another replica. A decision is replaced and never removed."""
        if change.entry is None:
            return None
        ruling = msgspec.json.decode(change.entry.value, type=Ruling)
        self._take(ruling)
        return ruling

    def _take(self, ruling: Ruling) -> None:
        self._by_digest[ruling.tool, ruling.digest] = ruling
        self._ruled.add(ruling.tool)

"""A limit on something that many parties use, such as memory or places, for all parties together and for each of them.

A party reserves an amount with `hold`, and gives it back with `release` of the `Share` that it got.
"""

from dataclasses import dataclass


class SharedLimit:
    """A limit on the amounts that all parties hold together, and on the amount that each party holds."""

    def __init__(self, *, of_all: int, of_each: int) -> None:
        self.of_all = of_all
        self.of_each = of_each
        self.held = 0
        self._by_party: dict[str, int] = {}

    def hold(self, party: str, count: int) -> "Share | None":
        """Reserve an amount for a party, or return None if a limit is reached."""
        share = Share(self, party)
        return share if share.grow_to(count) else None

    def change(self, party: str, by: int) -> bool:
        of_party = self._by_party.get(party, 0) + by
        if by > 0 and (of_party > self.of_each or self.held + by > self.of_all):
            return False
        self.held += by
        if of_party:
            self._by_party[party] = of_party
        else:
            self._by_party.pop(party, None)
        return True


@dataclass(eq=False)
class Share:
    """An amount that a party has reserved from a shared limit. It counts until it is released."""

    limit: SharedLimit
    party: str
    count: int = 0

    def grow_to(self, count: int) -> bool:
        if not self.limit.change(self.party, count - self.count):
            return False
        self.count = count
        return True

    def release(self) -> None:
        """Give the amount back. A second call has no effect."""
        self.limit.change(self.party, -self.count)
        self.count = 0

"""What a device's session counts, for operators."""

from collections import Counter
from math import inf


class DeviceCounters:
    def __init__(self) -> None:
        self.sent = 0  # messages
        self.received = 0
        self.retries = 0
        self.unplugged = 0  # times that it was there and went
        self.discarded: Counter[str] = Counter()  # by reason
        self.seen = -inf  # when a valid message last came, in the time of the node's clock
        self.seen_wall: float | None = None

    def count_sent(self) -> None:
        self.sent += 1

    def count_received(self) -> None:
        self.received += 1

    def count_retry(self) -> None:
        self.retries += 1

    def count_unplugged(self) -> None:
        self.unplugged += 1

    def note_life(self, now: float, wall: float) -> None:
        self.seen, self.seen_wall = now, wall

"""What is said about rooms: the table, and what was promised of them."""

from collections.abc import Iterator

from bench.measure import Spread, spread
from bench.rooms.measure import (
    BESIDE_MAX,
    BUSY_PARTICIPANTS,
    BUSY_PER_SECOND,
    DEAF_MESSAGES,
    DEAF_P99_MS_MAX,
    DEAF_PARTICIPANTS,
    EACH_KB_MAX,
    RATE_MIN,
    Beside,
    Fanned,
    RoomFigures,
    median,
)

COLUMNS = (
    "participants",
    "deliveries/s",
    "of the broadcast's",
    "CPU per delivery",
    "of the broadcast's",
    "p50, p99",
    "broadcast's",
    "memory of one",
)
ABOUT = (
    "A room judges each envelope, stores it and gives it its place in one order before anyone hears it; beside it "
    "stands a bare broadcast with the same WebSocket library (`websockets.broadcast`), which does none of this. Both "
    "have the same participants, who take turns: one of each room speaks, with 32 messages under way, and all hear it, "
    "the speaker included. The times are from sending to hearing with one message under way, writing to the disk "
    "included."
)

SHARED = "The node has one core here, which a call shares with an envelope that is stored and told to everyone."


def rows(figures: RoomFigures) -> Iterator[list[str]]:
    for one in figures.shapes:
        rate, cost = one.ratio("per_second"), one.ratio("cpu_us")
        if rate is None or cost is None or one.each_kb is None:
            yield [one.title, "not measured here", *[""] * (len(COLUMNS) - 2)]
            continue
        yield [
            one.title,
            f"{median(one.node, 'per_second'):,.0f}",
            f"{rate.median:.2f} times",
            f"{median(one.node, 'cpu_us'):.1f} us",
            f"{cost.median:.2f} times",
            f"{median(one.node, 'p50_us') / 1e3:.1f} ms, {median(one.node, 'p99_us') / 1e3:.1f} ms",
            f"{median(one.bare, 'p50_us') / 1e3:.1f} ms, {median(one.bare, 'p99_us') / 1e3:.1f} ms",
            f"{one.each_kb:.0f} KB",
        ]


def words(figures: RoomFigures) -> list[str]:
    if figures.beside is None or not figures.beside.quiet_p50:
        return [ABOUT]
    beside = figures.beside
    slowest = [f"{spread(one).median / 1e3:.2f} ms" for one in (beside.quiet_p99, beside.busy_p99)]
    said = f"p99 of tools/call without and with the busy room: {slowest[0]} and {slowest[1]}"
    return [ABOUT, f"{said}. {SHARED}"]


def promises(figures: RoomFigures) -> Iterator[tuple[str, Spread | None, bool | None, str]]:
    """Each with what was measured, whether it was kept, and the unit."""
    for one in figures.shapes:
        rate = one.ratio("per_second")
        said = f"deliveries per second at least {RATE_MIN} times a bare broadcast's ({one.title})"
        yield said, rate, None if rate is None else rate.median >= RATE_MIN, "times"
    each = [one.each_kb for one in figures.shapes if one.each_kb is not None and _is_large(one)]
    said = f"a participant of a room takes at most {EACH_KB_MAX:.0f} KB"
    yield said, spread(each) if each else None, max(each) <= EACH_KB_MAX if each else None, "KB"
    slowest = figures.deaf_p99_ms
    deaf = f"{DEAF_PARTICIPANTS} participants, {DEAF_MESSAGES:,} messages, and one more who reads nothing"
    said = f"p99 of a delivery at most {DEAF_P99_MS_MAX:.0f} ms ({deaf})"
    yield said, spread(slowest) if slowest else None, max(slowest) <= DEAF_P99_MS_MAX if slowest else None, "ms"
    beside = figures.beside or Beside()
    ratio = beside.ratio(beside.quiet_p50, beside.busy_p50)
    busy = f"{BUSY_PARTICIPANTS} participants and {BUSY_PER_SECOND} messages a second"
    said = f"p50 of tools/call beside a room with {busy} at most {BESIDE_MAX} times that without"
    yield said, ratio, None if ratio is None else ratio.median <= BESIDE_MAX, "times"


def _is_large(shape: Fanned) -> bool:
    """Enough of them that what is loaded with the first is nobody's share."""
    return shape.rooms * shape.participants >= 100

"""When an entry expires that may live for so long."""

import math


def expiry(now: float, ttl_s: float | None) -> float | None:
    if ttl_s is None:
        return None
    if not (ttl_s > 0 and math.isfinite(now + ttl_s)):  # SQLite keeps NaN as NULL, which would mean for ever
        raise ValueError(f"a time to live must be a positive number of seconds, not {ttl_s}")
    return now + ttl_s

"""The end of what a program wrote to stderr, as a person reads it: what is wrong, without where in its source."""

import re
from collections.abc import Sequence
from typing import Final

_FRAME: Final = re.compile(r"[\s|+-]*(File \".*\", line \d+|at .*(:\d+:\d+\)?|\(<anonymous>\)|\(native\)))")
_POINTERS: Final = re.compile(r"[\s|+\-^~]*")
_HEADING: Final = re.compile(r"[\s|+-]*((Exception Group )?Traceback \(most recent call last\):|[\s|+-]*-+ \d+ -+)")


def words_of(lines: Sequence[str]) -> tuple[str, ...]:
    """What a program said at its end, without the frames of a stack, their source and the marks below it."""
    kept: list[str] = []
    frame: int | None = None  # how far the last frame is indented; its source stands deeper
    for line in lines:
        depth = len(line) - len(line.lstrip(" |+"))
        if _FRAME.match(line):
            frame = depth
        elif _POINTERS.fullmatch(line) or _HEADING.match(line) or (frame is not None and depth > frame):
            continue
        else:
            frame = None
            kept.append(line.strip())
    return tuple(kept)

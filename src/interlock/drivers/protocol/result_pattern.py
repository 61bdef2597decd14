"""The pattern of result_parse: compiled by RE2, whose time is linear in the text whatever the pattern (AIP-extract-8).

Patterns come from a driver, the lines they run on from a server. `re` would let the second choose how long the first
takes; RE2 has no lookaround and no references to groups, which need that.
"""

from typing import Any, Final

import msgspec

from interlock.wire.schemas.bounds import PATTERN_CHARS_MAX

PROGRAM_BYTES_MAX: Final = 1024 * 1024


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    compiled: Any
    groups: tuple[str, ...]

    def record(self, line: str) -> dict[str, str] | None:
        """The named groups of a line; those that took no part are left out. None: the line is not like this."""
        found = self.compiled.fullmatch(line)
        if found is None:
            return None
        return {name: found[name] for name in self.groups if found[name] is not None}


def read_pattern(text: str) -> Pattern | str:
    """What is wrong with it, where something is."""
    if len(text) > PATTERN_CHARS_MAX:
        return f"a pattern has at most {PATTERN_CHARS_MAX} characters"
    try:
        import re2
    except ImportError:
        return "patterns need the package google-re2, which is not installed: pip install 'interlock[records]'"
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    try:
        made = re2.compile(text, options=options)
    except (re2.error, ValueError):
        return "this is no pattern of RE2: it has no lookaround and no references to groups"
    if not made.groupindex:
        return "the pattern names no part: write (?P<name>...) around each"
    named = sorted(made.groupindex, key=lambda name: int(made.groupindex[name]))
    return Pattern(compiled=made, groups=tuple(named))

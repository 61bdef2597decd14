"""The autonomy policy, which determines what an agent may do without approval: step limit, risk tolerance, patterns,
and enabled stages (8.7.4).
"""

import re
from typing import Final, Literal

import msgspec

from interlock.safety.protocol.hint import normalise

# Glob patterns over hints and names (8.7.2, stage 3): `*`, `?` and `[...]`, in time linear in the text.
#
# A pattern of deny or requiresApproval is looked for from every word start, because hints are prose; without a star
# at its end it ends where a word ends. One of autoApprove has to be the whole text. Words are parted by anything that
# is neither letter nor digit: `drop_*` finds "calling drop_table", and `force` finds "force_push" and not
# "enforcement".

PATTERN_CHARS_MAX: Final = 200

_WORD_START: Final = r"(?<![^\W_])"
_WORD_END: Final = r"(?![^\W_])"


class Pattern:
    """A compiled glob. The parts between its stars have a fixed length, so that matching needs no backtracking."""

    __slots__ = ("_anchored", "_ended", "_parts", "text")

    def __init__(self, text: str) -> None:
        """Compile a pattern. Raise ValueError with the reason if it is invalid."""
        self.text = text
        written = _parts(text)
        parts = [_fixed(part) for part in written]
        head = _WORD_START if written[0][:1].isalnum() else ""
        tail = _WORD_END if written[-1][-1:].isalnum() else ""
        self._anchored = tuple(re.compile(part, re.DOTALL) for part in parts)
        self._ended = re.compile(f"(?:{parts[-1]})\\Z", re.DOTALL)
        last = len(parts) - 1
        self._parts = tuple(
            re.compile((head if at == 0 else "") + part + (tail if at == last else ""), re.DOTALL)
            for at, part in enumerate(parts)
        )

    def is_found_in(self, text: str) -> bool:
        """Return whether the pattern occurs in a normalized text, starting at a word boundary."""
        position = 0
        for part in self._parts:
            match = part.search(text, position)
            if match is None:
                return False
            position = match.end()
        return True

    def is_whole(self, text: str) -> bool:
        """Return whether the pattern matches an entire normalized text."""
        first = self._anchored[0].match(text)
        if first is None:
            return False
        if len(self._anchored) == 1:
            return first.end() == len(text)
        position = first.end()
        for part in self._anchored[1:-1]:
            match = part.search(text, position)
            if match is None:
                return False
            position = match.end()
        return self._ended.search(text, position) is not None


def _parts(text: str) -> list[str]:
    if not text.strip():
        raise ValueError("a pattern must not be empty")
    if len(text) > PATTERN_CHARS_MAX:
        raise ValueError(f"a pattern has at most {PATTERN_CHARS_MAX} characters")
    lead, trail = text[0] == " ", text[-1] == " "
    text = f"{' ' if lead else ''}{normalise(text)}{' ' if trail else ''}"
    parts, start, depth = [], 0, False
    for at, character in enumerate(text):
        if character == "[":
            depth = True
        elif character == "]":
            depth = False
        elif character == "*" and not depth:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise ValueError("a '[' in a pattern needs its ']'")
    parts.append(text[start:])
    # Neighbouring stars are one; a pattern keeps its first and last part, which may be empty.
    return [parts[0], *(part for part in parts[1:-1] if part), *parts[1:][-1:]]


def _fixed(part: str) -> str:
    pieces: list[str] = []
    at = 0
    while at < len(part):
        character = part[at]
        if character == "?":
            pieces.append(".")
        elif character == "[":
            end = part.index("]", at)
            pieces.append(_set(part[at + 1 : end]))
            at = end
        else:
            pieces.append(re.escape(character))
        at += 1
    return "".join(pieces)


def _set(members: str) -> str:
    negated = members[:1] in ("!", "^")
    members = members[1:] if negated else members
    if not members:
        raise ValueError("'[]' in a pattern names no character")
    escaped = "".join(re.escape(each) if each in "\\]^[" else each for each in members)
    try:
        re.compile(f"[{escaped}]")
    except re.error:
        raise ValueError(f"[{members}] in a pattern is no set of characters") from None
    return f"[{'^' if negated else ''}{escaped}]"


Mode = Literal["disabled", "logging", "monitoring", "enforcing"]
Tolerance = Literal["conservative", "moderate", "aggressive"]

STEPS_DEFAULT: Final = 25
STAGES: Final = (1, 2, 3, 4, 5)  # the first is always on (8.7.5)
# The examples of 8.7.2. `force` is a whole word here: an agent that writes of "enforcement" forces nothing.
DENY: Final = ("drop_*", "delete_all*", "rm -rf*")
REQUIRES_APPROVAL: Final = ("delete_*", "force", "deploy_*", "git push*")
AUTO_APPROVE: Final = ("read_*", "list_*", "get_*", "search_*")


class AutonomyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    max_autonomous_steps: int = STEPS_DEFAULT
    risk_tolerance: Tolerance = "moderate"
    deny: tuple[str, ...] = DENY
    requires_approval: tuple[str, ...] = REQUIRES_APPROVAL
    auto_approve: tuple[str, ...] = AUTO_APPROVE
    stages: tuple[int, ...] = STAGES
    tolerance_relaxes_confirm: bool = False
    preapproved: bool = False


class CompiledPolicy:
    """A policy with compiled patterns. Creating it raises ValueError for an invalid pattern."""

    __slots__ = ("auto_approve", "deny", "policy", "requires_approval")

    def __init__(self, policy: AutonomyPolicy) -> None:
        self.policy = policy
        self.deny = tuple(Pattern(text) for text in policy.deny)
        self.requires_approval = tuple(Pattern(text) for text in policy.requires_approval)
        self.auto_approve = tuple(Pattern(text) for text in policy.auto_approve)

"""`${secrets.NAME}` inside a value of a driver file: which secrets it takes, what is wrong with it, how it is filled.

There is no other placeholder. `${context.X}` and `${user.X}` have an error of their own, because they would bind one
caller to a process that all share (AIP-security-8).
"""

import re
from typing import Final

SECRET: Final = re.compile(r"\$\{secrets\.([A-Z][A-Z0-9_]*)\}", re.ASCII)  # AIP-19.bind-1
NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)

INVALID: Final = "placeholder_invalid"
USER_CONTEXT: Final = "user_context_at_spawn"

_CALLERS = ("${context.", "${user.")


def secret_names(text: str) -> tuple[str, ...]:
    return tuple(SECRET.findall(text))


def fault(text: str) -> str | None:
    """The code of what is wrong with the placeholders of a text; None when nothing is."""
    rest = SECRET.sub("", text)
    if any(each in rest for each in _CALLERS):  # AIP-security-8
        return USER_CONTEXT
    return INVALID if "${" in rest else None  # AIP-server-13


def without_secrets(text: str) -> str:
    """What is written besides the placeholders."""
    return SECRET.sub("", text)

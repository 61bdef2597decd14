"""`${env:NAME}` inside a value: how a secret stays out of the file. What was put in is remembered, never shown."""

import re

from interlock.config.place import WRONG, At, Wrong
from interlock.config.problems import shown

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_KIND = "env:"


def expand(text: str, at: At) -> str | Wrong:
    pieces: list[str] = []
    end = 0
    sound = True
    for match in _REFERENCE.finditer(text):
        value = _value_of(match[1], at)
        if isinstance(value, Wrong):
            sound = False
            continue
        pieces += (text[end : match.start()], match[0] if value is None else value)
        end = match.end()
    if "${" + _KIND in _REFERENCE.sub("", text):
        return at.wrong(f"{at.name} has '${{env:' without the closing brace", "write ${env:NAME}")
    pieces.append(text[end:])
    return "".join(pieces) if sound else WRONG


def _value_of(body: str, at: At) -> str | Wrong | None:
    """What the reference stands for; None when it is none of ours and stays as it is written."""
    if not body.startswith(_KIND):
        if _NAME.fullmatch(body):
            at.warn(
                f"{at.name} passes {shown('${' + body + '}')} on as it is written",
                f"to use the environment variable write ${{env:{body}}}",
            )
        return None
    name = body.removeprefix(_KIND)
    if not _NAME.fullmatch(name):
        return at.wrong(f"{at.name} names the environment variable {shown(name)}", "write ${env:NAME}")
    value = at.around.env.get(name)
    if value is None:
        return at.wrong(
            f"{at.name} needs the environment variable {name}, which is not set", "set it before starting interlock"
        )
    if value:
        at.substituted.append(value)
    return value

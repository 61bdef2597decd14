"""`${env:NAME}` and `${secrets.NAME}` inside a value: how a secret stays out of the file.

What the environment put in is remembered, never shown. What stands in the node's own store is not read here: the
reference stays in the plan as it is written; the code that dials or launches the server puts the value in its place.
"""

import re
from typing import Final

from interlock.config.location import WRONG, At, WrongValue
from interlock.config.problems import quoted_word

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_KIND = "env:"
_STORED = "secrets."
SECRET_REFERENCE: Final = re.compile(r"\$\{secrets\.([A-Za-z][A-Za-z0-9_-]*)\}", re.ASCII)
SLUG: Final = re.compile(r"(?:[a-z][a-z0-9-]*[a-z0-9]/)?[a-z][a-z0-9-]*[a-z0-9]", re.ASCII)  # AIP-19
UNSET: Final = "unset"  # in the place of a variable that the environment lacks, in the plan of a server not started
SLUG_CHARS_MAX: Final = 80


def secret_slug(name: str) -> str:
    """The name a secret is kept under: STRIPE_API_KEY is stripe-api-key (AIP-19)."""
    return name.lower().replace("_", "-")


def is_slug(text: str) -> bool:
    return SLUG.fullmatch(text) is not None and len(text) <= SLUG_CHARS_MAX


def expand(text: str, at: At, *, stored: bool = False) -> str | WrongValue:
    """`stored`: a secret of the node's own store may stand here."""
    pieces: list[str] = []
    end = 0
    sound = True
    for match in _REFERENCE.finditer(text):
        value = _value_of(match[1], at, stored=stored)
        if isinstance(value, WrongValue):
            sound = False
            continue
        pieces += (text[end : match.start()], match[0] if value is None else value)
        end = match.end()
    rest = _REFERENCE.sub("", text)
    for kind in (_KIND, _STORED):
        if "${" + kind in rest:
            return at.wrong(f"{at.name} has '${{{kind}' without the closing brace", f"write ${{{kind}NAME}}")
    pieces.append(text[end:])
    return "".join(pieces) if sound else WRONG


def _value_of(body: str, at: At, *, stored: bool) -> str | WrongValue | None:
    """What the reference stands for; None when it stays as it is written."""
    if body.startswith(_STORED):
        return _secret_reference_fault(body.removeprefix(_STORED), at, stored=stored)
    if not body.startswith(_KIND):
        if _NAME.fullmatch(body):
            at.warn(
                f"{at.name} passes {quoted_word('${' + body + '}')} on as it is written",
                f"to use the environment variable write ${{env:{body}}}",
            )
        return None
    name = body.removeprefix(_KIND)
    if not _NAME.fullmatch(name):
        return at.wrong(f"{at.name} names the environment variable {quoted_word(name)}", "write ${env:NAME}")
    value = at.around.env.get(name)
    if value is None:
        return _unset_value(name, at)
    if value:
        at.substituted.append(value)
    return value


def _unset_value(name: str, at: At) -> str | WrongValue:
    """A server whose variable is missing is not started; every other server is."""
    said, hint = (
        f"{at.name} needs the environment variable {name}, which is not set",
        "set it before starting interlock",
    )
    if at.table[:1] == ("servers",):
        at.unset.append(name)
        if at.around.starting:
            at.warn(said, f"{hint}; until then this server is not started")
        return UNSET
    return at.wrong(said, hint) if at.around.starting else ""


def _secret_reference_fault(name: str, at: At, *, stored: bool) -> WrongValue | None:
    if not SECRET_REFERENCE.fullmatch(f"${{{_STORED}{name}}}") or not is_slug(secret_slug(name)):
        return at.wrong(
            f"{at.name} names the secret {quoted_word(name)}", "write ${secrets.NAME}, in letters and digits"
        )
    if not stored:
        return at.wrong(
            f"{at.name} is no place for ${{secrets.{name}}}",
            "a stored secret can stand in headers, env and auth.client_secret of a server",
        )
    return None

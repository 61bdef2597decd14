"""The options by which a person says what a standing grant lets pass, read into its rules."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.terminal.errors import BadUsage

if TYPE_CHECKING:
    from interlock.approvals.grants_api import GrantRule

EACH = "[]"  # behind the name of an argument: each item of a list
_DURATION = re.compile(r"(\d{1,6})\s*(s|m|min|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}

Below = Annotated[
    list[str] | None,
    typer.Option("--below", metavar="ARG=FOLDER", help="A path inside this folder; ARG[] for a list of paths."),
]
OneOf = Annotated[
    list[str] | None, typer.Option("--one-of", metavar="ARG=A,B", help="One of these values; may be repeated.")
]
Most = Annotated[list[str] | None, typer.Option("--max", metavar="ARG=NUMBER", help="A number from 0 to this one.")]
Least = Annotated[
    list[str] | None, typer.Option("--min", metavar="ARG=NUMBER", help="The smallest number instead of 0.")
]
Equal = Annotated[
    list[str] | None, typer.Option("--equal", metavar="ARG[=VALUE]", help="This value; of a held call, its own.")
]
Free = Annotated[list[str] | None, typer.Option("--any", metavar="ARG", help="Whatever it is, also absent.")]
Calls = Annotated[
    int | None, typer.Option("--calls", metavar="N", min=1, help="For this many calls.", show_default=False)
]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="For this long: 30m, 8h, 7d (a day by default).", show_default=False),
]


def seconds_of(text: str | None) -> int | None:
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadUsage("usage", f"{text} is no time", hint="--for 30m, 8h or 7d")
    return int(found[1]) * _SECONDS[found[2]]


def rules_of(
    *,
    below: Sequence[str] | None,
    one_of: Sequence[str] | None,
    most: Sequence[str] | None,
    least: Sequence[str] | None,
    equal: Sequence[str] | None,
    free: Sequence[str] | None,
    arguments: Mapping[str, Any] | None = None,
) -> "list[GrantRule]":
    """`arguments`: of the held call that the grant comes from. An argument that is a list there is one in the rule."""
    from interlock.approvals.grants_api import GrantRule

    made: list[GrantRule] = []
    for text in below or ():
        at, each, folder = _assignment(text, "--below", arguments)
        made.append(GrantRule(at=at, kind="below", value=folder.rstrip("/"), each=each))
    for text in one_of or ():
        at, each, values = _assignment(text, "--one-of", arguments)
        like = _at(arguments, at)
        made.append(GrantRule(at=at, kind="one_of", value=[_value(one, like) for one in values.split(",")], each=each))
    ends: dict[str, list[Any]] = {}
    for texts, place, option in ((most, 1, "--max"), (least, 0, "--min")):
        for text in texts or ():
            at, each, number = _assignment(text, option, arguments)
            ends.setdefault(at, [0, None, each])[place] = _number(number, option)
    for at, (smallest, largest, each) in ends.items():
        if largest is None:
            raise BadUsage("usage", f"{at}: --min alone leaves it open how large it may be", hint="add --max")
        made.append(GrantRule(at=at, kind="range", value=[smallest, largest], each=bool(each)))
    for text in equal or ():
        name, given, value = text.partition("=")
        at = _pointer(name)
        held = _at(arguments, at)
        if not given and held is _ABSENT:
            raise BadUsage("usage", f"--equal {text} names no argument of the call", hint="--equal ARG=VALUE")
        made.append(GrantRule(at=at, kind="equals", value=_value(value, held) if given else held))
    made += [GrantRule(at="" if name == "*" else _pointer(name), kind="any") for name in free or ()]
    return made


def with_proposed(given: "Sequence[GrantRule]", proposed: "Sequence[GrantRule]") -> "list[GrantRule]":
    """What the person says, and what was proposed for the arguments that they said nothing of."""
    if any(rule.at == "" for rule in given):
        return list(given)
    kept = [rule for rule in proposed if rule.kind != "equals" and not any(_meet(rule.at, one.at) for one in given)]
    return [*given, *kept]


def _meet(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


_ABSENT: Any = object()


def _at(arguments: Mapping[str, Any] | None, pointer: str) -> Any:
    value: Any = arguments if arguments is not None else _ABSENT
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        value = value[key] if isinstance(value, Mapping) and key in value else _ABSENT
    return value


def _pointer(name: str) -> str:
    from interlock.approvals.protocol.argument_rules import pointer_of

    return pointer_of(name.removesuffix(EACH))


def _assignment(text: str, option: str, arguments: Mapping[str, Any] | None) -> tuple[str, bool, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise BadUsage("usage", f"{option} {text} names no argument and value", hint=f"{option} ARG=VALUE")
    at = _pointer(name)
    return at, name.endswith(EACH) or isinstance(_at(arguments, at), list), value


def _value(text: str, like: Any) -> Any:
    """As JSON where it is a number, true, false, null or quoted; a text where the call has a text."""
    import json

    if isinstance(like, str):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, list | dict) else value


def _number(text: str, option: str) -> int | float:
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        raise BadUsage("usage", f"{option}: {text} is no number") from None

"""Every error code and named reason: what it means, whose fault it is, what to do next. The data is in codes.toml."""

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

import msgspec


class Code(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    numbers: tuple[int, ...] = ()
    where: str  # on which edge it appears
    means: str
    whose: str
    next: str


@cache
def every_code() -> tuple[Code, ...]:
    text = files("interlock.cli").joinpath("codes.toml").read_text(encoding="utf-8")
    edges = tomllib.loads(text)["edge"]
    return msgspec.convert(
        [{**code, "where": edge["where"]} for edge in edges for code in edge["code"]], tuple[Code, ...]
    )


def every_key() -> list[str]:
    """Whatever a code can be asked for by."""
    numbers = (str(number) for code in every_code() for number in code.numbers)
    return list(dict.fromkeys([*numbers, *(code.name for code in every_code())]))


def codes_for(key: str) -> list[Code]:
    """Return the codes that a number or a name refers to. A number can have several meanings on different edges, a name
    has only one. Case and dashes do not matter.

    A number with the wrong sign and an unambiguous part of a name are accepted too, because people quote from memory.
    """
    wanted = _folded_key(key)
    return _exact(wanted) or _exact(_other_sign(wanted)) or _only(_with_words(wanted))


def nearest_keys(key: str) -> list[str]:
    wanted = _folded_key(key)[:64]
    parts = [code.name for code in _with_words(wanted)]
    folded = {_folded_key(each): each for each in every_key()}
    return parts[:6] or [folded[near] for near in get_close_matches(wanted, folded, n=3, cutoff=0.6)]


def _exact(wanted: str) -> list[Code]:
    return [code for code in every_code() if wanted == _folded_key(code.name) or wanted in map(str, code.numbers)]


def _other_sign(wanted: str) -> str:
    if not wanted.lstrip("-").isdecimal():
        return wanted
    return wanted[1:] if wanted.startswith("-") else f"-{wanted}"


def _with_words(wanted: str) -> list[Code]:
    """Return the codes whose name contains these words next to each other."""
    return [code for code in every_code() if wanted and f"_{wanted}_" in f"_{_folded_key(code.name)}_"]


def _only(codes: list[Code]) -> list[Code]:
    return codes if len(codes) == 1 else []


def _folded_key(key: str) -> str:
    """Normalise dashes, spaces and case. A negative number such as -32601 keeps its sign."""
    key = key.strip()
    sign = "-" if key.startswith("-") and key[1:].isdecimal() else ""
    return sign + key.removeprefix(sign).lower().replace("-", "_").replace(" ", "_")

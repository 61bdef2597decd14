"""Names of aggregated tools and their properties as operations and parameters (C.map-1, -2, -4)."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

_BORDER: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OUTSIDE: Final = re.compile(r"[^a-z0-9_]+")
_OPERATION_DIGITS: Final = 8
_PARAMETER_DIGITS: Final = 4


def snake(segment: str) -> str:
    """Return a segment in snake case: word borders and other characters become `_`, letters become lower case."""
    return _OUTSIDE.sub("_", _BORDER.sub("_", segment).lower())


def operation_name(qualified: str) -> str:
    name = "__".join(snake(segment) for segment in qualified.split("."))
    return name if "a" <= name[:1] <= "z" else f"op_{name}"


def suffixed(name: str, qualified: str, digits: int = _OPERATION_DIGITS) -> str:
    return f"{name}_x{hashlib.sha256(qualified.encode()).hexdigest()[:digits]}"


def parameter_name(original: str) -> str:
    """Leading underscores go, because underscore names are exempt from checking (4.6.1)."""
    name = snake(original).lstrip("_")
    return name if "a" <= name[:1] <= "z" else f"op_{name}"


def parameter_names(originals: Sequence[str]) -> list[str]:
    """Return parameter names in the order of the originals. If two would be equal, both get a suffix."""
    plain = [parameter_name(original) for original in originals]
    doubled = {name for name, count in Counter(plain).items() if count > 1}
    return [
        suffixed(name, original, _PARAMETER_DIGITS) if name in doubled else name
        for name, original in zip(plain, originals, strict=True)
    ]


def type_name(*parts: str) -> str:
    """Return a type name for an operation and its parameters: fs__read_file, options -> FsReadFileOptions."""
    return "".join(word[:1].upper() + word[1:] for part in parts for word in snake(part).split("_") if word) or "Type"

"""The secrets of one driver while it is drafted: each gets a name, a slug and a place; values go no further."""

import re
from typing import Final

from interlock.interop.protocol.model import Finding
from interlock.wire.jsontext.pointer import quoted

_NOT_NAME: Final = re.compile(r"[^A-Z0-9]+")
NAME_CHARS_MAX: Final = 30
DESCRIPTION_CHARS_MAX: Final = 300


class SecretNames:
    def __init__(self, driver_id: str) -> None:
        self._namespace = driver_id.replace(".", "-")
        self.found: list[Finding] = []

    def keep(self, place: str, wanted: str, description: str, value: str) -> str:
        """The placeholder for a value that goes to the store. The same value is kept once."""
        known = next((each for each in self.found if each.value == value), None)
        return _placeholder(known or self._add(place, wanted, description, value=value))

    def ask(self, place: str, wanted: str, description: str) -> str:
        """The placeholder for a value that somebody has still to give."""
        known = next(
            (each for each in self.found if each.name == _name(wanted) and each.value is None and each.backend is None),
            None,
        )
        return _placeholder(known or self._add(place, wanted, description))

    def from_environment(self, place: str, wanted: str, variable: str) -> str:
        backend = f"env://{variable}"
        known = next((each for each in self.found if each.backend == backend), None)
        described = f"The environment variable {variable}, for {place}."
        return _placeholder(known or self._add(place, wanted, described, backend=backend))

    def _add(
        self, place: str, wanted: str, description: str, *, value: str | None = None, backend: str | None = None
    ) -> Finding:
        name = base = _name(wanted)
        number = 2
        taken = {each.name for each in self.found}
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        finding = Finding(
            place=place,
            name=name,
            slug=f"{self._namespace}/{name.lower().replace('_', '-')}",
            description=description[:DESCRIPTION_CHARS_MAX] or f"For {place}.",
            value=value,
            backend=backend,
        )
        self.found.append(finding)
        return finding


def _placeholder(finding: Finding) -> str:
    return f"${{secrets.{finding.name}}}"


def _name(wanted: str) -> str:
    """A NAME whose slug is one (AIP-19): capitals, digits and single underscores, two characters or more."""
    name = _NOT_NAME.sub("_", wanted.upper()).strip("_")[:NAME_CHARS_MAX].strip("_")
    if not name or not name[0].isalpha():
        name = f"VALUE_{name}".strip("_")
    return name if len(name) > 1 else f"{name}_VALUE"


def place_name(place: str, key: str) -> str:
    """env.GITHUB_TOKEN; a key with odd characters is quoted."""
    return f"{place}.{key}" if re.fullmatch(r"[\w.-]{1,60}", key, re.ASCII) else f"{place}.{quoted(key)}"

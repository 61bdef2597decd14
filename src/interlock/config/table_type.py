"""The kind of value that is a table with fields of its own: an issuer, a parent, a child."""

from collections.abc import Callable, Mapping
from typing import Any

from interlock.config.location import WRONG, At, Wrong
from interlock.config.problems import shown
from interlock.config.suggestions import nearest
from interlock.config.value_types import Kind


class Record(Kind, frozen=True, kw_only=True):
    bare = "toml"
    what: str  # "an issuer"
    where: str | None = None  # how a person begins one
    example: str | None = None  # the same, of one that is written in one line
    fields: Mapping[str, Kind]
    needed: tuple[str, ...]
    beside: Mapping[str, tuple[str, ...]] = {}  # a key -> those it is of no use without
    make: Callable[..., Any]

    def read(self, value: object, at: At) -> Any:
        if not isinstance(value, dict):
            hint = f"write {self.where} above each one" if self.where is not None else f"for instance {self.example}"
            return at.must_be("a table", value, hint)
        read = {name: self._field(name, each, at.inside(name)) for name, each in value.items()}
        for name in self.needed:
            if name not in value:
                read[name] = at.wrong(f"{at.name} needs '{name}'")
        for name, others in self.beside.items():
            for other in others:
                if name in value and other not in value:
                    read[other] = at.inside(name).wrong(f"'{name}' of {at.name} needs '{other}'")
        if any(isinstance(each, Wrong) for each in read.values()):
            return WRONG
        return self.make(**read)

    def _field(self, name: str, value: object, at: At) -> Any:
        kind = self.fields.get(name)
        if kind is not None:
            return kind.read(value, at)
        like = nearest(name, self.fields)
        hint = f"did you mean '{like}'?" if like else f"known here: {', '.join(self.fields)}"
        return at.wrong(f"unknown key {shown(name)} of {self.what}", hint)

    def schema(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "type": "object",
            "properties": {name: kind.schema() for name, kind in self.fields.items()},
            "required": list(self.needed),
            "additionalProperties": False,
        }
        if self.beside:
            made["dependentRequired"] = {name: list(others) for name, others in self.beside.items()}
        return made

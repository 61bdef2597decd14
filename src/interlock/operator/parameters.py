"""Query parameters: each one reads its own value strictly, and says in JSON Schema what it takes."""

from typing import Any

import msgspec
from starlette.requests import Request

from interlock.operator.requests import RejectedRequest, quoted_text


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One that takes any text."""

    name: str
    description: str

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


class TextParameter(Parameter, frozen=True, kw_only=True):
    default: str | None = None

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string"} | ({} if self.default is None else {"default": self.default})

    def read(self, request: Request) -> str | None:
        return request.query_params.get(self.name, self.default)


class IntegerParameter(Parameter, frozen=True, kw_only=True):
    default: int
    minimum: int
    maximum: int

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum, "default": self.default}

    def read(self, request: Request) -> int:
        given = request.query_params.getlist(self.name)
        if not given:
            return self.default
        text = given[-1]
        # isdecimal alone also takes other scripts' digits; twenty digits bound what int() is asked to do.
        is_number = len(given) == 1 and text.isascii() and text.isdecimal() and len(text) <= 20
        if is_number and self.minimum <= int(text) <= self.maximum:
            return int(text)
        message = f"{self.name} must be one whole number from {self.minimum} to {self.maximum}"
        raise RejectedRequest(400, "invalid_parameter", message, {"parameter": self.name})


class ChoiceParameter(Parameter, frozen=True, kw_only=True):
    choices: tuple[str, ...]
    default: str | None = None

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)} | (
            {} if self.default is None else {"default": self.default}
        )

    def read(self, request: Request) -> str | None:
        given = request.query_params.get(self.name, self.default)
        if given is None or given in self.choices:
            return given
        message = f"{self.name} must be one of {', '.join(self.choices)}, not {quoted_text(given)}"
        raise RejectedRequest(400, "invalid_parameter", message, {"parameter": self.name})

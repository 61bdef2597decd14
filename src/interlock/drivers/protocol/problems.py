"""Problems in the files of a driver, and failures of calls through drivers, as values.

`FileProblem` describes what is wrong in a file, on which line, and how to correct it. The checks of a file add their
problems to a `FileFindings`, and the function that reads the file returns them with the value in a `ParsedFile`.

`DriverRefusal` is the failure of a call (AIP-30 errors, SURFACE 4). Its code shows whose fault it is:

- input_*, ref_invalid and resource_uri_denied: the caller's
- contract_mismatch, output_parse_failed and upstream_error: the server's
- auth_*, access_denied, policy_violation, region_mismatch, egress_denied, no_route, pinned_provider_unavailable and
  tool_unavailable: the operator must correct the cause
- rate_limited: not a fault, the call may be repeated
- internal: Interlock's
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from interlock.wire.refusal import Refusal


class DriverRefusal(Refusal, frozen=True, kw_only=True):
    """Refusal of a call that a driver could not carry out. `retryable` says whether another try may succeed.

    The client receives `code`, `message` and `retryable`. `cause` is for the operator only and contains no secret.
    """

    retryable: bool = False
    cause: Mapping[str, Any] = {}


SCHEMA_INVALID: Final = "schema_invalid"

Value = TypeVar("Value")
Severity = Literal["error", "warning", "note"]


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem in a file: where it is, what is wrong, and how to correct it.

    An error prevents the use of the file. A warning becomes an error with --strict; a note never does. Values from the
    file are not repeated, because any of them may be a secret.
    """

    file: str
    line: int | None = None
    field: str = ""  # a JSON pointer: /server/env/TOKEN; empty: the whole file
    code: str
    message: str
    hint: str
    severity: Severity = "error"
    schema: str | None = None  # the schema that says so: AIP-30, AIP-32, AIP-14, AIP-19

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        field = f"{self.field}: " if self.field else ""
        return f"{place}: {field}{self.message}; {self.hint} [{self.code}]"


def is_refused(problems: Iterable[FileProblem]) -> bool:
    """Return whether any of the problems is an error."""
    return any(each.severity == "error" for each in problems)


class ParsedFile(msgspec.Struct, Generic[Value], frozen=True, kw_only=True):
    """Result of reading a file: its value and all its problems, errors first.

    The value is None if there is an error.
    """

    value: Value | None = None
    problems: tuple[FileProblem, ...] = ()

    @property
    def errors(self) -> tuple[FileProblem, ...]:
        return tuple(each for each in self.problems if each.severity == "error")


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Lines on which the fields of a file are written, so that problems found later can name the line."""

    file: str
    lines: Mapping[str, int] = {}  # JSON pointer -> line, counted from 1

    def line(self, pointer: str) -> int | None:
        """Return the line of a field, or None if it is unknown.

        If the file does not contain the field, return the line of the nearest enclosing field that it contains.
        """
        while pointer not in self.lines:
            if not pointer:
                return None
            pointer = pointer.rpartition("/")[0]
        return self.lines[pointer]

    def problem(self, pointer: str, code: str, message: str, hint: str, severity: Severity = "error") -> FileProblem:
        """Return a problem with the field that `pointer` (a JSON pointer) names, and its line."""
        file, line = self.file, self.line(pointer)
        return FileProblem(
            file=file, line=line, field=pointer, code=code, message=message, hint=hint, severity=severity
        )


class FileFindings:
    """The problems that the checks of one file have found."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.problems: list[FileProblem] = []

    def add(self, pointer: str, code: str, message: str, hint: str, severity: Severity = "error") -> None:
        """Add a problem with the field that `pointer` (a JSON pointer) names."""
        self.problems.append(self.places.problem(pointer, code, message, hint, severity))

    def add_invalid(self, pointer: str, message: str, hint: str) -> None:
        """Add an error about a value that breaks a rule which no JSON Schema can express."""
        self.add(pointer, SCHEMA_INVALID, message, hint)

    @property
    def refused(self) -> bool:
        """Return whether any of the problems is an error, so that the file cannot be used."""
        return is_refused(self.problems)

"""The kinds of value that a key may have: how each is read, and how its JSON Schema describes the same values.

Theory of operation. A key of the plan has a `ValueType` (`keys`). While a configuration is read, `read` gets the value
that a layer has and the place where it stands (`problems.At`). It returns the value as the plan holds it, or reports
what is wrong there and returns WRONG, so that one run reports every mistake. It accepts nothing that `schema` refuses.

Text from the environment or from a flag has no TOML type. `bare` says what it means for a kind: the text itself, a
TOML value, or whichever of the two it can be. `${env:NAME}` is replaced while a value is read. `${secrets.NAME}` is
only checked: the stored secret is put in when the server starts.
"""

import os
import re
import shlex
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec

from interlock.ax.protocol.capability import is_semver
from interlock.ax.protocol.names import OWN_TOOLS, RESERVED_SEGMENTS, SEGMENT_MAX, check_segment, normalise
from interlock.config.problems import WRONG, At, WrongValue, nearest, quoted_word

_SIZE = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi)?", re.ASCII)
_UNITS: Final = {None: 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}
_SHELL_WORDS: Final = frozenset(("&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1"))

# References in values: ${env:NAME} is replaced while the configuration is read, ${secrets.NAME} when a server starts.
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ENV = "env:"
_SECRETS = "secrets."
SECRET_REFERENCE: Final = re.compile(r"\$\{secrets\.([A-Za-z][A-Za-z0-9_-]*)\}", re.ASCII)
SLUG: Final = re.compile(r"(?:[a-z][a-z0-9-]*[a-z0-9]/)?[a-z][a-z0-9-]*[a-z0-9]", re.ASCII)  # AIP-19
UNSET: Final = "unset"  # in the place of a variable that the environment lacks, in the plan of a server not started
SLUG_CHARS_MAX: Final = 80


def secret_slug(name: str) -> str:
    """Return the name under which a secret is stored, for example stripe-api-key for STRIPE_API_KEY (AIP-19)."""
    return name.lower().replace("_", "-")


def is_slug(text: str) -> bool:
    """Return whether a text can be the name of a stored secret."""
    return SLUG.fullmatch(text) is not None and len(text) <= SLUG_CHARS_MAX


def expand(text: str, at: At, *, stored: bool = False) -> str | WrongValue:
    """Replace each `${env:NAME}` in a text by the environment variable. With `stored`, the text may also contain
    `${secrets.NAME}`, which stays as it is.

    `${NAME}`, the syntax of other programs, is left unchanged and causes a warning. If a reference cannot be replaced,
    return WRONG.
    """
    faults: list[WrongValue] = []

    def value_of(match: re.Match[str]) -> str:
        value = _find_value(match[1], at, stored=stored)
        if isinstance(value, WrongValue):
            faults.append(value)
        return value if isinstance(value, str) else match[0]

    expanded = _REFERENCE.sub(value_of, text)
    rest = _REFERENCE.sub("", text)
    for kind in (_ENV, _SECRETS):
        if "${" + kind in rest:
            return at.wrong(f"{at.name} has '${{{kind}' without the closing brace", f"write ${{{kind}NAME}}")
    return WRONG if faults else expanded


def _find_value(body: str, at: At, *, stored: bool) -> str | WrongValue | None:
    """Return the value of a reference such as `${env:NAME}`, whose text between the braces is `body`. Return None if
    the reference stays as it is.
    """
    if body.startswith(_SECRETS):
        name = body.removeprefix(_SECRETS)
        if not SECRET_REFERENCE.fullmatch(f"${{{body}}}") or not is_slug(secret_slug(name)):
            return at.wrong(
                f"{at.name} names the secret {quoted_word(name)}", "write ${secrets.NAME}, in letters and digits"
            )
        if not stored:
            return at.wrong(
                f"{at.name} is no place for ${{secrets.{name}}}",
                "a stored secret is allowed in headers, env and auth.client_secret of a server",
            )
        return None
    if not body.startswith(_ENV):
        if _NAME.fullmatch(body):
            at.warn(
                f"{at.name} passes {quoted_word('${' + body + '}')} on as it is written",
                f"to use the environment variable write ${{env:{body}}}",
            )
        return None
    name = body.removeprefix(_ENV)
    if not _NAME.fullmatch(name):
        return at.wrong(f"{at.name} names the environment variable {quoted_word(name)}", "write ${env:NAME}")
    value = at.around.env.get(name)
    if value is not None:
        if value:
            at.substituted.append(value)
        return value
    message = f"{at.name} needs the environment variable {name}, which is not set"
    hint = "set it before starting interlock"
    # A server that needs the variable is not started; every other server is.
    if at.table[:1] == ("servers",):
        at.unset.append(name)
        if at.around.starting:
            at.warn(message, f"{hint}; until then this server is not started")
        return UNSET
    return at.wrong(message, hint) if at.around.starting else ""


class ValueType(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of configuration value, such as a URL or a number of seconds. It reads values, and describes them in the
    JSON Schema.

    `bare` decides how text from the environment or a flag is interpreted: as the value itself, as TOML, or as either.
    """

    bare: ClassVar[Literal["text", "toml", "either"]] = "text"

    def read(self, value: object, at: At) -> Any:
        """Check a value of a configuration, and return it as the plan holds it. If it is invalid, report the reason at
        `at` and return WRONG.
        """
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema that describes the values which `read` accepts."""
        raise NotImplementedError

    def to_toml(self, value: Any) -> Any:
        """Return a value of the plan in the form in which a configuration file contains it."""
        return list(value) if isinstance(value, tuple) else value


def read_text(value: object, at: At, what: str = "a string", *, empty: bool = False) -> str | WrongValue:
    """Return a value if it is a string that can be used as an argument, a header or a path.

    Otherwise report it and return WRONG.
    """
    if not isinstance(value, str):
        hint = "put it in quotes" if isinstance(value, int | float) else None
        return at.must_be(what, value, hint)
    if not value and not empty:
        return at.wrong(f"{at.name} must not be empty", "leave the key out instead")
    if "\0" in value:
        return at.wrong(f"{at.name} must not contain a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        return at.wrong(f"{at.name} is not valid UTF-8")
    return value


class ParsedText(ValueType, frozen=True):
    """A kind of configuration value: a string with a special format, such as an address. Each subclass parses one
    format.
    """

    called: ClassVar[str]  # "a URL": the beginning of a complaint about a value that is no string
    form: ClassVar[str | None] = None  # pattern for the JSON Schema; None: any text that is not empty

    def parse(self, text: str, at: At) -> Any:
        """Parse a string, and return the value for the plan. If it is invalid, report the reason at `at` and return
        WRONG.
        """
        raise NotImplementedError

    def read(self, value: object, at: At) -> Any:
        text = read_text(value, at, self.called)
        return text if isinstance(text, WrongValue) else self.parse(text, at)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1} if self.form is None else {"type": "string", "pattern": self.form}


class Text(ValueType, frozen=True):
    """A kind of configuration value: a string, which must match a pattern if one is set."""

    pattern: str | None = None
    what: str = "a string"
    hint: str | None = None
    empty: bool = False
    references: bool = False  # ${env:NAME} in it is replaced; its form is then not checked
    stored: bool = False  # it may refer to stored secrets, as ${secrets.NAME}

    def read(self, value: object, at: At) -> str | WrongValue:
        text = read_text(value, at, self.what, empty=self.empty)
        if isinstance(text, WrongValue):
            return WRONG
        if self.references:
            text = expand(text, at, stored=self.stored)
            return text if isinstance(text, WrongValue) else read_text(text, at, empty=True)
        if self.pattern is not None and not re.fullmatch(self.pattern, text, re.ASCII):
            return at.wrong(f"{at.name} must be {self.what}", self.hint)
        return text

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        if self.pattern is not None:
            schema["pattern"] = f"^(?:{self.pattern})$"
        elif not self.empty:
            schema["minLength"] = 1
        return schema


class Segment(ValueType, frozen=True):
    """A kind of configuration value: a segment of the namespace, such as the name of a server."""

    def read(self, value: object, at: At) -> str | WrongValue:
        if not isinstance(value, str):
            return at.must_be("a string", value)
        fault = check_segment(value)
        if fault is None:
            return value
        like = normalise(value)
        return at.wrong(fault, f"for instance '{like}'" if check_segment(like) is None else None)

    def schema(self) -> dict[str, Any]:
        pattern = f"^[a-z0-9_-]{{1,{SEGMENT_MAX}}}$"
        return {"type": "string", "pattern": pattern, "not": {"enum": sorted(RESERVED_SEGMENTS | OWN_TOOLS)}}


class Version(ValueType, frozen=True):
    """A kind of configuration value: a semantic version, such as "1.0.0"."""

    def read(self, value: object, at: At) -> str | WrongValue:
        if not isinstance(value, str):
            return at.must_be("a semantic version", value, 'for instance "1.0.0"')
        return value if is_semver(value) else at.wrong(f"{at.name} must be a semantic version", 'for instance "1.0.0"')

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z.+-]+)?$"}


class Choice(ValueType, frozen=True):
    """A kind of configuration value: one of a fixed set of strings."""

    values: tuple[str, ...]
    code: str | None = None  # of the problem that another value is

    def read(self, value: object, at: At) -> str | WrongValue:
        choices = ", ".join(self.values)
        if not isinstance(value, str):
            return at.must_be(f"one of {choices}", value)
        if value in self.values:
            return value
        like = nearest(value, self.values)
        return at.wrong(
            f"{at.name} must be one of {choices}, not {quoted_word(value)}",
            f"did you mean {quoted_word(like)}?" if like else None,
            code=self.code,
        )

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.values)}


class Flag(ValueType, frozen=True):
    """A kind of configuration value: true or false."""

    bare = "toml"

    def read(self, value: object, at: At) -> bool | WrongValue:
        return value if isinstance(value, bool) else at.must_be("true or false", value)

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Whole(ValueType, frozen=True):
    """A kind of configuration value: an integer between two bounds."""

    bare = "toml"
    low: int
    high: int

    def read(self, value: object, at: At) -> int | WrongValue:
        if not isinstance(value, int) or isinstance(value, bool):
            return at.must_be("an integer", value, "write it without quotes" if isinstance(value, str) else None)
        if not self.low <= value <= self.high:
            return at.wrong(f"{at.name} must be from {self.low} to {self.high}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


class Seconds(ValueType, frozen=True):
    """A kind of configuration value: a duration in seconds between two bounds."""

    bare = "toml"
    low: float
    high: float

    def read(self, value: object, at: At) -> float | WrongValue:
        if not isinstance(value, int | float) or isinstance(value, bool):
            hint = "write it without quotes" if isinstance(value, str) else None
            return at.must_be("a number of seconds", value, hint)
        # Compared as it is: an integer may be too large to be a float. Not-a-number is within no bounds.
        if not self.low <= value <= self.high:
            return at.wrong(f"{at.name} must be from {self.low:g} to {self.high:g} seconds")
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.low, "maximum": self.high}


class Size(ValueType, frozen=True):
    """A kind of configuration value: a number of bytes, written as an integer or as text such as "16Mi"."""

    bare = "either"
    low: int
    high: int

    def read(self, value: object, at: At) -> int | WrongValue:
        if isinstance(value, str):
            match = _SIZE.fullmatch(value)
            if match is None:
                return at.wrong(
                    f"{at.name} must be a number of bytes, with Ki, Mi or Gi after it", 'for instance "16Mi"'
                )
            value = int(match[1]) * _UNITS[match[2]]
        if not isinstance(value, int) or isinstance(value, bool):
            return at.must_be("a number of bytes", value, 'for instance "16Mi"')
        if not self.low <= value <= self.high:
            return at.wrong(f"{at.name} must be from {self.low} to {self.high} bytes")
        return value

    def schema(self) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "integer", "minimum": self.low, "maximum": self.high},
                {"type": "string", "pattern": f"^{_SIZE.pattern}$"},
            ]
        }

    def to_toml(self, value: Any) -> Any:
        unit = next(unit for unit in ("Gi", "Mi", "Ki", None) if value % _UNITS[unit] == 0)
        return value if unit is None else f"{value // _UNITS[unit]}{unit}"


class FilePath(ParsedText, frozen=True):
    """A kind of configuration value: the path of a file or folder.

    `~` means the home folder; relative paths start at the folder of the configuration file.
    """

    called = "a path"

    def parse(self, text: str, at: At) -> Path | WrongValue:
        return resolve(text, at)


def resolve(text: str, at: At) -> Path | WrongValue:
    """Return a path as an absolute path. The disk is not accessed, so links are not followed.

    Report a path in another person's home, and return WRONG.
    """
    first, _, rest = text.partition("/")
    if first.startswith("~") and first != "~":
        return at.wrong(f"{at.name} starts in another person's home, and only ~/ is known", "write the whole path")
    return Path(os.path.normpath(at.around.home / rest if first == "~" else at.layer.base / text))


class Many(ValueType, frozen=True):
    """A kind of configuration value: a list whose items are all of one kind."""

    bare = "toml"
    item: ValueType
    least: int = 0

    def read(self, value: object, at: At) -> tuple[Any, ...] | WrongValue:
        if not isinstance(value, list):
            return at.must_be("a list", value, "put it in [ ]")
        if len(value) < self.least:
            return at.wrong(f"{at.name} must have at least {self.least} entry")
        read = tuple(self.item.read(each, at.inside(index)) for index, each in enumerate(value))
        return WRONG if WRONG in read else read

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema()} | ({"minItems": self.least} if self.least else {})


class Table(ValueType, frozen=True):
    """A kind of configuration value: a table of values of one kind. Its keys may be chosen freely if they match a
    pattern.
    """

    bare = "toml"
    names: str  # the pattern
    names_are: str
    item: ValueType
    reserved: str | None = None  # the prefix of names that only the node itself uses

    def read(self, value: object, at: At) -> dict[str, Any] | WrongValue:
        if not isinstance(value, dict):
            return at.must_be("a table", value, "write { NAME = value }")
        read: dict[str, Any] = {}
        for name, each in value.items():
            inside = at.inside(name)
            if not re.fullmatch(self.names, name):
                read[name] = inside.wrong(f"{inside.name} is not {self.names_are}")
            else:
                read[name] = self.item.read(each, inside)
                if self.reserved is not None and name.startswith(self.reserved):
                    inside.warn(f"{inside.name} has a name that is the node's own and reaches no server", "remove it")
        return WRONG if WRONG in read.values() else read

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^(?:{self.names})$"},
            "additionalProperties": self.item.schema(),
        }


class CommandLine(ValueType, frozen=True):
    """A kind of configuration value: a program with its arguments, as a list or as one string that is split as a shell
    would.

    No shell is started.
    """

    bare = "either"

    def read(self, value: object, at: At) -> tuple[str, ...] | WrongValue:
        words = self._split(value, at) if isinstance(value, str) else value
        if isinstance(words, WrongValue):
            return WRONG
        if not isinstance(words, list):
            return at.must_be("a string or a list of strings", value)
        if not words:
            return at.wrong(f"{at.name} must name a program")
        one_line = isinstance(value, str)
        argument = Text(references=True, empty=True)
        read = [argument.read(word, at if one_line else at.inside(index)) for index, word in enumerate(words)]
        if any(isinstance(word, WrongValue) for word in read):
            return WRONG
        program, *arguments = (str(word) for word in read)
        if not program:
            return at.wrong(f"{at.name} must name a program")
        if "/" in program or program.startswith("~"):
            path = resolve(program, at)
            if isinstance(path, WrongValue):
                return WRONG
            program = str(path)
        return program, *arguments

    def _split(self, text: str, at: At) -> list[str] | WrongValue:
        if "\0" in text:
            return at.wrong(f"{at.name} must not contain a NUL character")
        try:
            words = shlex.split(text)
        except ValueError:
            return at.wrong(f"{at.name} has a quotation mark or backslash that is never closed")
        if _SHELL_WORDS.intersection(words):
            return at.wrong(f"{at.name} is started without a shell", 'write ["sh", "-c", "..."] if it needs one')
        return words

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1}
        return {"anyOf": [text, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}

    def to_toml(self, value: Any) -> Any:
        return list(value) or None  # a command is not written as nothing


_HEADER_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 5.6.2
HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?", re.ASCII)
# Headers that frame a message, or that repeat what is in it.
_OF_THE_LINK: Final = re.compile(
    "accept|connection|content-(?:encoding|length|type)|expect|host|keep-alive|last-event-id|te|trailer"
    "|transfer-encoding|upgrade|mcp-(?:method|name|protocol-version|session-id|param-.*)"
)


class Headers(ValueType, frozen=True):
    """A kind of configuration value: the HTTP headers that are added to every request to a server.

    Headers that frame a message are refused, as Interlock sets them.
    """

    bare = "toml"

    def read(self, value: object, at: At) -> dict[str, str] | WrongValue:
        if not isinstance(value, dict):
            return at.must_be("a table", value, "write { NAME = value }")
        seen: set[str] = set()
        read: dict[str, str] = {}
        for name, text in value.items():
            inside, lowered = at.inside(name), name.lower()
            if not re.fullmatch(_HEADER_NAME, name):
                inside.wrong(f"{inside.name} is not a name a header can have")
            elif _OF_THE_LINK.fullmatch(lowered):
                inside.wrong(f"{inside.name} is a header Interlock writes itself", "leave it out")
            elif lowered in seen:
                inside.wrong(f"{inside.name} is there twice", "upper and lower case are the same header")
            else:
                header = Text(references=True, empty=True, stored=True).read(text, inside)
                if isinstance(header, str) and HEADER_VALUE.fullmatch(header):
                    read[name] = header
                elif isinstance(header, str):
                    hint = "no line breaks, only ASCII, no space at its ends"
                    inside.wrong(f"{inside.name} is not a value a header can carry", hint)
            seen.add(lowered)
        return read if len(read) == len(value) else WRONG

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^{_HEADER_NAME}$"},
            "additionalProperties": {"type": "string"},
        }

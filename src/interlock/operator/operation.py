"""An operation of the operator API, declared once: path, method, role, input, output, errors and summary.

Each capability declares its operations in `api.py`, beside their input and output types, and handles them in
`operations.py`. The section "Members:" in the docstring of a type has the help of its members. Everything else follows
from the declaration: the HTTP route and its checks (`endpoint`), the OpenAPI document (`openapi`), the request that a
command sends (`interlock.cli.client.operator`), and the same call on a data folder without a node
(`interlock.cli.client.offline`).

This module imports msgspec alone, because every command loads declarations and has to start fast.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import Struct

Output = TypeVar("Output")
AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Any])

Role = Literal["anyone", "viewer", "operator", "admin"]

LOCAL: Final = "local"  # the principal of admin.sock, and of a command that works on the data folder itself


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of all request bodies. A body with unknown members is refused."""


REFUSED: Final = "refused"  # the event whose data is an `ErrorAnswer`: why a stream ended before its last value


class ErrorCase(Struct, frozen=True):
    """An error that an operation can return, identified by a name that programs can test."""

    name: str
    status: int
    meaning: str


class File(Struct, frozen=True):
    """Output of an operation that is a file instead of JSON."""

    content: bytes
    media_type: str


class InvalidParameter(ValueError):
    """Raised for a query parameter with an invalid value."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


# Query parameters


class Parameter(Struct, frozen=True):
    """A query parameter. The handler receives its value as an argument with the name `argument` or, if that is empty,
    with the name of the parameter.
    """

    name: str
    description: str
    argument: str = ""
    default: Any = None

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the accepted values."""
        return {"type": "string"} | ({} if self.default is None else {"default": self.default})

    def parse(self, values: Sequence[str]) -> Any:
        """Return the value of the parameter from `values`, the texts that the query contains for it. Raise
        InvalidParameter if they are invalid.
        """
        return values[-1] if values else self.default

    def format(self, value: Any) -> str | None:
        """Return the text that a client sends for a value, or None if the client omits the parameter."""
        return None if value is None else str(value)


class TextParameter(Parameter, frozen=True, kw_only=True):
    """A parameter that takes any text."""


class IntegerParameter(Parameter, frozen=True, kw_only=True):
    """A parameter that takes one whole number in a range."""

    default: int
    minimum: int
    maximum: int

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum, "default": self.default}

    def parse(self, values: Sequence[str]) -> int:
        if not values:
            return self.default
        text = values[-1]
        # isdecimal alone also takes other scripts' digits; twenty digits bound the work of int().
        is_number = len(values) == 1 and text.isascii() and text.isdecimal() and len(text) <= 20
        if is_number and self.minimum <= int(text) <= self.maximum:
            return int(text)
        raise InvalidParameter(self.name, f"{self.name} must be one whole number from {self.minimum} to {self.maximum}")


class ChoiceParameter(Parameter, frozen=True, kw_only=True):
    """A parameter that takes one of several words."""

    choices: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)} | super().schema

    def parse(self, values: Sequence[str]) -> Any:
        value = super().parse(values)
        if value is not None and value not in self.choices:
            quoted = value if len(value) <= 128 else value[:127] + "…"
            raise InvalidParameter(self.name, f'{self.name} must be one of {", ".join(self.choices)}, not "{quoted}"')
        return value


class FlagParameter(ChoiceParameter, frozen=True, kw_only=True):
    """A parameter that takes one of two words, of which the first means true. The handler receives a bool."""

    def parse(self, values: Sequence[str]) -> bool:
        return bool(super().parse(values) == self.choices[0])

    def format(self, value: Any) -> str | None:
        return self.choices[0] if value else None


# Operations


@dataclass(eq=False)
class Operation(Generic[Output]):
    """Declaration of an operation of the operator API. `Output` is the type of its reply, or of
    each event of a stream.
    """

    route: str  # method and path: "GET /admin/status"
    summary: str
    _: KW_ONLY
    name: str = ""  # that of its constant in small letters, where `operations_in` collects it
    noun: str = ""  # the group in the OpenAPI document; that of its module, where `operations_in` collects it
    role: Role | None = None  # None: a viewer may look, and only an admin may change something
    input: Any = None  # the type of the request body; None: there is none
    form: Any = None  # the type of the fields, where a page may also send a form
    output: type[Output] | None = None  # None: a page or a file
    status: int = 200  # of a reply in JSON
    query: tuple[Parameter, ...] = ()
    takes_any_query: bool = False
    errors: tuple[ErrorCase, ...] = ()  # besides those that every operation of its kind has
    is_stream: bool = False  # a stream of events (SSE) instead of one reply; it may end with an event `REFUSED`
    event: str = ""  # what each event is called; it then also carries the id of its value
    is_page: bool = False  # a browser gets HTML
    files: tuple[str, ...] = ()  # media types, where the reply is a file

    def __post_init__(self) -> None:
        self.role = self.role or ("viewer" if self.method == "GET" else "admin")

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]

    @property
    def takes_passphrase(self) -> bool:
        """Return whether the request body contains a passphrase, which is accepted only from this machine or over
        https.
        """
        return "passphrase" in getattr(self.input, "__struct_fields__", ())

    @property
    def is_strict(self) -> bool:
        """Return whether requests with unknown query parameters are refused."""
        return not self.takes_any_query and (self.method == "GET" or bool(self.query))

    def target(self, arguments: Mapping[str, object], quote: Callable[[str], str]) -> tuple[str, dict[str, str]]:
        """Return the path and the query parameters of a request. `arguments` holds the values of path and query
        parameters by name.
        """
        values = dict(arguments)
        segments = []
        for segment in self.path.split("/"):
            is_part = segment.startswith("{")
            segments.append(quote(str(values.pop(segment[1:-1].partition(":")[0]))) if is_part else segment)
        query = {}
        for parameter in self.query:
            text = parameter.format(values.pop(parameter.argument or parameter.name, None))
            if text is not None:
                query[parameter.name] = text
        if values:
            raise TypeError(f"{self.name} takes no {', '.join(values)}")
        return "/".join(segments), query


def operations_in(module: Mapping[str, object], noun: str) -> tuple[Operation[Any], ...]:
    """Return the operations that a module declares, each named like its constant. They are about `noun`, unless they
    declare another one.

    `module` contains the module's global names, in the order of declaration.
    """
    constants = {name: value for name, value in module.items() if isinstance(value, Operation)}
    for name, operation in constants.items():
        operation.name, operation.noun = name.lower(), operation.noun or noun
    return tuple(constants.values())


def handles(operation: Operation[Any]) -> Callable[[AnyHandler], AnyHandler]:
    """Mark a method as the handler of an operation.

    The parameters of the handler determine what it receives: path and query parameters by their names, the decoded
    `body`, `by` (the principal that makes the request) and `roles`. It returns a value of the operation's output type,
    an async generator of such values for a stream, or raises NotFound or Refused.
    """

    def mark(handler: AnyHandler) -> AnyHandler:
        handler.__dict__["operation"] = operation
        return handler

    return mark


Handlers = Mapping[Operation[Any], Callable[..., Any]]


def handlers_of(services: Iterable[object]) -> Handlers:
    """Return the bound handler methods of these objects, keyed by operation."""
    handlers: dict[Operation[Any], Callable[..., Any]] = {}
    for service in services:
        for name in dir(type(service)):
            operation = getattr(getattr(type(service), name), "operation", None)
            if isinstance(operation, Operation):
                handlers[operation] = getattr(service, name)
    return handlers


# Errors of all operations, or of all operations of a kind

INVALID_PARAMETER: Final = ErrorCase("invalid_parameter", 400, "a query parameter is unknown or has no possible value")
INVALID_JSON: Final = ErrorCase("invalid_json", 400, "the body is not JSON")
INVALID_BODY: Final = ErrorCase("invalid_body", 400, "the body has another shape, or a member that is not known")
UNAUTHORISED: Final = ErrorCase("unauthorised", 401, "no credential of an operator was shown")
ROLE_REQUIRED: Final = ErrorCase("role_required", 403, "the credential does not have the role that this takes")
FOREIGN_PAGE: Final = ErrorCase("bad_origin", 403, "another page's Origin or Sec-Fetch-Site")
SESSION_KEY: Final = ErrorCase("session_key", 403, "a browser's session sends its key as X-Interlock-Session")
MISDIRECTED: Final = ErrorCase("bad_host", 421, "the Host is not this node's; see node.operator_url")
BODY_TOO_LARGE: Final = ErrorCase("body_too_large", 413, "the body is larger than 64 KiB")
UNSUPPORTED_MEDIA_TYPE: Final = ErrorCase("unsupported_media_type", 415, "the body is not application/json")
INTERNAL: Final = ErrorCase("internal", 500, "a fault of the node; details.ref is repeated in its log")
UNAVAILABLE: Final = ErrorCase("unavailable", 503, "the store cannot answer; nothing was done")

# Errors of several capabilities

NOT_FOUND: Final = ErrorCase("not_found", 404, "there is none of this name; details.nearest names what is like it")
NOT_LOCAL: Final = ErrorCase("not_local", 403, "a passphrase is taken on the node's own machine, or over https")
CHANGED: Final = ErrorCase("changed", 409, "it is not what was shown: the files, or the definition of the tool")

"""The table of all operations of the operator API, and the OpenAPI 3.1 document made from the table.

Paths are matched and documented in the order of the table: by group, as in NOUNS, and within a group in the order of
declaration.

Everything about an operation comes from its declaration and its types. The same document is served, committed and
tested.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import UnionType
from typing import Any, Final, get_args, get_origin

import msgspec

from interlock import __version__
from interlock.access.operations import COOKIE
from interlock.core.capability import load_reference
from interlock.node.capabilities import CAPABILITIES
from interlock.operator import operation as cases
from interlock.operator.api import ErrorAnswer
from interlock.operator.endpoint import FORM
from interlock.operator.operation import ErrorCase, Operation

# The groups of the document, in its order. An operation of a new noun comes after them.
NOUNS: Final = (
    *("node", "links", "secrets", "tools", "access", "login", "drivers", "agents", "rooms", "names"),
    *("approvals", "approvers", "grants", "passkeys", "console"),
)

_DECLARED: Final[tuple[Operation[Any], ...]] = tuple(
    operation
    for capability in CAPABILITIES
    for reference in capability.operations
    for operation in load_reference(reference)
)


OPERATIONS: Final = sorted(_DECLARED, key=lambda operation: (*NOUNS, operation.noun).index(operation.noun))


JsonObject = dict[str, Any]

JSON: Final = "application/json"
HTML: Final = "text/html"
SSE: Final = "text/event-stream"

_PATH_PART: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_PARTS: Final = {
    "file": "The name of a file.",
    "id": "The id of an approval, or the beginning of it; of a participant, the whole.",
    "kind": "secret, token or client.",
    "name": "The name; of a driver also ID@MAJOR or its folder, of a tool also its alias.",
    "ref": "An id or a name.",
    "segment": "The segment of a link.",
    "ticket": "The ticket of an invitation.",
    "topic": "The topic of a room.",
}
# The section of a type's docstring with the help of its members, which may go on in lines that are indented deeper.
_MEMBERS: Final = "\n\n    Members:\n"
_MEMBER: Final = re.compile(r"^ {8}(\w+): (.+(?:\n {9,}.+)*)", re.MULTILINE)
_DESCRIPTION: Final = """\
What an operator can ask a running node and tell it to do: the same that `interlock` commands use.

The operator endpoint listens on `node.operator_listen`, 127.0.0.1:7412 unless configured, and takes a token made by
`interlock access token --for operator --name NAME`. On the machine itself the socket run/admin.sock in the data folder
answers the user who runs the node without one. Each operation says in x-interlock-role which role it takes; a
credential has viewer, operator or admin, and every role may look.

Answers may gain members: ignore those that are not known. Request bodies refuse them. Times are RFC 3339 in UTC.
"""


@cache
def encoded_document() -> bytes:
    return msgspec.json.encode(_document())


def document() -> JsonObject:
    """Return the OpenAPI document as a decoded JSON object."""
    decoded: JsonObject = msgspec.json.decode(encoded_document())
    return decoded


def _document() -> JsonObject:
    schemas, components = _schemas(OPERATIONS)
    paths: dict[str, JsonObject] = {}
    for operation in OPERATIONS:
        path = _PATH_PART.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation, schemas)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {"title": "Interlock operator API", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "http://127.0.0.1:7412", "description": "On the machine of the node, unless configured."}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.noun for operation in OPERATIONS)],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of an operator: ilo_..."},
                "password": {"type": "http", "scheme": "basic", "description": "The same token as the password."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": "A browser's session, from a login link, with its key as X-Interlock-Session.",
                },
            },
        },
    }


def _schemas(operations: Iterable[Operation[Any]]) -> tuple[dict[Any, JsonObject], dict[str, JsonObject]]:
    """Return a schema for each type that the operations use, and the components that these schemas refer to."""
    types: dict[Any, None] = {}
    for operation in operations:
        types |= dict.fromkeys((*_outputs(operation), *_bodies(operation).values(), ErrorAnswer))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    structs = {each.__name__: each for each in _structs(types)}
    for component in components.values():
        struct = structs[component["title"].partition("[")[0]]
        component["description"] = component["description"].partition(_MEMBERS)[0]
        for name, text in member_help(struct).items():
            member = struct.__struct_encode_fields__[struct.__struct_fields__.index(name)]
            properties = component["properties"]
            properties[member] = {"description": text} | properties[member]
    return dict(zip(types, schemas, strict=True)), components


def member_help(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the help of the members of a type, from the section "Members:" in its docstring and those of its bases."""
    sections = [(base.__doc__ or "").partition(_MEMBERS)[2] for base in reversed(struct.__mro__)]
    return {name: re.sub(r"\n +", " ", text) for section in sections for name, text in _MEMBER.findall(section)}


def _structs(types: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """Yield the class of every msgspec Struct that occurs in these types, also inside other types."""
    from msgspec import inspect  # here, because a node loads it only when somebody asks for the document

    waiting: list[Any] = list(inspect.multi_type_info(types))
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting += node
        elif isinstance(node, inspect.Type | inspect.Field) and id(node) not in seen:
            seen.add(id(node))
            waiting += (getattr(node, name) for name in node.__struct_fields__)
            if isinstance(node, inspect.StructType):
                yield get_origin(node.cls) or node.cls


def _outputs(operation: Operation[Any]) -> tuple[Any, ...]:
    """Return the types that an operation may return, one for each kind of output."""
    output: Any = operation.output
    if output is None:
        return ()
    return get_args(output) if isinstance(output, UnionType) else (output,)


def _bodies(operation: Operation[Any]) -> dict[str, Any]:
    """Return the types of the request body by media type."""
    bodies = {JSON: operation.input, FORM: operation.form}
    return {media: body for media, body in bodies.items() if body is not None}


def _describe(operation: Operation[Any], schemas: dict[Any, JsonObject]) -> JsonObject:
    description: JsonObject = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.noun],
        "x-interlock-role": operation.role,
        "security": [],
    }
    if operation.role != "anyone":
        ways = ("token", "session", *(("password",) if operation.is_page else ()))
        description["security"] = [{way: []} for way in ways]
    parameters = [
        {"name": name, "in": "path", "required": True, "description": _PARTS[name], "schema": {"type": "string"}}
        for name in _PATH_PART.findall(operation.path)
    ]
    parameters += [
        {"name": query.name, "in": "query", "description": query.description, "schema": query.schema}
        for query in operation.query
    ]
    if parameters:
        description["parameters"] = parameters
    if bodies := _bodies(operation):
        content = {media: {"schema": schemas[body]} for media, body in bodies.items()}
        description["requestBody"] = {"required": True, "content": content}
    description["responses"] = _responses(operation, schemas)
    return description


def _responses(operation: Operation[Any], schemas: dict[Any, JsonObject]) -> JsonObject:
    content: JsonObject = {}
    outputs = _outputs(operation)
    if outputs and not operation.is_stream:
        shapes = [schemas[each] for each in outputs]
        content[JSON] = {"schema": shapes[0] if len(shapes) == 1 else {"anyOf": shapes}}
    if operation.is_page:
        content[HTML] = {"schema": {"type": "string"}}
    content |= {media: {"schema": {"type": "string"}} for media in operation.files}
    if operation.is_stream:
        described = f"Events whose data is JSON: {schemas[operation.output]['$ref'].rpartition('/')[2]}."
        described += " A stream that fails ends with an event `refused`: ErrorAnswer."
        content[SSE] = {"schema": {"type": "string", "description": described}}
    responses: JsonObject = {str(operation.status): {"description": operation.summary, "content": content}}
    if operation.form is not None:
        responses["303"] = {"description": "Of a form: go on to the page.", "headers": {"Location": _TEXT_HEADER}}
    by_status: dict[int, list[ErrorCase]] = {}
    for case in sorted((*_common_errors(operation), *operation.errors), key=lambda case: case.status):
        by_status.setdefault(case.status, []).append(case)
    for status, possible in by_status.items():
        described = "; ".join(f"{case.name}: {case.meaning}" for case in possible)
        refused: JsonObject = {JSON: {"schema": schemas[ErrorAnswer]}}
        if operation.is_page:
            refused[HTML] = {"schema": {"type": "string"}}
        responses[str(status)] = {"description": described, "content": refused}
    return responses


_TEXT_HEADER: Final = {"schema": {"type": "string"}}


_BODY_ERRORS: Final = (cases.INVALID_JSON, cases.INVALID_BODY, cases.BODY_TOO_LARGE, cases.UNSUPPORTED_MEDIA_TYPE)


def _common_errors(operation: Operation[Any]) -> list[ErrorCase]:
    """Return the errors that the operation can return in addition to those that it declares."""
    is_for_anyone, is_change = operation.role == "anyone", operation.method != "GET"
    errors = [cases.INVALID_PARAMETER] if operation.is_strict else []
    errors += _BODY_ERRORS if operation.input is not None else ()
    errors += () if is_for_anyone else (cases.UNAUTHORISED,)
    errors += (cases.ROLE_REQUIRED,) if operation.role in ("operator", "admin") else ()
    # What the path names may not exist. A stream says so in an event, and a page in its own way.
    is_about_named = "{" in operation.path and operation.output is not None and not operation.is_stream
    errors += (cases.NOT_FOUND,) if is_about_named and all(case.status != 404 for case in operation.errors) else ()
    errors += (cases.FOREIGN_PAGE, cases.MISDIRECTED) if is_change else ()
    errors += (cases.SESSION_KEY,) if is_change and not is_for_anyone else ()
    return [*errors, cases.INTERNAL, cases.UNAVAILABLE]

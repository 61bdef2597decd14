"""The operator API as an OpenAPI 3.1 document, made of the table of endpoints and the types they name.

Nothing is written here that the table or a type could say; the same document is served, committed and tested.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import msgspec

from interlock import __version__
from interlock.access.logins import COOKIE
from interlock.operator import error_cases
from interlock.operator.api import ErrorAnswer
from interlock.operator.endpoint import Endpoint
from interlock.operator.endpoints import ENDPOINTS
from interlock.operator.error_cases import ErrorCase

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
    made: JsonObject = msgspec.json.decode(encoded_document())
    return made


def _document() -> JsonObject:
    schemas, components = _schemas(ENDPOINTS)
    paths: dict[str, JsonObject] = {}
    for endpoint in ENDPOINTS:
        path = _PATH_PART.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {"title": "Interlock operator API", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "http://127.0.0.1:7412", "description": "On the machine of the node, unless configured."}],
        "tags": [{"name": tag} for tag in dict.fromkeys(_tag(endpoint) for endpoint in ENDPOINTS)],
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


def _schemas(endpoints: Iterable[Endpoint]) -> tuple[dict[Any, JsonObject], dict[str, JsonObject]]:
    """A schema for each type that an endpoint names, and the components that these refer to."""
    types = list(dict.fromkeys(each for endpoint in endpoints for each in (*_types(endpoint), ErrorAnswer)))
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return dict(zip(types, found, strict=True)), components


def _types(endpoint: Endpoint) -> Iterator[Any]:
    yield from endpoint.answers
    yield from endpoint.own_bodies.values()
    yield from (each for each in (endpoint.body, endpoint.events) if each is not None)


def _operation(endpoint: Endpoint, schemas: dict[Any, JsonObject]) -> JsonObject:
    made: JsonObject = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "tags": [_tag(endpoint)],
        "x-interlock-role": endpoint.role,
        "security": _security(endpoint),
    }
    if parameters := [*_path_parameters(endpoint), *_query_parameters(endpoint)]:
        made["parameters"] = parameters
    bodies = endpoint.own_bodies or ({JSON: endpoint.body} if endpoint.body is not None else {})
    if bodies:
        content = {media: {"schema": schemas[body]} for media, body in bodies.items()}
        made["requestBody"] = {"required": True, "content": content}
    made["responses"] = _responses(endpoint, schemas)
    return made


def _security(endpoint: Endpoint) -> list[JsonObject]:
    if endpoint.role == "anyone":
        return []
    ways: list[JsonObject] = [{"token": []}, {"session": []}]
    return [*ways, {"password": []}] if endpoint.is_page else ways


def _path_parameters(endpoint: Endpoint) -> Iterator[JsonObject]:
    for name in _PATH_PART.findall(endpoint.path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARTS[name],
            "schema": {"type": "string"},
        }


def _query_parameters(endpoint: Endpoint) -> Iterator[JsonObject]:
    for one in endpoint.query:
        yield {"name": one.name, "in": "query", "description": one.description, "schema": one.schema}


def _responses(endpoint: Endpoint, schemas: dict[Any, JsonObject]) -> JsonObject:
    content: JsonObject = {}
    if endpoint.answers:
        shapes = [schemas[each] for each in endpoint.answers]
        content[JSON] = {"schema": shapes[0] if len(shapes) == 1 else {"anyOf": shapes}}
    if endpoint.is_page:
        content[HTML] = {"schema": {"type": "string"}}
    content |= {media: {"schema": {"type": "string"}} for media in endpoint.files}
    if endpoint.events is not None:
        described = f"Events whose data is JSON: {schemas[endpoint.events]['$ref'].rpartition('/')[2]}."
        content[SSE] = {"schema": {"type": "string", "description": described}}
    made: JsonObject = {str(endpoint.status): {"description": endpoint.summary, "content": content}}
    if endpoint.redirects:
        made["303"] = {"description": "Of a form: go on to the page.", "headers": {"Location": _TEXT_HEADER}}
    by_status: dict[int, list[ErrorCase]] = {}
    for case in sorted((*_common_errors(endpoint), *endpoint.errors), key=lambda one: one.status):
        by_status.setdefault(case.status, []).append(case)
    for status, cases in by_status.items():
        described = "; ".join(f"{case.name}: {case.meaning}" for case in cases)
        refused: JsonObject = {JSON: {"schema": schemas[ErrorAnswer]}}
        if endpoint.is_page:
            refused[HTML] = {"schema": {"type": "string"}}
        made[str(status)] = {"description": described, "content": refused}
    return made


_TEXT_HEADER: Final = {"schema": {"type": "string"}}


def _common_errors(endpoint: Endpoint) -> Iterator[ErrorCase]:
    if endpoint.is_strict:
        yield error_cases.INVALID_PARAMETER
    if endpoint.body is not None or endpoint.own_bodies:
        yield error_cases.INVALID_JSON
        yield error_cases.INVALID_BODY
        yield error_cases.BODY_TOO_LARGE
        yield error_cases.UNSUPPORTED_MEDIA_TYPE
    if endpoint.role != "anyone":
        yield error_cases.UNAUTHORISED
    if endpoint.role in ("operator", "admin"):
        yield error_cases.ROLE_REQUIRED
    if endpoint.method != "GET":
        yield error_cases.FOREIGN_PAGE
        yield error_cases.MISDIRECTED
        if endpoint.role != "anyone":
            yield error_cases.SESSION_KEY
    yield error_cases.INTERNAL
    yield error_cases.UNAVAILABLE


def _tag(endpoint: Endpoint) -> str:
    """The noun that the endpoint is about: the module its handler is in."""
    return endpoint.handler.__module__.rpartition(".")[2]

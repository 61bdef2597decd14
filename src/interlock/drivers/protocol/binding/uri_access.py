"""Resources of servers: references that name URIs, and the URIs that a server may be given.

A reference is `mcp_<kind>:<uri>` (AIP-27, AIP-resources-2 to -4). Each kind belongs to one driver. The part after the
colon is the URI itself. If AIP-27's reserved characters are encoded in it (its scheme ends in %3A), it is decoded once.
A trailing #sha256= is a checksum of the content and not part of the URI.

`denial` decides whether a server may be given a URI (AIP-security-6). A file URI is decoded once. Its path is resolved
by the function that is passed in, both as written and with its dots removed first, and compared with the file roots of
the server's sandbox. The host of an http URI is compared with the server's egress list. Any other scheme must be one
that the driver's resources declare. A URI that two programs could interpret differently (a backslash, a control
character, an escape inside an escape, a query after a file) is refused. Text without a scheme is a path, and the
sandbox decides about paths.

`UriWatch` finds the URIs in the arguments of a call: strings whose schema has the format uri, and every string that
begins with file:.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.mcp import items as templates
from interlock.net.protocol.address_scope import Scope, find_scope
from interlock.net.protocol.egress import Permit, permits, port_of
from interlock.net.protocol.uri import Unreadable, is_within, read_file_path, without_dots
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.schemas.validators import reference_target

REFERENCE_PREFIX: Final = "mcp_"  # AIP-resources-2
BASE_KINDS: Final = frozenset(  # AIP-resources-3
    ("local", "url", "git", "github", "ipfs", "email", "operator", "user", "persona", "eth_tx", "ots")
)
REF_CHARS_MAX: Final = templates.URI_CHARS_MAX

_REF = re.compile(r"([a-z][a-z0-9_]*):(.+)", re.DOTALL)
_CHECK = re.compile(r"#sha256=([0-9a-fA-F]{64})\Z")
_LAST_SIMPLE = re.compile(r"\{(?=[A-Za-z0-9_])([^{}]*)\}\Z")


class ResourceRef(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to a resource of a server: its kind, the URI, and optionally the hash of the content."""

    kind: str
    uri: str
    sha256: str | None = None  # lower case


class ResourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of reference to resources: the driver that declares it, and the templates of the URIs that it may
    contain.
    """

    name: str
    driver: str  # id@major
    templates: tuple[str, ...]


class Kinds(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of references to resources, by name, and the problems of kinds that could not be registered."""

    kinds: Mapping[str, ResourceKind] = {}
    problems: tuple[FileProblem, ...] = ()


def kind_name(ref_kind_id: str) -> str:
    """Return the full name of a kind of reference, which always begins with mcp_."""
    return REFERENCE_PREFIX + ref_kind_id.removeprefix(REFERENCE_PREFIX)  # AIP-resources-2


def register_kinds(drivers: Iterable[Driver]) -> Kinds:
    """Collect the kinds of references that drivers declare. If two drivers declare the same kind, the first driver gets
    it.
    """
    kinds: dict[str, ResourceKind] = {}
    problems: list[FileProblem] = []
    for driver in drivers:
        for index, resource in enumerate(driver.resources):
            if resource.integrate_as != "ref_kind" or resource.ref_kind_id is None:
                continue
            name = kind_name(resource.ref_kind_id)
            is_base = resource.ref_kind_id in BASE_KINDS
            kind = kinds.get(name, ResourceKind(name=name, driver=driver.key, templates=()))
            if is_base or kind.driver != driver.key:  # AIP-resources-3
                owner = "a base kind" if is_base else f"the kind {name} of {kind.driver}"
                pointer, message = f"/resources/{index}/ref_kind_id", f"this is {owner}, so it is not registered"
                hint = "choose another ref_kind_id"
                problems.append(driver.places.problem(pointer, "ref_kind_conflict", message, hint, "warning"))
            else:
                kinds[name] = msgspec.structs.replace(kind, templates=(*kind.templates, resource.uri_template))
    return Kinds(kinds=kinds, problems=tuple(problems))


def parse_reference(text_untrusted: str, kinds: Mapping[str, ResourceKind]) -> ResourceRef | DriverRefusal:
    """Parse a reference such as mcp_notes:URI. Return a refusal if it is invalid or its kind does not allow the URI."""
    if len(text_untrusted) > REF_CHARS_MAX:
        return _invalid(f"the reference has more than {REF_CHARS_MAX} characters")
    parts = _REF.fullmatch(text_untrusted)
    if parts is None:
        return _invalid("the reference is not KIND:URI")
    name, body = parts[1], parts[2]
    kind = kinds.get(name)
    if kind is None:  # AIP-resources-2
        return _invalid("no driver has this kind of reference")
    sha256 = None
    if check := _CHECK.search(body):
        body, sha256 = body[: check.start()], check[1].lower()
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*%3[Aa]", body):
        body = re.sub(r"%(?:3[Aa]|40|23|25)", lambda escape: chr(int(escape[0][1:], 16)), body)
    if not any(matches_template(each, body) for each in kind.templates):  # AIP-resources-2
        return _invalid("the URI is none of those that this kind names")
    return ResourceRef(kind=name, uri=body, sha256=sha256)


def matches_template(uri_template: str, uri: str) -> bool:
    """Return whether the template matches the URI (AIP-resources-4).

    A {path} at the end of a template also matches slashes; elsewhere it matches one segment.
    """
    return templates.matches(_LAST_SIMPLE.sub(r"{+\1}", uri_template), uri)


def _invalid(message: str) -> DriverRefusal:
    return DriverRefusal("ref_invalid", message)


URI_CHARS_MAX: Final = 8192
SCHEMA_STEPS_MAX: Final = 64  # of $ref and combinators around one value

# Returns an absolute path without symlinks, or None if it cannot be resolved.
Resolve = Callable[[str], str | None]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DROPPED = re.compile("[\x00-\x20\x7f-\xa0\ud800-\udfff]")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_URI_FORMATS: Final = ("uri", "uri-reference", "iri", "iri-reference")


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Paths, hosts and URI schemes that a server may access. Paths are absolute, without symbolic links."""

    roots: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()  # folders below the roots that are closed
    egress: tuple[str, ...] = ()
    schemes: frozenset[str] = frozenset()  # of the declared resource templates


def schemes_of(templates: Iterable[str]) -> frozenset[str]:
    """Return the URI schemes of the templates, in lower case."""
    matches = (_SCHEME.match(each) for each in templates)
    return frozenset(each[1].lower() for each in matches if each is not None)


def denial(uri_untrusted: str, reach: Reach, resolve: Resolve) -> DriverRefusal | None:
    """Return a refusal if the URI must not be forwarded to the server, or None if it may be forwarded unchanged.

    `resolve` follows symbolic links. The message is for the operator and does not contain the URI.
    """
    reason = _find_reason(uri_untrusted, reach, resolve)
    if reason is None:
        return None
    # AIP-security-6
    return DriverRefusal("resource_uri_denied", "the server may not be given this URI", cause={"reason": reason})


class UriWatch:
    """Search for URIs in values that have a certain schema. It is created once per schema and used for every call."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        # Most schemas have no URI. Of a value of such a schema only the strings are looked at.
        self._start = (schema,) if _has_uri_format(schema) else ()
        # The properties that may contain URIs. None: any may, because the schema has references, or URIs elsewhere.
        self.names = _find_uri_members(schema) if self._start else frozenset()

    def uris(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that are URIs, so that they can be checked.

        All alternatives of the schema are considered, because checking too many strings does no harm. The search is not
        recursive, because a caller can send deeply nested values.
        """
        todo: list[tuple[Any, tuple[Any, ...]]] = [(value, self._start)]
        while todo:
            value, schemas = todo.pop()
            spread = tuple(_spread(schemas, self._schema)) if schemas else ()
            if isinstance(value, str):
                is_file = ":" in value and _generous_reading(value[:64])[:5].lower() == "file:"
                if is_file or any(each.get("format") in _URI_FORMATS for each in spread):
                    yield value
            elif isinstance(value, Mapping):
                members = [(each, tuple(_member_schemas(spread, key)) if spread else ()) for key, each in value.items()]
                todo += reversed(members)
            elif isinstance(value, list | tuple):
                todo += reversed(
                    [(each, tuple(_element_schemas(spread, at)) if spread else ()) for at, each in enumerate(value)]
                )


def _find_uri_members(schema: Any) -> frozenset[str] | None:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    written = encode_value(schema)
    if not isinstance(properties, Mapping) or b'"$ref"' in written or b'"$dynamicRef"' in written:
        return None
    names = frozenset(name for name, each in properties.items() if _has_uri_format(each))
    return None if _has_uri_format({**schema, "properties": None}) else names


def _has_uri_format(schema: Any) -> bool:
    todo = [schema]
    while todo:
        inner = todo.pop()
        if isinstance(inner, Mapping):
            if inner.get("format") in _URI_FORMATS:
                return True
            todo += inner.values()
        elif isinstance(inner, list | tuple):
            todo += inner
    return False


def _find_reason(uri: str, reach: Reach, resolve: Resolve) -> str | None:
    """Return why a URI must not be sent to a server, or None if it may be sent."""
    if len(uri) > URI_CHARS_MAX:
        return f"it has more than {URI_CHARS_MAX} characters"
    lenient = _generous_reading(uri)
    scheme_match = _SCHEME.match(lenient)
    if scheme_match is None and not lenient.startswith("//"):
        return None
    if lenient != uri:  # AIP-security-6
        return "it holds a backslash, a space or a control character"
    if scheme_match is None:
        return _find_host_reason(uri, reach)
    scheme = scheme_match[1].lower()
    if scheme == "file":
        path = read_file_path(uri[scheme_match.end() :])
        if isinstance(path, Unreadable):
            return path.reason
        # If a symlink comes before the dots, the two readings differ, and we cannot know which one the server opens.
        for each in (path, without_dots(path)):
            resolved = resolve(each)
            # AIP-security-6
            if resolved is None or not is_within(resolved, reach.roots) or is_within(resolved, reach.denied):
                return "its path is outside of the sandbox"
        return None
    if scheme in ("http", "https"):
        return _find_host_reason(uri, reach)
    return None if scheme in reach.schemes else "no declared resource has its scheme"  # AIP-security-6


def _find_host_reason(uri: str, reach: Reach) -> str | None:
    """Return why a URI with this host must not be sent to a server, or None if the server's egress list allows the
    host.
    """
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, port_of(parts)
    except ValueError:
        host = None
    if not host or "%" in parts.netloc:
        return "its host cannot be read"
    if parts.username is not None or parts.password is not None:
        return "it holds a user or a password"
    host = host.rstrip(".")
    permit = permits(host, port, reach.egress)
    if permit is None:  # AIP-security-6
        return "its host is not in network.egress"
    # The host is judged by its name alone. The egress proxy checks the addresses to which the name resolves.
    scope = find_scope(host)
    # A last label of digits is one of the older spellings of an address.
    is_private = scope > Scope.PUBLIC if scope is not None else _NUMBER.fullmatch(host.rpartition(".")[2]) is not None
    if permit is not Permit.NAMED and is_private:
        return "a private address is reached only if network.egress names it"
    return None


def _generous_reading(text: str) -> str:
    """Return a text as the most tolerant URI parser reads it: without white space, and with a slash for each
    backslash.
    """
    return _DROPPED.sub("", text).replace("\\", "/")


def _spread(schemas: Iterable[Any], root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield these schemas, and also the schemas that they combine (such as in allOf) or refer to. Yield at most
    SCHEMA_STEPS_MAX schemas.
    """
    todo = list(schemas)
    for _ in range(SCHEMA_STEPS_MAX):
        if not todo:
            return
        schema = todo.pop()
        if not isinstance(schema, Mapping):
            continue
        yield schema
        for key in ("allOf", "anyOf", "oneOf"):
            branches = schema.get(key)
            todo += branches if isinstance(branches, list) else []
        todo += [schema[key] for key in ("if", "then", "else") if key in schema]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = reference_target(root, reference)
            # A reference by anchor counts as one to the whole schema. A dangling pointer, or a reference to another
            # document, leads to no schema.
            is_anchor = reference.startswith("#") and not reference.startswith("#/")
            todo.append(target[0] if target is not None else root if is_anchor else None)


def _member_schemas(schemas: Iterable[Mapping[str, Any]], key: str) -> Iterator[Any]:
    for schema in schemas:
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            yield properties[key]
        patterns = schema.get("patternProperties")
        if isinstance(patterns, Mapping):
            yield from patterns.values()
        yield schema.get("additionalProperties")
        yield schema.get("unevaluatedProperties")


def _element_schemas(schemas: Iterable[Mapping[str, Any]], index: int) -> Iterator[Any]:
    for schema in schemas:
        items = schema.get("items")
        places = items if isinstance(items, list) else schema.get("prefixItems")
        if isinstance(places, list) and index < len(places):
            yield places[index]
        if not isinstance(items, list):
            yield items
        yield schema.get("additionalItems")
        yield schema.get("contains")

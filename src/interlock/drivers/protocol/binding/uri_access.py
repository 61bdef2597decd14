"""May this server be given this URI? (AIP-security-6)

A file URI is decoded once, and what it names - as written, and with its dots settled first - is resolved by the
function that is passed in and compared with the file roots of the server's sandbox. An http URI's host is compared with
its egress. Any other scheme is one that the driver's resources declare. Whatever two readers could read differently
(a backslash, a control character, an escape inside an escape, a query after a file) is refused. Text without a scheme
is a path, and paths are left to the sandbox.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.mcp import uri_templates as templates
from interlock.net.protocol.address_scope import Scope, maybe_scope
from interlock.net.protocol.egress import Permit, permits, port_of
from interlock.net.protocol.uri import Unreadable, is_within, read_file_path, without_dots

# References to a server's resources: `mcp_<kind>:<uri>`, read and printed (AIP-27, AIP-resources-2 to -4).
#
# A kind belongs to one driver. The body is the URI as it stands; a body in which AIP-27's reserved characters are
# encoded (its scheme ends in %3A) is decoded once. A trailing #sha256= is a check of the content and no part of the
# URI.

REFERENCE_PREFIX: Final = "mcp_"  # AIP-resources-2
BASE_KINDS: Final = frozenset(  # AIP-resources-3
    ("local", "url", "git", "github", "ipfs", "email", "operator", "user", "persona", "eth_tx", "ots")
)
REF_CHARS_MAX: Final = templates.URI_CHARS_MAX

_REF = re.compile(r"([a-z][a-z0-9_]*):(.+)", re.DOTALL)
_ENCODED_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*%3[Aa]")
_RESERVED = re.compile(r"%(?:3[Aa]|40|23|25)")
_CHECK = re.compile(r"#sha256=([0-9a-fA-F]{64})\Z")
_LAST_SIMPLE = re.compile(r"\{(?=[A-Za-z0-9_])([^{}]*)\}\Z")


class ResourceRef(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    uri: str
    sha256: str | None = None  # lower case


class ResourceKind(msgspec.Struct, frozen=True, kw_only=True):
    """A registered kind: whose it is, and which URIs it names."""

    name: str
    driver: str  # id@major
    templates: tuple[str, ...]


class Kinds(msgspec.Struct, frozen=True, kw_only=True):
    kinds: Mapping[str, ResourceKind] = {}
    problems: tuple[FileProblem, ...] = ()


def kind_name(ref_kind_id: str) -> str:
    return (
        ref_kind_id if ref_kind_id.startswith(REFERENCE_PREFIX) else REFERENCE_PREFIX + ref_kind_id
    )  # AIP-resources-2


def register_kinds(drivers: Iterable[Driver]) -> Kinds:
    """Register the reference kinds of these drivers. If two drivers want the same kind, the first one gets it."""
    kinds: dict[str, ResourceKind] = {}
    problems: list[FileProblem] = []
    for driver in drivers:
        wanted: dict[str, list[str]] = {}
        for index, resource in enumerate(driver.resources):
            if resource.integrate_as != "ref_kind" or resource.ref_kind_id is None:
                continue
            name = kind_name(resource.ref_kind_id)
            taken = resource.ref_kind_id in BASE_KINDS
            if taken or name in kinds:  # AIP-resources-3
                whose = "a base kind" if taken else f"the kind {name} of {kinds[name].driver}"
                problems.append(
                    driver.places.problem(
                        f"/resources/{index}/ref_kind_id",
                        "ref_kind_conflict",
                        f"this is {whose}, so it is not registered",
                        "choose another ref_kind_id",
                        severity="warning",
                    )
                )
                continue
            wanted.setdefault(name, []).append(resource.uri_template)
        for name, uri_templates in wanted.items():
            kinds[name] = ResourceKind(name=name, driver=driver.key, templates=tuple(uri_templates))
    return Kinds(kinds=kinds, problems=tuple(problems))


def parse_reference(text_untrusted: str, kinds: Mapping[str, ResourceKind]) -> ResourceRef | DriverRefusal:
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
    if _ENCODED_SCHEME.match(body):
        body = _RESERVED.sub(lambda escape: chr(int(escape[0][1:], 16)), body)
    if not any(matches_template(each, body) for each in kind.templates):  # AIP-resources-2
        return _invalid("the URI is none of those that this kind names")
    return ResourceRef(kind=name, uri=body, sha256=sha256)


def uri_text(ref: ResourceRef) -> str:
    """Return the reference as text. The URI is escaped only if its end would be read as a checksum."""
    body = ref.uri
    if _CHECK.search(body):
        body = re.sub(r"[%:@#]", lambda character: f"%{ord(character[0]):02X}", body)
    return f"{ref.kind}:{body}" + (f"#sha256={ref.sha256}" if ref.sha256 is not None else "")


def matches_template(uri_template: str, uri: str) -> bool:
    """Return whether the template matches the URI (AIP-resources-4).

    A {path} at the end of a template matches slashes too; elsewhere it matches one segment.
    """
    return templates.matches(_LAST_SIMPLE.sub(r"{+\1}", uri_template), uri)


def _invalid(message: str) -> DriverRefusal:
    return DriverRefusal(code="ref_invalid", message=message)


URI_CHARS_MAX: Final = 8192
SCHEMA_STEPS_MAX: Final = 64  # of $ref and combinators around one value

Resolve = Callable[[str], str | None]  # an absolute path -> the same without symlinks; None: it cannot be told

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DROPPED = re.compile("[\x00-\x20\x7f-\xa0\ud800-\udfff]")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_WEB: Final = ("http", "https")
_URI_FORMATS: Final = ("uri", "uri-reference", "iri", "iri-reference")
_COMBINATORS: Final = ("allOf", "anyOf", "oneOf")
_BRANCHES: Final = ("if", "then", "else")


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Access that a server's sandbox allows. Paths are absolute and without symlinks."""

    roots: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()  # below the roots, and stronger
    egress: tuple[str, ...] = ()
    schemes: frozenset[str] = frozenset()  # of the declared resource templates


def schemes_of(templates: Iterable[str]) -> frozenset[str]:
    matches = (_SCHEME.match(each) for each in templates)
    return frozenset(each[1].lower() for each in matches if each is not None)


def denial(uri_untrusted: str, reach: Reach, resolve: Resolve) -> DriverRefusal | None:
    """Return why the URI must not be forwarded, or None if it may be forwarded unchanged.

    The reason is for the operator and does not contain the URI itself.
    """
    reason = _reason(uri_untrusted, reach, resolve)
    if reason is None:
        return None
    return DriverRefusal(
        # AIP-security-6
        code="resource_uri_denied",
        message="the server may not be given this URI",
        cause={"reason": reason},
    )


class UriWatch:
    """Which strings of a value are checked: where the schema says uri, and whatever begins with file:. Made once for a
    schema and asked for every call."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._start: tuple[Any, ...] = (schema,) if _says_uri(schema) else ()

    def uris(self, value: Any) -> Iterator[str]:
        # Every branch a schema could take counts: one more string checked does no harm. No recursion: a caller nests.
        todo: list[tuple[Any, tuple[Any, ...]]] = [(value, self._start)]
        while todo:
            value, schemas = todo.pop()
            spread = tuple(_spread(schemas, self._schema)) if schemas else ()
            if isinstance(value, str):
                if _begins_with_file(value) or any(each.get("format") in _URI_FORMATS for each in spread):
                    yield value
            elif isinstance(value, Mapping):
                members = [(each, tuple(_of_member(spread, key)) if spread else ()) for key, each in value.items()]
                todo += reversed(members)
            elif isinstance(value, list | tuple):
                elements = [(each, tuple(_of_element(spread, at)) if spread else ()) for at, each in enumerate(value)]
                todo += reversed(elements)


def _says_uri(schema: Any) -> bool:
    todo = [schema]
    while todo:
        at = todo.pop()
        if isinstance(at, Mapping):
            if at.get("format") in _URI_FORMATS:
                return True
            todo += at.values()
        elif isinstance(at, list | tuple):
            todo += at
    return False


def _reason(uri: str, reach: Reach, resolve: Resolve) -> str | None:
    if len(uri) > URI_CHARS_MAX:
        return f"it has more than {URI_CHARS_MAX} characters"
    seen = _generous_reading(uri)
    scheme_match = _SCHEME.match(seen)
    if scheme_match is None and not seen.startswith("//"):
        return None
    if seen != uri:  # AIP-security-6
        return "it holds a backslash, a space or a control character"
    if scheme_match is None:
        return _host_reason(uri, reach)
    scheme = scheme_match[1].lower()
    if scheme == "file":
        return _file_reason(uri[scheme_match.end() :], reach, resolve)
    if scheme in _WEB:
        return _host_reason(uri, reach)
    return None if scheme in reach.schemes else "no declared resource has its scheme"  # AIP-security-6


def _file_reason(rest: str, reach: Reach, resolve: Resolve) -> str | None:
    path = read_file_path(rest)
    if isinstance(path, Unreadable):
        return path.reason
    # Where a symlink stands before the dots the two differ, and which one the server opens is not ours to know.
    for each in (path, without_dots(path)):
        resolved = resolve(each)
        # AIP-security-6
        if resolved is None or not is_within(resolved, reach.roots) or is_within(resolved, reach.denied):
            return "its path is outside of the sandbox"
    return None


def _host_reason(uri: str, reach: Reach) -> str | None:
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
    if permit is not Permit.NAMED and _is_private(host):
        return "a private address is reached only where network.egress names it"
    return None


def _is_private(host: str) -> bool:
    """Return whether the host is private as far as its name shows. The egress proxy checks the addresses it resolves
    to.
    """
    scope = maybe_scope(host)
    if scope is not None:
        return scope > Scope.PUBLIC
    return _NUMBER.fullmatch(host.rpartition(".")[2]) is not None  # one of the older spellings of an address


def _begins_with_file(text: str) -> bool:
    return ":" in text and _generous_reading(text[:64])[:5].lower() == "file:"


def _generous_reading(text: str) -> str:
    """Return the text as the most lenient reader sees it, without white space and with a slash for each backslash."""
    return _DROPPED.sub("", text).replace("\\", "/")


def _spread(schemas: Iterable[Any], root: Any) -> Iterator[Mapping[str, Any]]:
    todo = list(schemas)
    for _ in range(SCHEMA_STEPS_MAX):
        if not todo:
            return
        schema = todo.pop()
        if not isinstance(schema, Mapping):
            continue
        yield schema
        for key in _COMBINATORS:
            branches = schema.get(key)
            todo += branches if isinstance(branches, list) else []
        todo += [schema[key] for key in _BRANCHES if key in schema]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            todo.append(_reference_target(root, reference))


def _reference_target(root: Any, reference: str) -> Any:
    """Return the schema that a local pointer refers to, or None for any other reference."""
    if not reference.startswith("#"):
        return None
    target = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(step)
        elif isinstance(target, list) and step.isdigit() and int(step) < len(target):
            target = target[int(step)]
        else:
            return None
    return target


def _of_member(schemas: Iterable[Mapping[str, Any]], key: str) -> Iterator[Any]:
    for schema in schemas:
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            yield properties[key]
        patterns = schema.get("patternProperties")
        if isinstance(patterns, Mapping):
            yield from patterns.values()
        yield schema.get("additionalProperties")
        yield schema.get("unevaluatedProperties")


def _of_element(schemas: Iterable[Mapping[str, Any]], index: int) -> Iterator[Any]:
    for schema in schemas:
        items = schema.get("items")
        places = items if isinstance(items, list) else schema.get("prefixItems")
        if isinstance(places, list) and index < len(places):
            yield places[index]
        if not isinstance(items, list):
            yield items
        yield schema.get("additionalItems")
        yield schema.get("contains")

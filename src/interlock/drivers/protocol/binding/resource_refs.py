"""References to a server's resources: `mcp_<kind>:<uri>`, read and printed (AIP-27, AIP-resources-2 to -4).

A kind belongs to one driver. The body is the URI as it stands; a body in which AIP-27's reserved characters are encoded
(its scheme ends in %3A) is decoded once. A trailing #sha256= is a check of the content and no part of the URI.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from interlock.drivers.protocol.errors import DriverRefusal
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import Problem
from interlock.mcp import uri_templates as templates

PREFIX: Final = "mcp_"  # AIP-resources-2
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
    problems: tuple[Problem, ...] = ()


def kind_name(ref_kind_id: str) -> str:
    return ref_kind_id if ref_kind_id.startswith(PREFIX) else PREFIX + ref_kind_id  # AIP-resources-2


def register(drivers: Iterable[Driver]) -> Kinds:
    """The kinds of these drivers; where two want one, the driver that comes first has it."""
    kinds: dict[str, ResourceKind] = {}
    problems: list[Problem] = []
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
        for name, found in wanted.items():
            kinds[name] = ResourceKind(name=name, driver=driver.key, templates=tuple(found))
    return Kinds(kinds=kinds, problems=tuple(problems))


def parse(text_untrusted: str, kinds: Mapping[str, ResourceKind]) -> ResourceRef | DriverRefusal:
    if len(text_untrusted) > REF_CHARS_MAX:
        return _invalid(f"the reference has more than {REF_CHARS_MAX} characters")
    found = _REF.fullmatch(text_untrusted)
    if found is None:
        return _invalid("the reference is not KIND:URI")
    name, body = found[1], found[2]
    kind = kinds.get(name)
    if kind is None:  # AIP-resources-2
        return _invalid("no driver has this kind of reference")
    sha256 = None
    if check := _CHECK.search(body):
        body, sha256 = body[: check.start()], check[1].lower()
    if _ENCODED_SCHEME.match(body):
        body = _RESERVED.sub(lambda escape: chr(int(escape[0][1:], 16)), body)
    if not any(matches(each, body) for each in kind.templates):  # AIP-resources-2
        return _invalid("the URI is none of those that this kind names")
    return ResourceRef(kind=name, uri=body, sha256=sha256)


def uri_text(ref: ResourceRef) -> str:
    """The URI as it stands, unless its end would be read as a check."""
    body = ref.uri
    if _CHECK.search(body):
        body = re.sub(r"[%:@#]", lambda found: f"%{ord(found[0]):02X}", body)
    return f"{ref.kind}:{body}" + (f"#sha256={ref.sha256}" if ref.sha256 is not None else "")


def matches(uri_template: str, uri: str) -> bool:
    """AIP-resources-4: {path} at the end of a template takes slashes too, elsewhere one segment."""
    return templates.matches(_LAST_SIMPLE.sub(r"{+\1}", uri_template), uri)


def _invalid(message: str) -> DriverRefusal:
    return DriverRefusal(code="ref_invalid", message=message)

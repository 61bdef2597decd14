"""What a specification reference points to, and whether it can be expected to stay (draft section 4.1)."""

import re
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from interlock.net.protocol.address_scope import Scope, maybe_scope

REFERENCE_CHARS_MAX: Final = 2000

_RFC: Final = re.compile(r"RFC ?([1-9][0-9]{0,4})", re.IGNORECASE)
_DRAFT: Final = re.compile(r"draft(?:-[a-z0-9]+)+")
_REVISED: Final = re.compile(r"(.+)-([0-9]{2})")
_DOI: Final = re.compile(r"(?:doi:|https://doi\.org/)(10\.[0-9]{4,9}/\S+)", re.IGNORECASE)
_DATATRACKER: Final = re.compile(
    r"https://datatracker\.ietf\.org/doc/(?:html/)?(draft(?:-[a-z0-9]+)+?)(?:[/-]([0-9]{2}))?/?"
)
_CODE_HOSTS: Final = frozenset(["github.com", "gitlab.com", "codeberg.org", "bitbucket.org"])
_COMMIT: Final = re.compile(r"/[0-9a-f]{40}(?:/|$)")
_SHARED_HOSTS: Final = frozenset([*_CODE_HOSTS, "datatracker.ietf.org", "doi.org", "www.rfc-editor.org"])
_PRIVATE_ENDS: Final = (".local", ".internal", ".localhost", ".lan", ".home.arpa")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """`unstable` says why it may move; `url` is where the document can be fetched."""

    kind: Literal["rfc", "draft", "doi", "uri", "unknown"]
    data: str  # as a cross-reference of a published registry has it
    url: str | None = None
    unstable: str | None = None
    owner: str | None = None  # the host, where it belongs to one organisation


def read_reference(text: str) -> Reference:
    if (rfc := _RFC.fullmatch(text)) is not None:
        return Reference(kind="rfc", data=f"rfc{rfc[1]}", url=f"https://www.rfc-editor.org/rfc/rfc{rfc[1]}.txt")
    if (found := _DATATRACKER.fullmatch(text)) is not None:
        return _draft(found[1], found[2])
    if _DRAFT.fullmatch(text) is not None:
        revised = _REVISED.fullmatch(text)
        return _draft(revised[1], revised[2]) if revised is not None else _draft(text, None)
    if (doi := _DOI.fullmatch(text)) is not None:
        return Reference(kind="doi", data=f"https://doi.org/{doi[1]}", url=f"https://doi.org/{doi[1]}")
    return _uri(text)


def _draft(name: str, revision: str | None) -> Reference:
    if revision is None:  # REG-4.1-4
        url = f"https://datatracker.ietf.org/doc/{name}/"
        return Reference(kind="draft", data=name, url=url, unstable="it names no revision of the draft")
    full = f"{name}-{revision}"
    return Reference(kind="draft", data=full, url=f"https://www.ietf.org/archive/id/{full}.txt")


def _uri(text: str) -> Reference:
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").lower()
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host or len(text) > REFERENCE_CHARS_MAX or not text.isprintable():
        return Reference(
            kind="unknown", data=text, unstable="it is no document identifier: an RFC, a draft, a DOI, https"
        )
    if parts.scheme == "http":  # REG-4.1-4
        return Reference(kind="uri", data=text, unstable="it is http, which anyone on the way can change")
    if parts.username is not None:
        return Reference(kind="uri", data=text, unstable="it holds a credential")
    if _is_private(host):  # REG-4.1-4
        return Reference(kind="uri", data=text, unstable="its host is not public")
    owner = None if host in _SHARED_HOSTS else host
    if host in _CODE_HOSTS and _COMMIT.search(parts.path) is None:  # REG-4.1-4
        return Reference(kind="uri", data=text, url=text, unstable="it names a branch of a code host, not a commit")
    return Reference(kind="uri", data=text, url=text, owner=owner)


def _is_private(host: str) -> bool:
    scope = maybe_scope(host)
    return "." not in host or host.endswith(_PRIVATE_ENDS) if scope is None else scope is not Scope.PUBLIC

"""The frame that all pages share, and the files of the console: scripts, style and icon.

A page has the product name, navigation, one style sheet and one script. It has no inline scripts or styles, and loads
nothing from other hosts.

Text of a caller or server can therefore not run as a script, even if a page contained it unescaped.
"""

import hashlib
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

import msgspec
from starlette.responses import HTMLResponse, Response

from interlock.wire.jsontext.display import plain

PREFIX: Final = "/console/"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Asset(msgspec.Struct, frozen=True):
    """A file of the console, as it is sent to browsers."""

    body: bytes
    media_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """Load all files of the console, keyed by name. Only these files can be requested, so path traversal is
    impossible.
    """
    by_name: dict[str, Asset] = {}
    for file in files("interlock.operator.pages").joinpath("static").iterdir():
        ending = file.name[file.name.rfind(".") :]
        if ending in _TYPES:
            body = file.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            by_name[file.name] = Asset(body, f"{_TYPES[ending]}; charset=utf-8", etag)
    return by_name


class ConsolePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the console, whose content its script loads."""

    path: str
    title: str
    script: str
    icon: str = ""  # what is drawn on a grid of 20 x 20
    under: str | None = None  # the page of the navigation that it belongs to, where it is not there itself


PAGES: Final = (
    ConsolePage(path="/", title="Overview", script="overview.js", icon="M3 9.5 10 4l7 5.5V16H3zM8 16v-4h4v4"),
    ConsolePage(path="/approvals", title="Inbox", script="inbox.js", icon="M3 11 5 4h10l2 7v5H3zM3 11h4l1 2h4l1-2h4"),
    ConsolePage(path="/activity", title="Activity", script="activity.js", icon="M2 10h4l2-5 4 10 2-5h4"),
    ConsolePage(path="/tools", title="Tools", script="tools.js", icon="M4 6h12M4 10h12M4 14h7M16 13v4M14 15h4"),
    ConsolePage(
        path="/servers", title="Servers", script="servers.js", icon="M3 4h14v5H3zM3 11h14v5H3zM6 6.5h1M6 13.5h1"
    ),
    ConsolePage(path="/agents", title="Agents", script="agents.js", icon="M5 8h10v8H5zM10 4v4M8 12v1M12 12v1"),
    ConsolePage(path="/rooms", title="Rooms", script="rooms.js", icon="M3 4h14v9H9l-4 3v-3H3zM6.5 8.5h7"),
    ConsolePage(path="/access", title="Access", script="access.js", icon="M7 12a3 3 0 1 1 2-5l8 0v3h-2v2h-3v-2H9.5"),
)
GRANTS: Final = ConsolePage(path="/grants", title="Standing grants", script="grants.js", under="/approvals")
NAMES: Final = ConsolePage(path="/names", title="Names", script="names.js", under="/tools")
CLASSIFICATION: Final = ConsolePage(
    path="/classification", title="Classification", script="classification.js", under="/tools"
)

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "publickey-credentials-get=(self), publickey-credentials-create=(self)",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Interlock</title>
<link rel="icon" href="{prefix}icon.svg"><link rel="stylesheet" href="{prefix}console.css">{script}</head>
<body{lone}><a class="skip" href="#content">Skip to the content</a>
<header class="top"><a class="brand" href="/">{logo}<span>Interlock</span></a>{about}</header>
{nav}<div id="content" tabindex="-1">{body}</div></body></html>
"""
_LOGO: Final = (
    '<svg viewBox="0 0 24 24" aria-hidden="true" class="logo"><circle cx="9" cy="12" r="6"/>'
    '<path d="M15 6a6 6 0 1 1-4.6 9.8M10.4 8.2A6 6 0 0 1 15 6"/></svg>'
)
_ABOUT: Final = '<p class="about"><span id="node"></span><span id="live" role="status"></span></p>'
_NEEDS_SCRIPT: Final = (
    "<noscript><p>This page needs JavaScript. <code>interlock status</code> and <code>interlock --help</code>"
    " do the same in a terminal.</p></noscript>"
)


def text(value: object) -> str:
    """Return a value as HTML text: escaped, with invisible characters made visible."""
    return escape(plain(str(value)))


def page(
    title: str, body: str, *, script: str | None = None, status: int = 200, current: str | None = None
) -> Response:
    """Return an HTML page as a response. `script` names a file of the console, and `current` is the navigation entry to
    highlight. With `current` None, the page has no navigation, because it is for people who may see no other page.
    """
    links = ""
    for entry in PAGES:
        here = ' aria-current="page"' if entry.path == current else ""
        count = '<span class="count" id="waiting" hidden></span>' if entry.path == "/approvals" else ""
        icon = f'<svg viewBox="0 0 20 20" aria-hidden="true"><path d="{entry.icon}"/></svg>'
        links += f'<li><a href="{entry.path}"{here}>{icon}<span>{entry.title}</span>{count}</a></li>'
    html = _PAGE.format(
        title=text(title),
        body=body,
        prefix=PREFIX,
        script="" if script is None else f'<script type="module" src="{PREFIX}{script}"></script>',
        logo=_LOGO,
        about="" if current is None else _ABOUT,
        nav="" if current is None else f'<nav aria-label="Console"><ul>{links}</ul></nav>\n',
        lone=' class="lone"' if current is None else "",
    )
    return HTMLResponse(html, status, headers=HEADERS)


def console_page(shown: ConsolePage) -> Response:
    """Return a page of the console as a response, without data: its script loads the content."""
    body = f"<main><h1>{text(shown.title)}</h1>{_NEEDS_SCRIPT}</main>"
    return page(shown.title, body, script=shown.script, current=shown.under or shown.path)

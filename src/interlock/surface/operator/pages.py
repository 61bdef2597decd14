"""The frame of the operator endpoint's pages: nothing from elsewhere, no script or style but those named by their hash.

What a caller or a server wrote can therefore not act on a page, even if it were to stand in it unescaped.
"""

import base64
import hashlib
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Final

from starlette.responses import HTMLResponse, Response

from interlock.protocol.jsontext.display import plain

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>{refresh}
<style>{style}</style></head>
<body>{body}{script}</body></html>
"""


def text(value: object) -> str:
    """As it is read: escaped, and everything in it visible."""
    return escape(plain(str(value)))


def page(title: str, body: str, *, script: str | None = None, status: int = 200, refresh: bool = False) -> Response:
    """`body` is HTML. `script` names a file of this package."""
    style = _file("page.css")
    code = "" if script is None else f"<script>{_file(script)}</script>"
    again = '<meta http-equiv="refresh" content="5">' if refresh else ""
    html = _PAGE.format(title=text(title), body=body, style=style, script=code, refresh=again)
    return HTMLResponse(html, status, headers=_headers(script))


@lru_cache
def _headers(script: str | None) -> dict[str, str]:
    may_run = "" if script is None else f" script-src '{_hash(script)}'; connect-src 'self';"
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"default-src 'none'; style-src '{_hash('page.css')}';{may_run}"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Permissions-Policy": "publickey-credentials-get=(self), publickey-credentials-create=(self)",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }


@lru_cache
def _file(name: str) -> str:
    return files("interlock.surface.operator").joinpath(name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(_file(name).encode()).digest()).decode()

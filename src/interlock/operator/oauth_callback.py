"""The page a person sees when they come back from an authorization server. Plain, and safe to show whatever it says."""

from collections.abc import Mapping
from html import escape
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import HTMLResponse, Response

from interlock.credentials.consents import Page

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # the address holds the code
    "X-Content-Type-Options": "nosniff",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem}}</style></head>
<body><h1>{title}</h1><p>{text}</p><p>Interlock</p></body></html>
"""


FOREIGN: Final = Page(400, "Nothing was done", "Another page asked for this, not a person.")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """A browser that was sent here says no Origin; a script of another page says its own (AIP-30.auth-3)."""
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != headers.get("host", "")  # AIP-30.auth-3
    except ValueError:
        return True


def callback_page(shown: Page) -> Response:
    text = _PAGE.format(title=escape(shown.title), text=escape(shown.text))
    return HTMLResponse(text, shown.status, headers=_HEADERS)

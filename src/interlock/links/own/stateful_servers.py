"""Servers that are known to keep a client's state in their process, each with the reason.

A server is known by its package, wherever its command names it, or by the name it gives itself when greeted. Being on
this list costs a process per session, so a server that says one of these names falsely gains nothing.
"""

from typing import Final

import msgspec

from interlock.config.plan import Dial, Spawn


class StatefulServer(msgspec.Struct, frozen=True, kw_only=True):
    packages: tuple[str, ...]
    names: tuple[str, ...] = ()  # as in serverInfo
    asks: bool = False  # it also asks its clients
    reason: str


STATEFUL: Final = (
    StatefulServer(
        packages=("@modelcontextprotocol/server-everything",),
        names=("mcp-servers/everything", "example-servers/everything"),
        asks=True,
        reason="it asks its client for answers, and keeps subscriptions and a log level for one client",
    ),
    StatefulServer(
        packages=("@modelcontextprotocol/server-sequential-thinking",),
        names=("sequential-thinking-server",),
        reason="it counts the thoughts of one conversation",
    ),
    StatefulServer(
        packages=("@playwright/mcp", "@executeautomation/playwright-mcp-server"),
        names=("Playwright",),
        reason="its browser has one current page",
    ),
    StatefulServer(
        packages=("@modelcontextprotocol/server-puppeteer",),
        names=("example-servers/puppeteer",),
        reason="its browser has one current page",
    ),
    StatefulServer(
        packages=("chrome-devtools-mcp",),
        names=("chrome_devtools",),
        reason="its browser has one selected page",
    ),
)


def maybe_stateful(reach: Spawn | Dial | None, name: str) -> StatefulServer | None:
    """`name`: what the server calls itself."""
    words = _words(reach) if isinstance(reach, Spawn) else ()
    for server in STATEFUL:
        if name in server.names or any(_names(word, package) for word in words for package in server.packages):
            return server
    return None


def _words(reach: Spawn) -> tuple[str, ...]:
    return reach.command if reach.package is None else (reach.package.name, *reach.command)


def _names(word: str, package: str) -> bool:
    return word == package or word.startswith(f"{package}@") or f"/node_modules/{package}/" in word

"""Reading a server's lists: every page, within limits, each item kept as the bytes it came in.

A server controls how many pages, items and bytes a list has, so each is limited. An item that cannot be listed is left
out and named with its reason; the rest of the list counts. An item whose bytes have not changed since the last reading
is the same object again, so that reading a long list again costs little. After every SLICE items other tasks get a turn
of the loop.
"""

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.hop_metadata import Unlisted, maybe_unlisted_untrusted
from interlock.links.connected_link import ConnectedLink
from interlock.links.pipes import Trouble, Undelivered
from interlock.links.server_messages import LostRefusal
from interlock.mcp.methods import LISTS, PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST, TOOLS_LIST, Era
from interlock.mcp.tasks import find_seconds
from interlock.wire.jsonrpc.codec import CodecError, decode_array, decode_object, decode_value, find_string, is_deep
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal, find_code

LIST_S: Final = 5.0  # MCP-AX 5.1: one slow server does not hold up the list
PAGES_MAX: Final = 100
ITEMS_MAX: Final = 10_000
AGGREGATED_MAX: Final = 100_000  # items of an aggregator, which lists the tools of all servers below it
SLICE: Final = 1000  # items read before other tasks get a turn
REFUSED_MAX: Final = 1000  # items that are left out with a reason for each
ITEM_BYTES_MAX: Final = 1024 * 1024
LIST_BYTES_MAX: Final = 64 * 1024 * 1024  # of all pages of one list

_KEY: Final = {TOOLS_LIST: "name", PROMPTS_LIST: "name", RESOURCES_LIST: "uri", TEMPLATES_LIST: "uriTemplate"}

Item = dict[str, Raw]


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """Items of one list as (key, item) pairs in the server's order, with the items that were left out and why."""

    items: tuple[tuple[str, Item], ...] = ()
    raws: tuple[bytes, ...] = ()  # the bytes of each, which nothing else shares
    refused: tuple[tuple[str, str], ...] = ()
    digest: bytes = b""
    ttl_s: float | None = None  # the server's own cache hint
    private: bool = True
    unlisted: Unlisted | None = None  # how many tools a child says it does not list here


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The lists of one server."""

    tools: Items = Items()
    prompts: Items = Items()
    resources: Items = Items()
    templates: Items = Items()


class ListFailed(Exception):
    """Error: a list could not be read. The message gives the reason."""

    def __init__(self, message: str, what: Undelivered | None = None) -> None:
        super().__init__(message)
        self.what = what

    @property
    def unauthorised(self) -> bool:
        return self.what is not None and self.what.trouble is Trouble.UNAUTHORISED


FIELD: Final = {TOOLS_LIST: "tools", PROMPTS_LIST: "prompts", RESOURCES_LIST: "resources", TEMPLATES_LIST: "templates"}


async def read_list(link: ConnectedLink, method: str, previous: Items | None = None, page_s: float = LIST_S) -> Items:
    """Read all pages of a list. Raise ListFailed if a page cannot be read.

    A server without the capability has an empty list and is not asked. `previous` is the list as it was last read: an
    item whose bytes have not changed is the same object again.
    """
    needed = "resources" if method == TEMPLATES_LIST else FIELD[method]
    if (facts := link.facts) is None or needed not in facts.capabilities:
        return Items()
    cursor: Raw | None = None
    reading = _ListReader(_KEY[method], previous)
    items, refused = reading.found, reading.refused
    items_max = AGGREGATED_MAX if link.offer.is_aggregator else ITEMS_MAX
    ttl_s: float | None = None
    private = facts.era is Era.LEGACY
    size = 0
    unlisted: Unlisted | None = None
    for _ in range(PAGES_MAX):
        if (answer := await _read_page(link, method, cursor, page_s)) is None:
            return Items()
        page, page_size = answer
        size += page_size
        if size > LIST_BYTES_MAX and size != page_size:  # one page alone is held to limits.message_bytes
            refused.append(("*", f"what comes after the first {LIST_BYTES_MAX} bytes of its {method}"))
            break
        if (raw_items := decode_array(page.get(LISTS[method], Raw(b"null")))) is None:
            raise ListFailed(f"its {method} has no list {LISTS[method]}")
        for done, raw in enumerate(map(bytes, raw_items), 1):
            reading.take(raw)
            if done % SLICE == 0:
                await asyncio.sleep(0)
        if method == TOOLS_LIST and cursor is None:
            unlisted = maybe_unlisted_untrusted(page)
        if facts.era is Era.MODERN:
            hint_s = find_seconds(page.get("ttlMs"))
            ttl_s = min((seconds for seconds in (ttl_s, hint_s) if seconds is not None), default=None)
            private = private or find_string(page.get("cacheScope")) != "public"
        if (cursor := page.get("nextCursor")) is None or bytes(cursor) in (b"null", b'""'):
            break
        if len(items) >= items_max:
            refused.append(("*", f"more than {items_max} items"))
            break
    else:
        refused.append(("*", f"more than {PAGES_MAX} pages"))
    if len(items) > items_max:
        refused.append(("*", f"{len(items) - items_max} items beyond the first {items_max}"))
        del items[items_max:], reading.raws[items_max:]
    if len(refused) > REFUSED_MAX:
        about_all = [item for item in refused if item[0] == "*"]
        refused[REFUSED_MAX:] = [("*", "more items that cannot be listed"), *about_all]
    return msgspec.structs.replace(reading.finish(), ttl_s=ttl_s, private=private, unlisted=unlisted)


def read_definitions(method: str, definitions: Iterable[bytes], previous: Items | None = None) -> Items:
    """Return definitions that are already available as a list, in the form in which `read_list` returns it."""
    reading = _ListReader(_KEY[method], previous)
    for raw in definitions:
        reading.take(raw)
    return reading.finish()


async def _read_page(
    link: ConnectedLink, method: str, cursor: Raw | None, page_s: float
) -> tuple[dict[str, Raw], int] | None:
    """Return one page and its size in bytes, or None if the server does not have this list."""
    if (reply := await link.request(method, {} if cursor is None else {"cursor": cursor}, page_s)) is None:
        raise ListFailed(f"{method} was not answered within {page_s:g} s")
    if isinstance(reply, LostRefusal):
        raise ListFailed(f"{method}: {reply.detail}", reply.what)
    if isinstance(reply, Refusal):
        raise ListFailed(f"{method}: {reply.message}")
    if reply.error:
        try:
            error = decode_value(reply.error)
            if find_code(error.get("code")) == METHOD_NOT_FOUND:
                return None  # it declared the capability but has no such list (templates, mostly)
            raise ListFailed(f"{method} was refused: {str(error.get('message'))[:200]}")
        except (CodecError, AttributeError):
            raise ListFailed(f"{method} was refused") from None
    if (page := decode_object(reply.result)) is None:
        raise ListFailed(f"its {method} is not an object")
    return page, len(bytes(reply.result))


class _ListReader:
    """Reader of one list of a server. It collects the valid items over all pages, and the reasons why others are
    refused.
    """

    def __init__(self, key: str, previous: Items | None) -> None:
        self._key = key
        self._known = previous or Items()
        self._places = {raw: place for place, raw in enumerate(self._known.raws)}
        self.found: list[tuple[str, Item]] = []
        self.raws: list[bytes] = []
        self.refused: list[tuple[str, str]] = []
        self._digest = hashlib.sha256()

    def finish(self) -> Items:
        """Return the collected items."""
        items, raws, refused = tuple(self.found), tuple(self.raws), tuple(self.refused)
        return Items(items=items, raws=raws, refused=refused, digest=self._digest.digest())

    def take(self, raw: bytes) -> None:
        self._digest.update(raw + b"\n")
        if (place := self._places.get(raw)) is not None:
            self.found.append(self._known.items[place])
            self.raws.append(self._known.raws[place])
            return
        item = decode_object(raw)
        name = find_string(item.get(self._key)) if item is not None else None
        if item is None or name is None:
            if len(self.refused) <= REFUSED_MAX:
                self.refused.append(("?", f"an item without a {self._key}"))
        elif len(raw) > ITEM_BYTES_MAX:
            self.refused.append((name[:128], f"its definition is larger than {ITEM_BYTES_MAX} bytes"))
        elif is_deep(raw):
            self.refused.append((name[:128], "its definition is nested too deeply"))
        else:
            self.found.append((name, item))
            self.raws.append(raw)

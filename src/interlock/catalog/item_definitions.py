"""The definitions of prompts, resource templates, resources and instructions of one link, as clients see them.

What becomes of a definition that changed is decided here for every kind of item, tools included: by the setting
`definitions` of the server, or by the rules for subservers (MCP-AX 13.1). `ItemDefinitions` applies it to the items
that are no tools; `link_items` applies it to tools, whose calls are checked besides.

A prompt or template that may not be shown is withheld. A resource is listed without the text that describes it, because
its URI alone says what it is. Instructions that may not be shown are left out.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.ax.protocol.hop_metadata import Offer
from interlock.ax.protocol.names import WithheldName
from interlock.catalog.routes import (
    ADDED_NOTE,
    CHANGED,
    DEFINITION_KINDS,
    SHOWN_NOTE,
    DefinitionSnapshot,
    DefinitionState,
    Rulings,
    ShownText,
    definition_table,
    kept_note,
)
from interlock.config.plan_servers import DefinitionPolicy
from interlock.links.link import Link
from interlock.mcp.items import Item
from interlock.wire.jsonrpc.codec import encode_value, find_string

ADDED_REASON: Final = "its server was accepted without it; accept it: interlock approvals"
DENIED_REASON: Final = "an operator denied its definition as it now is"
UNPROVED_REASON: Final = (
    "its definition changed, and the authority of this registrant is not proved; accept the change: interlock approvals"
)
NOT_KEPT_REASON: Final = (
    "its definition changed, and the accepted one cannot be listed in its place (denied, too long to keep, "
    "unreadable, or of another name at the server); accept the change: interlock approvals"
)

# Of a URI in the name under which people decide about a resource; the rest is a hash.
NAME_CHARS_MAX: Final = 200
NAME_DIGITS: Final = 16

Policy = DefinitionPolicy | Literal["withhold"]


def policy_of(link: Link, offer: Offer, name: str, kind: str) -> Policy:
    """Return the policy for an item of this link after its definition changes: accept, notify, follow or withhold.
    `name` is the server's own name of the item.

    Definitions of subservers are not kept (MCP-AX 13.1), so that one which is not accepted can only be shown or
    withheld.
    """
    if offer.kind != "adopted":
        return "notify" if offer.proved else "withhold"
    return link.definition_policy(name, kind)


def is_asked_about_added(link: Link, offer: Offer, policy: Policy) -> bool:
    """Return whether a person must accept an item that its server has added since the server's items were first
    accepted.

    A subserver may register further tools at any time (MCP-AX 5.1, 13.1). Its scope and authority limit them.
    """
    return offer.kind == "adopted" and link.is_asked_about_added and policy != "follow"


def is_hash(raw: Raw) -> bool:
    """Return whether a member of a stored definition contains only a hash, because the original value could not be
    decoded.
    """
    return bytes(raw).startswith(b'{"sha256":')


def item_name(kind: str, name: str) -> str:
    """Return the name under which people decide about an item, without the segments before it: `prompts/greet`.

    A name that is long, or that a terminal might not show as it is, is shortened and made unique with a hash.
    """
    if len(name) > NAME_CHARS_MAX or not (name.isascii() and name.isprintable()):
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:NAME_DIGITS]
        plain = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in name)
        name = f"{plain[:NAME_CHARS_MAX]}~{digest}"
    return f"{DEFINITION_KINDS[kind]}/{name}"


class ShownItem(msgspec.Struct, frozen=True):
    """An item in the form that clients see. If its definition is not accepted, it has a remark for operators."""

    item: Item
    change: str | None = None


class ItemDefinitions:
    """The decisions about the listed items of a link that are no tools, such as prompts. They determine what clients
    see of each item.

    `path` is the dotted path of the link. What must be remembered or asked about is collected in `seen`.
    """

    def __init__(self, link: Link, offer: Offer, rulings: Rulings, path: str) -> None:
        self.seen: list[tuple[DefinitionSnapshot, DefinitionState]] = []
        self.withheld: list[WithheldName] = []
        self.unaccepted: dict[str, str] = {}  # the kinds of what no person accepted, by the names for people
        self._link, self._offer, self._rulings, self._path = link, offer, rulings, path
        self._waits: dict[str, frozenset[str]] = {}
        self._accepted: dict[str, Callable[[str], Item | None]] = {}  # by table, read once an item has changed

    async def take_instructions(self, text: str | None) -> ShownText:
        """Return the server's instructions as clients see them: the present or the accepted text, or none."""
        shown = await self.take("instructions", "instructions", {"text": Raw(encode_value(text))}) if text else None
        return ShownText() if shown is None else ShownText(text=find_string(shown.item["text"]), change=shown.change)

    async def take(self, kind: str, name: str, item: Item, inner: tuple[str, ...] = ()) -> ShownItem | None:
        """Decide what clients see of a listed item: its present or its accepted definition. Return None if the item is
        withheld.

        `name` is its name or URI at the server, and `inner` are the segments below the link.
        """
        subject = ".".join((self._path, *inner, item_name(kind, name)))
        table = definition_table(self._link.segment, kind)
        policy = policy_of(self._link, self._offer, name, kind)
        snapshot = DefinitionSnapshot(subject, name, item, None, {}, kind=kind)
        state = self._rulings.look(table, snapshot)
        is_followed = state is DefinitionState.CHANGED and policy == "follow"
        is_asked = kind != "resource" and is_asked_about_added(self._link, self._offer, policy)
        if is_followed:
            state = DefinitionState.ACCEPTED
        elif state is DefinitionState.ADDED and not is_asked:
            state = DefinitionState.NEW
        if table not in self._waits:
            self._waits[table] = self._rulings.waits(table)
        if state is not DefinitionState.SAME or subject in self._waits[table]:
            self.seen.append((snapshot, state))
        if state not in (DefinitionState.CHANGED, DefinitionState.DENIED, DefinitionState.ADDED):
            return ShownItem(item)
        self.unaccepted[subject] = kind
        if policy == "notify" and state is not DefinitionState.DENIED:
            return ShownItem(item, ADDED_NOTE if state is DefinitionState.ADDED else SHOWN_NOTE)
        # AX-11.N-15: clients see what was accepted
        if policy == "accept" and (accepted := await self._restore(table, snapshot)) is not None:
            return ShownItem(accepted, kept_note(self._rulings.find_restless(table, subject)))
        return self._withhold(snapshot, _reason(state, policy))

    async def _restore(self, table: str, listed: DefinitionSnapshot) -> Item | None:
        """Return an item with its accepted definition. The members that no digest covers are taken from the present
        list. Return None if the accepted definition is not available, belongs to another item, or was denied later.
        """
        if table not in self._accepted:
            self._accepted[table] = await self._rulings.read_accepted(table)
        members = self._accepted[table](listed.tool)
        is_same_name = members is not None and find_string(members.get(listed.kind)) == listed.original
        if members is None or not is_same_name or any(map(is_hash, members.values())):
            return None
        item: dict[str, Any] = {member: raw for member, raw in listed.item.items() if member not in listed.members}
        item |= {member: members[member] for member in listed.members if member in members}
        accepted = DefinitionSnapshot(listed.tool, listed.original, item, None, {}, kind=listed.kind)
        if self._rulings.look(table, accepted) not in (DefinitionState.SAME, DefinitionState.REWORDED):
            return None
        listed.shown_instead = accepted.digest
        return item

    def _withhold(self, snapshot: DefinitionSnapshot, reason: str) -> ShownItem | None:
        if snapshot.kind == "resource":
            described = snapshot.members
            item = {member: raw for member, raw in snapshot.item.items() if member not in described}
            return ShownItem(item, f"it is listed without its title and description: {reason}")
        name = snapshot.tool.removeprefix(f"{self._path}.")
        self.withheld.append(WithheldName(name=name, reason=reason, code=CHANGED, is_tool=False))
        return None


def _reason(state: DefinitionState, policy: Policy) -> str:
    if state is DefinitionState.ADDED:
        return ADDED_REASON
    if state is DefinitionState.DENIED:
        return DENIED_REASON
    return UNPROVED_REASON if policy == "withhold" else NOT_KEPT_REASON

"""What an operator can ask a running node: its state as plain values, and the few commands.

The operator door turns this into HTTP and adds nothing. Nothing here blocks or authenticates.
"""

import os
import statistics
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import msgspec

from interlock import __version__
from interlock.config.effective import effective
from interlock.protocol.ax.capability import as_object
from interlock.protocol.jsonrpc.codec import decode_value
from interlock.protocol.jsonrpc.errors import Fault
from interlock.protocol.mcp.eras import Era
from interlock.protocol.mcp.items import maybe_value
from interlock.protocol.oauth.resource import resource_of
from interlock.runtime.approvals.views import Window
from interlock.runtime.base.clock import rfc3339
from interlock.runtime.base.link_state import USABLE
from interlock.runtime.calls.caller import ViewKey
from interlock.runtime.catalog.catalog import EVERYTHING
from interlock.runtime.catalog.routes import Route, era_of
from interlock.runtime.catalog.subtree import below
from interlock.runtime.catalog.unlisted_tools import CHANGED
from interlock.runtime.credentials.errors import Unobtainable
from interlock.runtime.credentials.service import BadSecretName, named_by
from interlock.runtime.links.keeper import Keeper
from interlock.runtime.links.link import Link
from interlock.runtime.links.registered import RegisteredLink
from interlock.runtime.node.explain_call import rungs
from interlock.runtime.trust.approval_proofs import revoked_line
from interlock.runtime.trust.passkeys import PasskeyDesk
from interlock.store.sqlite.secrets import Kind
from interlock.store.tokens import BadTokenName, Door, Scope

if TYPE_CHECKING:
    from interlock.runtime.drivers.registry.operations import DriverDesk
    from interlock.runtime.node.node import Node

JsonObject = dict[str, Any]


class NotFound(KeyError):
    """There is no `what` of that name; `known` names what there is, so that the answer can name the nearest.

    `few`: they are few enough to be named all.
    """

    def __init__(self, what: str, name: str, known: Iterable[str] = (), *, few: bool = False) -> None:
        super().__init__(name)
        self.what = what
        self.name = name
        self.known = list(known) if few else []
        self.nearest = get_close_matches(name, self.known or list(known), n=3)


class Refused(Exception):
    """The node understood and says no; `error` is the name a program can act on."""

    def __init__(self, error: str, message: str, details: JsonObject | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.details = details or {}


class NodeOperations:
    def __init__(self, node: "Node") -> None:
        self._node = node

    @property
    def approvals(self) -> Window:
        return self._node.window

    @property
    def passkeys(self) -> PasskeyDesk:
        return self._node.passkeys

    async def drivers(self) -> "DriverDesk":
        try:
            return await self._node.drivers.desk()
        except ModuleNotFoundError as missing:
            message = f"driver files need the package {missing.name}: install Interlock anew"
            raise Refused("extra_missing", message) from None

    # The tree

    def status(self) -> JsonObject:
        node = self._node
        namespace = node.catalog.namespace
        return {
            "node": {
                "name": node.plan.node.name,
                "version": __version__,
                "pid": os.getpid(),
                "url": node.url,
                "mcp_url": resource_of(node.url),
                "operator_url": node.operator_url,
                "started_at": rfc3339(node.started_wall),
                "uptime_s": round(node.clock.now() - node.started, 1),
                "data": str(node.plan.data),
                "aggregator_id": node.identity.aggregator_id,
                "tree": node.plan.ax.tree,
                "audit_trouble": node.recorder.trouble,
                "require_proof": node.plan.ax.require_proof,
            },
            "configuration": node.reload.status() if node.reload is not None else None,
            "parents": node.parents.status() if node.parents is not None else [],
            "budgets": node.budgets.shown(),
            **self.links(),
            "catalog": {
                "version": namespace.version,
                "tools": sum(len(namespace.listed(shelf.tools)) for shelf in namespace.shelves),
                "prompts": sum(len(namespace.listed(shelf.prompts)) for shelf in namespace.shelves),
                "resources": sum(len(shelf.resources) for shelf in namespace.shelves),
                "templates": sum(len(shelf.templates) for shelf in namespace.shelves),
            },
            "clients": {
                "sessions": len(node.sessions.by_id),
                "unplaced_logs": node.audience.unplaced_logs,
                "streams": sum(len(s.streams) for s in node.sessions.by_id.values()) + len(node.modern.listeners),
            },
            "calls": {
                "total": node.dispatch.total,
                "failed": node.dispatch.failed,
                "in_flight": len(node.dispatch.in_flight),
                "parked": node.dispatch.parking.waiting,
            },
            "gate": self._gate(),
            "approvals": {"waiting": node.inbox.waiting_count, "channels": dict(node.notifier.trouble)},
        }

    def _gate(self) -> JsonObject:
        """How many tools it holds, and of how many of them nobody could release a call."""
        node = self._node
        namespace = node.catalog.namespace
        held = [route for shelf in namespace.shelves for route in namespace.listed(shelf.tools) if route.is_held]
        return {
            "mode": node.plan.gate.mode,
            "tools": len(held),
            "unclassified": sum(route.is_open for route in held),
            "without_approver": sum(not node.anchors.approving(route.qualified) for route in held),
        }

    def links(self) -> JsonObject:
        waiting = [
            {
                "segment": segment,
                "kind": "child",
                "transport": "stdio",
                "state": child.state,
                "reason": child.reason,
                "since": rfc3339(child.since_wall),
            }
            for segment, child in self._node.children.waiting.items()
            if segment not in self._node.keepers
        ]
        return {"links": [self._link(keeper) for keeper in self._node.keepers.values()] + waiting}

    def link(self, segment: str) -> JsonObject:
        return self._link(self._keeper(segment))

    def link_logs(self, segment: str, lines: int) -> JsonObject:
        kept = self._keeper(segment).stderr.tail(lines)
        return {"segment": segment, "lines": [{"at": rfc3339(line.at), "text": line.text} for line in kept]}

    async def authorize_link(self, segment: str) -> JsonObject:
        """The page on which a person agrees to a token for this server."""
        holder = self._keeper(segment).holder
        if holder is None:
            raise Refused("no_oauth", f"{segment} is reached without OAuth", {"segment": segment})
        try:
            consent = await holder.consent(anew=True)
        except Unobtainable as error:
            raise Refused("auth_failed", str(error), {"segment": segment}) from None
        left_s = consent.expires_at - self._node.clock.now()
        return {
            "segment": segment,
            "url": consent.url,
            "issuer": consent.issuer,
            "scopes": list(consent.scopes),
            "expires_at": rfc3339(self._node.clock.wall() + left_s),
        }

    async def oauth_returned(self, parameters: list[tuple[str, str]]) -> JsonObject:
        """A person's browser came back: what to show them. The state in the parameters is the only credential."""
        page, pending = await self._node.desk.returned(parameters)
        if pending is not None:
            self._node.on_consented(pending)
        return {"status": page.status, "title": page.title, "text": page.text}

    async def restart_link(self, segment: str) -> JsonObject:
        """What dialled in can only be sent away: whether it returns is its own matter."""
        keeper = self._keeper(segment)
        was = keeper.link.standing.state
        await keeper.restart()
        answer: JsonObject = {"segment": segment, "state": keeper.link.standing.state.value}
        if isinstance(keeper.link, RegisteredLink) and keeper.link.transport == "websocket":
            answer["disconnected"] = was in USABLE
        return answer

    async def release_link(self, segment: str) -> JsonObject:
        registrar = self._node.registrar
        if not await registrar.release(segment):
            raise NotFound("owner", segment, [record.segment for record in await registrar.owners.all()], few=True)
        return {"segment": segment, "held": registrar.engine.maybe_standing(segment) is not None}

    # Secrets

    async def secrets(self) -> JsonObject:
        return {"secrets": [{"kind": kind, "name": name} for kind, name in await self._node.desk.secret_names()]}

    async def set_secret(self, name: str, value: str) -> JsonObject:
        """Servers that name it are started or dialled anew with it."""
        try:
            await self._node.desk.set_secret(name, value)
        except BadSecretName as error:
            raise Refused("bad_secret_name", str(error)) from None
        return {"name": name, "restarted": await self._restart_users_of(name)}

    async def keep_secret(self, name: str, value: str) -> JsonObject:
        try:
            state = await self._node.desk.keep_secret(name, value)
        except BadSecretName as error:
            raise Refused("bad_secret_name", str(error)) from None
        restarted = await self._restart_users_of(name) if state == "new" else []
        return {"name": name, "state": state, "restarted": restarted}

    async def remove_secret(self, kind: Kind, name: str) -> JsonObject:
        if not await self._node.desk.remove_secret(kind, name):
            known = [known for _, known in await self._node.desk.secret_names()]
            raise NotFound("secret", name, known)
        if kind == "token":
            await self._node.forget_token(name)
        return {"removed": {"kind": kind, "name": name}}

    async def _restart_users_of(self, slug: str) -> list[str]:
        configured = [keeper for keeper in self._node.keepers.values() if keeper.is_offered]
        users = [keeper for keeper in configured if slug in named_by(keeper.link.plan)]
        for keeper in users:
            await keeper.restart()
        return [*(keeper.link.segment for keeper in users), *self._node.drivers.on_secret(slug)]

    def _keeper(self, segment: str) -> Keeper:
        keepers = self._node.keepers
        keeper = keepers.get(segment)
        if keeper is None:
            majors = [known for known in keepers if known.partition("@")[0] == segment and "+" not in known]
            keeper = keepers[majors[0]] if len(majors) == 1 else None  # a driver by its id alone
        if keeper is None:
            raise NotFound("link", segment, self._node.keepers, few=True)
        return keeper

    def _link(self, keeper: Keeper) -> JsonObject:
        link = keeper.link
        links = [link, *(link.personal.links if link.personal is not None else ())]
        facts = link.facts
        namespace = self._node.catalog.namespace
        shelf = next((s for s in namespace.shelves if s.link is link), None)
        withheld = namespace.withheld(link)
        return {
            "segment": link.segment,
            "kind": link.kind,
            "transport": link.transport,
            "era": facts.era.value if facts else None,
            "protocol_version": facts.version if facts else None,
            "state": link.standing.state.value,
            "reason": link.standing.reason,
            "since": rfc3339(link.standing.since_wall),
            "server": {"name": facts.name, "version": facts.server_version} if facts else None,
            "tools": len(namespace.listed(shelf.tools)) if shelf else 0,
            "contracts": keeper.contracts,
            "prompts": len(namespace.listed(shelf.prompts)) if shelf else 0,
            "resources": len(shelf.resources) if shelf else 0,
            "withheld": [{"name": one.name, "reason": one.reason} for one in withheld],
            "in_flight": sum(one.booked for one in links),  # of clients: what the node itself asks does not count
            "parked": sum(len(one.aside) for one in links),
            "calls": sum(one.calls for one in links),
            "errors": sum(one.errors for one in links),
            "restarts": link.restarts,
            "stray": link.stray,  # answers nobody waited for
            "stdout_noise": link.noise,  # what it sent that is no message
            "unsent": link.unsent,  # answers, cancellations and notices of ours that did not arrive
            "pid": link.pid,
            "sandbox": link.sandboxed,
            "stderr_lines": keeper.stderr.count,
            "hops": max((route.hops for route in shelf.tools), default=1) if shelf else 1,
            "below": below(namespace.listed(shelf.tools)) if shelf else [],
            "budget": self._node.budgets.shown_of(link),
            **self._registration(link),
            "latency_ms": round(statistics.median(link.latencies) * 1000, 3) if link.latencies else None,
            "token": _held(keeper),
            "consent": keeper.holder is not None and keeper.holder.waits_for_consent,
            "users": len(link.personal.links) if link.personal is not None else None,
        }

    def _registration(self, link: Link) -> JsonObject:
        """What MCP-AX adds for a link that registered."""
        if not isinstance(link, RegisteredLink):
            return {}
        session, node = link.registration, self._node
        register = session.register
        standing = node.registrar.engine.maybe_standing(link.segment)
        rule = node.registrar.maybe_rule(session.session_id)
        return {
            "registration": {
                "subserver_id": register.subserver_id,
                "principal": session.peer.principal,
                "authority": f"dns:{register.authority}" if register.authority is not None else None,
                "verified": session.peer.proved,
                "auth_scope": session.auth_scope.value,
                "transport_class": register.transport_class.value,
                "version": register.version,
                "heartbeat_interval_ms": register.heartbeat_interval_ms,
                "registered_at": rfc3339(link.registered_wall),
                "session": masked(session.session_id),
                "liveness": standing.state.value if standing is not None else None,
                "aggregators": len(standing.subtree_ids or ()) if standing is not None else 0,
                "secure_by": rule.secure_by if rule is not None else None,
                "unwanted_notifications": link.unwanted,
                "dropped_notifications": node.registrar.drops.by_segment.get(link.segment, 0),
            }
        }

    # Tools

    def tools(self) -> JsonObject:
        listed = [self._tool(route) for shelf in self._node.catalog.namespace.shelves for route in shelf.tools]
        for shelf in self._node.catalog.namespace.shelves:
            listed.extend(
                {
                    "name": f"{shelf.link.segment}.?",
                    "alias": None,
                    "segment": shelf.link.segment,
                    "original": one.name,
                    "title": None,
                    "description": None,
                    "state": shelf.link.standing.state.value,
                    "capability": {},
                    "hops": 1,
                    "withheld": one.reason,
                }
                for one in shelf.withheld
            )
        return {"tools": listed}

    def tool(self, name: str, caller: str = "local") -> JsonObject:
        """`caller`: the principal whose call the rungs are told for."""
        namespace = self._node.catalog.namespace
        view = namespace.view(EVERYTHING)
        route = view.find_tool(name)
        if route is None:
            if (why := self._maybe_withheld(name)) is not None:
                raise Refused("withheld", f"{name} is withheld: {why}", {"tool": name})
            known = [r.qualified for r in view.tool_routes] + [r.alias for r in view.tool_routes]
            raise NotFound("tool", name, known)
        shown = namespace.view(ViewKey())
        return {
            **self._tool(route),
            "definition": decode_value(shown.tool_definition(route, Era.MODERN)),
            "route": [*route.segments, route.local],
            "era": era_of(route.link).value,
            "owner": self._owner(route.link),
            "caller": caller,
            "rungs": self._rungs(route, caller),
        }

    async def classify_tool(self, name: str) -> JsonObject:
        """Ask what a tool is, without waiting for somebody to call it: the approval that then waits."""
        node = self._node
        route = node.catalog.namespace.view(EVERYTHING).find_tool(name)
        if route is not None and not route.is_open:
            raise Refused("classified", f"it is known what {name} does; [[tool]] says otherwise", {"tool": name})
        segment = route.link.segment if route is not None else self._segment_of_withheld(name)
        raised = await node.definitions.ask_again(segment, route.qualified if route is not None else name)
        if raised is None:
            raise NotFound("tool", name)
        if isinstance(raised, Fault):
            raise Refused(raised.message, (raised.data or {}).get("detail", raised.message), raised.data)
        return node.window.maybe_one(raised.id) or {}

    def _maybe_withheld(self, name: str) -> str | None:
        for shelf in self._node.catalog.namespace.shelves:
            for one in shelf.withheld:
                if name.endswith(f".{one.name}") and f".{shelf.link.segment}." in f".{name}":
                    return one.reason
        return None

    def _segment_of_withheld(self, name: str) -> str:
        """Of a tool that is withheld because of its definition; its name is written out, as it would be listed."""
        for shelf in self._node.catalog.namespace.shelves:
            names = {one.name for one in shelf.withheld if one.code == CHANGED}
            if any(name.endswith(f".{one}") for one in names) and f".{shelf.link.segment}." in f".{name}":
                return shelf.link.segment
        known = [route.qualified for route in self._node.catalog.namespace.view(EVERYTHING).tool_routes]
        raise NotFound("tool", name, known)

    def skills(self) -> JsonObject:
        known = self._node.contracts.skills() if self._node.has_contracts else {}
        return {"skills": [{"name": name, "blocks": blocks} for name, blocks in known.items()]}

    def routes(self) -> JsonObject:
        """MCP-AX 7.1."""
        return {
            route.qualified: {
                "downstream_session": _session_of(route.link),
                "downstream_name": route.original,
                "capability": as_object(route.capability) if route.capability else {},
                "registered_at": rfc3339(_registered_at(route.link)),
            }
            for shelf in self._node.catalog.namespace.shelves
            for route in self._node.catalog.namespace.listed(shelf.tools)
        }

    def _tool(self, route: Route) -> JsonObject:
        clash = self._node.catalog.namespace.clashing.get(route.qualified)
        return {
            "name": route.qualified,
            "alias": route.alias,
            "segment": route.link.segment,
            "original": route.original,
            "title": _text(maybe_value(route.item, "title")),
            "description": _text(maybe_value(route.item, "description")),
            "state": route.link.standing.state.value,
            "capability": as_object(route.capability) if route.capability else {},
            "unclassified": route.is_open,
            "hops": route.hops,
            "withheld": clash.reason if clash is not None else None,
        }

    def _owner(self, link: Link) -> JsonObject:
        """Who answers for a tool: the operator for what is configured, else the registrant."""
        if not isinstance(link, RegisteredLink):
            return {"kind": "configuration", "verified": True}
        session = link.registration
        authority = session.register.authority
        return {
            "kind": link.kind,
            "principal": session.peer.principal,
            "subserver_id": session.register.subserver_id,
            "authority": f"dns:{authority}" if authority is not None else None,
            "verified": session.peer.proved,
        }

    def _rungs(self, route: Route, caller: str) -> list[JsonObject]:
        node = self._node
        return rungs(
            route,
            node.tokens.as_it_would_be(caller),
            plan=node.plan,
            namespace=node.catalog.namespace,
            inbox=node.inbox,
            approvers=node.anchors,
            budgets=node.budgets,
        )

    # The record, the configuration, access

    async def audit(self, after: int, limit: int) -> JsonObject:
        await self._node.recorder.flush()
        records = await self._node.audit.read(after, limit)
        return {
            "records": [
                {"seq": record.sequence, "hash": record.hash.hex(), **msgspec.json.decode(record.data)}
                for record in records
            ],
            "last": await self._node.audit.last(),
        }

    def config(self) -> JsonObject:
        return effective(self._node.plan)

    async def tokens(self) -> JsonObject:
        book = self._node.tokens
        return {"tokens": [book.shown(record) for record in await book.list() if record.revoked_at is None]}

    async def issue_token(self, name: str, door: Door, scope: Scope | None, days: int | None) -> JsonObject:
        try:
            token, record = await self._node.tokens.issue(name, door, scope, days)
        except BadTokenName as error:
            raise Refused("bad_token_name", str(error)) from None
        return {
            "token": token,
            "id": record.id,
            "name": record.name,
            "for": record.door,
            "expires_at": rfc3339(record.expires_at) if record.expires_at else None,
        }

    async def revoke_key(self, ref: str, by: str) -> JsonObject:
        """The key of a person, by its anchor's name or its thumbprint; what it approved and nobody used is void."""
        node = self._node
        prints = await node.judge.revoke(ref)
        if not prints:
            raise NotFound("anchor", ref, [anchor.name for anchor in node.anchors.known()], few=True)
        await node.recorder.append_now(revoked_line(prints, ref, by, node.clock.wall()))
        return {"revoked": list(prints), "voided": [approval.id for approval in await node.void_unfounded()]}

    async def revoke_token(self, ref: str) -> JsonObject:
        revoked = await self._node.tokens.revoke(ref)
        if not revoked:
            live = [record for record in await self._node.tokens.list() if record.revoked_at is None]
            raise NotFound("token", ref, [record.name for record in live])
        self._node.door.dismiss_unwelcome()
        return {"revoked": list(revoked)}


def masked(session_id: str) -> str:
    """Enough to tell two apart, too little to speak for one."""
    return f"{session_id[:4]}***"


def _session_of(link: Link) -> str:
    return masked(link.registration.session_id) if isinstance(link, RegisteredLink) else f"{link.segment}:***"


def _registered_at(link: Link) -> float:
    return link.registered_wall if isinstance(link, RegisteredLink) else link.standing.since_wall


def _held(keeper: Keeper) -> JsonObject | None:
    """What may be seen of the token towards a server."""
    holder = keeper.holder
    if holder is None or not holder.line:
        return None
    return {"expires_at": rfc3339(holder.expires_at) if holder.expires_at is not None else None}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

"""Operations on links: what an operator sees of each, restarting it, and releasing its segment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from msgspec import UNSET, UnsetType

from interlock.ax.children import ChildSupervisor
from interlock.ax.registrar import Registrar
from interlock.catalog.catalog import Catalog
from interlock.catalog.item_definitions import item_name
from interlock.catalog.routes import LinkItems, Route, below
from interlock.config.plan import Spawn
from interlock.core.clock import rfc3339
from interlock.core.link_state import USABLE, LinkState
from interlock.core.views import view_of
from interlock.drivers.protocol.server_name import server_name
from interlock.guard.budgets import Budgets
from interlock.links import api
from interlock.links.connected_link import ConnectedLink
from interlock.links.keeper import Keeper
from interlock.links.link import Link
from interlock.links.own_links import OwnKeeper
from interlock.links.registered import RegisteredLink
from interlock.operator.operation import handles
from interlock.wire.refusal import NotFound

Keepers = Mapping[str, Keeper]
_GONE: Final = (LinkState.DEGRADED, LinkState.FAILED)
_NOTED_MAX: Final = 100  # tools of one link whose names are commented on
_LOOKED_AT: Final = 20  # lines of stderr, the last of which may be empty


@dataclass(eq=False)
class LinkOperations:
    """Operations on links for the operator API: show, restart and release."""

    keepers: Keepers
    catalog: Catalog
    registrar: Registrar
    children: ChildSupervisor
    budgets: Budgets

    @handles(api.LIST_LINKS)
    def list_all(self) -> api.Links:
        waiting = [
            api.WaitingChild(
                segment=segment,
                kind="child",
                transport="stdio",
                state=child.state,
                reason=child.reason,
                since=rfc3339(child.since_wall),
            )
            for segment, child in self.children.waiting.items()
            if segment not in self.keepers
        ]
        shown = [keeper for keeper in self.keepers.values() if keeper.link.shared is None]
        names = shown_names(self.keepers)
        return api.Links(links=(*(self._link(keeper, names) for keeper in shown), *waiting))

    @handles(api.GET_LINK)
    def get(self, segment: str) -> api.Link:
        return self._link(find_keeper(self.keepers, segment), shown_names(self.keepers))

    @handles(api.GET_LINK_LOG)
    def logs(self, segment: str, lines: int) -> api.LinkLog:
        keeper = find_keeper(self.keepers, segment)
        lines_kept = tuple(api.LogLine(at=rfc3339(line.at), text=line.text) for line in keeper.stderr.tail(lines))
        return api.LinkLog(segment=self._shown_name(keeper), lines=lines_kept)

    @handles(api.GET_FRAMES)
    def frames(self, segment: str, after: int) -> api.Frames:
        link = find_keeper(self.keepers, segment).link
        from interlock.devices.device_link import find_frames  # devices are rare

        if (frames := find_frames(link, after)) is None:
            devices = [name for name, keeper in self.keepers.items() if keeper.link.kind == "device"]
            raise NotFound("device", segment, devices)
        return frames

    @handles(api.RESTART_LINK)
    async def restart(self, segment: str) -> api.RestartedLink:
        """End a link's connection or process and start it again.

        A subserver that connected to the node is disconnected; it may connect again.
        """
        keeper = find_keeper(self.keepers, segment)
        was = keeper.link.standing.state
        await keeper.restart()
        has_dialled_in = isinstance(keeper.link, RegisteredLink) and keeper.link.transport == "websocket"
        return api.RestartedLink(
            segment=self._shown_name(keeper),
            state=keeper.link.standing.state.value,
            reason=keeper.link.standing.reason,
            disconnected=was in USABLE if has_dialled_in else UNSET,
        )

    @handles(api.RELEASE_LINK)
    async def release(self, segment: str) -> api.ReleasedSegment:
        registrar = self.registrar
        if not await registrar.release(segment):
            raise NotFound("owner", segment, [record.segment for record in await registrar.owners.all()], few=True)
        return api.ReleasedSegment(segment=segment, held=registrar.engine.find(segment) is not None)

    def _shown_name(self, keeper: Keeper) -> str:
        return shown_names(self.keepers)[keeper.link.segment]

    def _link(self, keeper: Keeper, names: Mapping[str, str]) -> api.Link:
        link = keeper.link
        own_keepers = (other for other in self.keepers.values() if isinstance(other, OwnKeeper))
        own = [own_keeper for own_keeper in own_keepers if own_keeper.link.shared is link]
        links = [link, *(own_keeper.link for own_keeper in own)]
        spoken = None if link.kind == "device" else link.facts  # a device speaks no MCP
        namespace = self.catalog.namespace
        items = next((s for s in namespace.link_items if s.link is link), None)
        withheld = namespace.withheld(link)
        connected = link if isinstance(link, ConnectedLink) else None
        reach = connected.reach if connected else None
        token: api.HeldToken | None = None  # whose secret is not shown
        if (holder := keeper.holder) is not None and holder.line:
            token = api.HeldToken(expires_at=None if holder.expires_at is None else rfc3339(holder.expires_at))
        denied_hosts = {place: host for member in links for place, host in member.denied.items()}.items()
        last_lines = (line.text.strip() for line in reversed(keeper.stderr.tail(_LOOKED_AT)))
        own_settings = (setting for setting in (link.own, link.own_of_legacy) if setting is not None)
        is_whole = link.own is None or link.own.is_whole
        # The module `statistics` is not used for the median, because importing it needs half a megabyte of memory.
        times, middle = sorted(link.latencies), len(link.latencies) // 2
        median_s = (times[middle] + times[-middle - 1]) / 2 if times else None
        state, reason = link.standing.state, link.standing.reason
        if keeper.unlisted is not None and state in (*USABLE, LinkState.ASLEEP):
            state, reason = LinkState.DEGRADED, keeper.unlisted
        return api.Link(
            segment=names[link.segment],
            driver=link.segment if "@" in link.segment else None,
            kind=link.kind,
            transport=link.transport,
            era=spoken.era.value if spoken else None,
            protocol_version=spoken.version if spoken else None,
            state=state.value,
            reason=reason,
            since=rfc3339(link.standing.since_wall),
            server=api.Server(name=spoken.name, version=spoken.server_version) if spoken else None,
            tools=len(namespace.without_collisions(items.tools)) if items else 0,
            contracts=keeper.contracts,
            prompts=len(namespace.without_collisions(items.prompts)) if items else 0,
            resources=len(items.resources) if items else 0,
            withheld=tuple(api.Withheld(name=tool.name, reason=tool.reason) for tool in withheld),
            changed=tuple(islice(_find_changed(items), _NOTED_MAX)) if items else (),
            not_listed_because=_count_unlisted(keeper),
            noted=tuple(_find_notes(items.tools)) if items else (),
            in_flight=sum(member.booked for member in links),  # of clients: what the node itself asks does not count
            parked=sum(len(member.waiting.suspended) for member in links if isinstance(member, ConnectedLink)),
            calls=sum(member.calls for member in links),
            errors=sum(member.errors for member in links),
            restarts=link.restarts,
            stray=link.stray,  # answers no call waited for
            stdout_noise=connected.noise.total if connected else 0,  # what it sent that is no message
            # Answers, cancellations and notices of ours that did not arrive.
            unsent=connected.failed.undelivered if connected else 0,
            pid=link.pid,
            sandbox=reach.sandbox is not None if isinstance(reach, Spawn) else None,
            denied=tuple(api.DeniedHost(place=place, why=host.why, remedy=host.remedy) for place, host in denied_hosts),
            stderr_lines=keeper.stderr.count,
            last_words=next(filter(None, last_lines), None) if link.standing.state in _GONE else None,
            hops=max((route.hops for route in items.tools), default=1) if items else 1,
            below=below(namespace.without_collisions(items.tools)) if items else (),
            budget=self.budgets.shown_of(link),
            registration=self._registration(link),
            latency_ms=round(median_s * 1000, 3) if median_s is not None else None,
            token=token,
            consent=keeper.holder is not None and keeper.holder.waits_for_consent,
            users=None if is_whole else len(own),
            own=tuple(map(_own_link, own)) if is_whole else (),
            device=_find_device(link),
            own_because=next((setting.rule.reason for setting in own_settings), None),
        )

    def _registration(self, link: Link) -> api.Registration | UnsetType:
        """Return the registration of a link under MCP-AX, or UNSET for a link that did not register."""
        if not isinstance(link, RegisteredLink):
            return UNSET
        session = link.registration
        register = session.register
        standing = self.registrar.engine.find(link.segment)
        rule = self.registrar.find_rule(session.session_id)
        return view_of(
            api.Registration,
            register,
            principal=session.peer.principal,
            authority=f"dns:{register.authority}" if register.authority is not None else None,
            verified=session.peer.proved,
            auth_scope=session.auth_scope,
            registered_at=link.registered_wall,
            session=masked_session(session.session_id),
            liveness=standing.state if standing is not None else None,
            aggregators=len(standing.subtree_ids or ()) if standing is not None else 0,
            secure_by=rule.secure_by if rule is not None else None,
            unwanted_notifications=link.unwanted,
            dropped_notifications=self.registrar.drops.by_segment.get(link.segment, 0),
        )


def _own_link(keeper: OwnKeeper) -> api.OwnLink:
    link = keeper.link
    return view_of(
        api.OwnLink,
        link.standing,
        link,
        segment=link.name,
        principal=link.owner or "",
        per="session" if link.client is not None else "capabilities" if link.owner is None else "principal",
        since=link.standing.since_wall,
        in_flight=link.booked,
        idle_s=int(keeper.idle_s),
    )


def _count_unlisted(keeper: Keeper) -> dict[str, int] | None:
    """Return the number of tools that a child aggregator leaves out of its list, by reason.

    Return None if it reports nothing.
    """
    link, unlisted = keeper.link, keeper.listing.tools.unlisted if keeper.listing is not None else None
    if not isinstance(link, RegisteredLink) or unlisted is None:
        return None
    granted, scope = link.registration.auth_scope, unlisted.scope.value
    if unlisted.scope < granted:
        beyond = f"an [[access]] entry of its own node lets us use scope {scope}"
    else:
        who = link.registration.peer.principal
        beyond = f"they need more than scope {scope}, which {who} has; an [[access]] entry may widen it"
    left_out = "an [[access]] entry of its own node leaves them out"
    numbers = {beyond: unlisted.beyond_scope, left_out: unlisted.beyond_access}
    return {reason: number for reason, number in numbers.items() if number}


def _find_changed(items: LinkItems) -> Iterator[api.NotedName]:
    """Yield a remark for each item of a server whose definition changed since it was accepted, tools first."""
    for route in items.tools:
        if route.change is not None:
            yield api.NotedName(name=route.original, note=route.change)
    if items.instructions.change is not None:
        yield api.NotedName(name=item_name("instructions", "instructions"), note=items.instructions.change)
    for prompt in items.prompts:
        if prompt.change is not None:
            yield api.NotedName(name=item_name("prompt", prompt.original), note=prompt.change)
    for kind, places in (("template", items.templates), ("resource", items.resources)):
        for place in places:
            if place.change is not None:
                yield api.NotedName(name=item_name(kind, place.uri), note=place.change)


def _find_notes(routes: Iterable[Route]) -> Iterator[api.NotedName]:
    """Yield a remark for each listed tool about which the registry of names has one."""
    listed = ((route.original, route.surface) for route in routes if not route.is_refused)
    notes = ((name, surface.warning) for name, surface in listed if surface is not None and surface.warning)
    for name, note in islice(notes, _NOTED_MAX):
        yield api.NotedName(name=name, note=note)


def find_keeper(keepers: Keepers, segment: str) -> Keeper:
    """Return the keeper of a link, given its segment, its name or the id of its driver.

    Raise NotFound if there is no such link.
    """
    if (keeper := keepers.get(segment)) is None:
        ways = []
        for name in keepers:
            driver_id, _, version = name.partition("@")
            # A link besides the shared one has a "+" in its segment; the id of its driver means the shared one.
            if segment == server_name(name) or (segment == driver_id and "+" not in version):
                ways.append(name)
        keeper = keepers[ways[0]] if len(ways) == 1 else None
    if keeper is None:
        raise NotFound("link", segment, shown_names(keepers).values(), few=True)
    return keeper


def shown_names(keepers: Keepers) -> dict[str, str]:
    """Return the name to show to people for each segment.

    Links that would have the same name, such as two versions of a driver, are shown by their segments.
    """
    names = {segment: server_name(segment) for segment in keepers}
    taken = Counter(names.values())
    return {segment: name if taken[name] == 1 else segment for segment, name in names.items()}


def masked_session(session_id: str) -> str:
    """Return the beginning of a session id, which tells sessions apart but cannot be used in place of the id."""
    return f"{session_id[:4]}***"


def _find_device(link: Link) -> api.Device | None:
    """Return the counters of the device at a link, or None if the link leads to no device."""
    if link.kind != "device":
        return None
    from interlock.devices.device_link import DeviceLink  # its libraries are an extra

    if not isinstance(link, DeviceLink):
        return None
    session, counters = link.device, link.device.counters
    described = session.description.link
    return view_of(
        api.Device,
        counters,
        profile=session.description.profile,
        port=described.port or described.address or described.host or described.channel,
        discarded=dict(sorted(session.discarded.items())),
        waiting=session.requests.waiting,
        seen=counters.seen_wall,
        missing=session.missing,
    )

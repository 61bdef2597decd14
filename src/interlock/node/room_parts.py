"""What rooms are made of: the rooms themselves, the endpoint of their participants, and their part in the namespace."""

from functools import partial

import msgspec

from interlock.access.tokens import TokenRegistry, is_ours
from interlock.config.plan import Plan
from interlock.core.calls.caller import Principal
from interlock.node.call_parts import CallParts
from interlock.node.front_parts import FrontParts
from interlock.node.link_parts import LinkParts
from interlock.node.store_parts import StoreParts
from interlock.rooms.connections import Leases
from interlock.rooms.endpoint import RoomsEndpoint
from interlock.rooms.node_participant import NodeParticipants
from interlock.rooms.participation import Participation
from interlock.rooms.room_links import RoomLinks
from interlock.rooms.room_tools import RoomResources, RoomTools
from interlock.rooms.rooms import Rooms, define_room_metrics


class RoomParts(msgspec.Struct, frozen=True, kw_only=True):
    rooms: Rooms
    endpoint: RoomsEndpoint
    links: RoomLinks
    node: NodeParticipants
    tools: RoomTools
    resources: RoomResources


def make_room_parts(
    plan: Plan, stores: StoreParts, calls: CallParts, links: LinkParts, fronts: FrontParts
) -> RoomParts:
    rooms = Rooms(plan, stores.store, stores.recorder, stores.clock, calls.proposals, stores.replicas)
    define_room_metrics(stores.metrics, rooms)
    vouching = (fronts.bearers, stores.clock, fronts.certificates)
    endpoint = RoomsEndpoint(plan, stores.tokens, rooms, stores.refusals, *vouching)
    room_links = RoomLinks(
        plan,
        rooms,
        calls.catalog,
        calls.keepers,
        links.connector_parts,
        calls.link_events,
        stores.clock,
        lambda: stores.current.plan.gate.mode != "open",
    )
    leases = Leases()
    participation = Participation(rooms, leases, room_links.is_held)
    common = (rooms, calls.catalog, calls.link_events, stores.clock, participation)
    resources = RoomResources(*common, calls.audience)
    tools = RoomTools(
        plan.ax.root_segment,
        *common,
        leases,
    )
    node = NodeParticipants(rooms, calls.dispatch, calls.proposals, partial(_as_in_a_room, stores.tokens))
    return RoomParts(rooms=rooms, endpoint=endpoint, links=room_links, node=node, tools=tools, resources=resources)


def _as_in_a_room(tokens: TokenRegistry, name: str) -> Principal:
    """What one may do who speaks in a room. An authorization server's word on a scope is not heard there."""
    known = tokens.as_it_would_be(name)
    is_vouched_for = name.startswith("client:") and not is_ours(name)
    return msgspec.structs.replace(known, scope="read") if is_vouched_for else known

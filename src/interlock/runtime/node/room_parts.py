"""What rooms are made of: the rooms themselves, the endpoint of their participants, and their part in the namespace."""

import msgspec

from interlock.config.plan import Plan
from interlock.runtime.fronts.rooms.endpoint import RoomsEndpoint
from interlock.runtime.node.call_parts import CallParts
from interlock.runtime.node.front_parts import FrontParts
from interlock.runtime.node.link_parts import LinkParts
from interlock.runtime.node.store_parts import StoreParts
from interlock.runtime.rooms.room_links import RoomLinks
from interlock.runtime.rooms.rooms import Rooms


class RoomParts(msgspec.Struct, frozen=True, kw_only=True):
    rooms: Rooms
    endpoint: RoomsEndpoint
    links: RoomLinks


def make_room_parts(
    plan: Plan, stores: StoreParts, calls: CallParts, links: LinkParts, fronts: FrontParts
) -> RoomParts:
    rooms = Rooms(plan, stores.store, stores.recorder, stores.clock, calls.proposals)
    endpoint = RoomsEndpoint(plan, stores.tokens, rooms, stores.refusals, fronts.bearers, stores.clock)
    room_links = RoomLinks(
        plan, rooms, calls.catalog, calls.keepers, links.connector_parts, calls.link_events, stores.clock
    )
    return RoomParts(rooms=rooms, endpoint=endpoint, links=room_links)

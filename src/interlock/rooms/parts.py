"""The parts of rooms: the rooms themselves, the endpoint of their participants, and their tools in the namespace.

The rooms open with the other records of the node. The links, tools and resources open later, with the tools of the
node, because each is about a room. When the node stops, `hang_up` closes the connections of participants.
"""

from collections.abc import Mapping

import msgspec

from interlock.access.tokens import TokenRegistry, is_ours
from interlock.config.plan import Plan
from interlock.core.calls.caller import Principal
from interlock.core.part import Part
from interlock.node.capability_parts import App, CapabilityParts, NodeParts, Stage
from interlock.node.reload import ReloadStep, ReloadSteps
from interlock.rooms.endpoint import RoomsEndpoint
from interlock.rooms.node_participant import NodeParticipants
from interlock.rooms.operations import RoomOperations
from interlock.rooms.room_links import RoomLinks
from interlock.rooms.room_tools import RoomTools
from interlock.rooms.rooms import RoomRegistry, define_room_metrics


class RoomParts(CapabilityParts):
    """The parts that rooms add to a node. They are constructed once, opened by stage, and updated when `rooms` or
    `room` changes in the configuration.
    """

    def __init__(self, node: NodeParts) -> None:
        plan, stores, calls, fronts = node.plan, node.stores, node.calls, node.fronts
        self._current = stores.current
        self.rooms = RoomRegistry(
            plan,
            stores.store,
            stores.recorder,
            stores.clock,
            calls.proposals,
            stores.replicas,
            calls.safety.watch.find_room_refusal,
        )
        define_room_metrics(stores.metrics, self.rooms)
        fronts.credentials_changed.subscribe(lambda _: self.rooms.dismiss(stores.tokens.stands))
        self.endpoint = RoomsEndpoint(
            plan, stores.tokens, self.rooms, stores.refusals, fronts.bearers, stores.clock, fronts.certificates
        )
        self.room_links = RoomLinks(
            stores.current, self.rooms, calls.catalog, calls.keepers, node.links.connector_parts, calls.link_events
        )
        catalog, events, is_held = calls.catalog, calls.link_events, self.room_links.is_held
        self.tools = RoomTools(plan.ax.root_segment, self.rooms, catalog, events, stores.clock, is_held, calls.audience)
        self._operations = RoomOperations(self.rooms, calls.approvals, stores.audit, stores.recorder, stores.clock)
        self.node = NodeParticipants(self.rooms, calls.dispatch, lambda name: _principal_in_a_room(stores.tokens, name))

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        return {Stage.RECORDS: (self.rooms,), Stage.TOOLS: (self.room_links, self.node, self.tools)}

    def services(self) -> tuple[object, ...]:
        return (self._operations,)

    def apps(self) -> Mapping[str, App]:
        return {"/v0/": self.endpoint}

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        return {"rooms": self._take_rooms, "room": self._take_rooms}

    async def _take_rooms(self, old: Plan, new: Plan) -> None:
        """Apply a changed configuration to the endpoint and to the rooms."""
        self._current.replace(new)
        self.endpoint.replan(new)
        await self.rooms.replan(new)

    def sweep(self, now: float) -> None:
        self.endpoint.sweep(now)

    async def hang_up(self) -> None:
        self.rooms.hang_up()


def _principal_in_a_room(tokens: TokenRegistry, name: str) -> Principal:
    """Return the principal of a participant, with its rights. In a room, a client of an authorization server has only
    the scope `read`.
    """
    principal = tokens.as_it_would_be(name)
    is_from_issuer = name.startswith("client:") and not is_ours(name)
    return msgspec.structs.replace(principal, scope="read") if is_from_issuer else principal

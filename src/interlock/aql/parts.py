"""The components of MCP-AQL that are opened and closed with the node, and the end of a client's AQL session."""

from collections.abc import Mapping

from interlock.core.part import Part
from interlock.node.capability_parts import CapabilityParts, NodeParts, Stage
from interlock.node.common_parts import EndedSession


class AqlParts(CapabilityParts):
    """The components of MCP-AQL that follow the life cycle of the node."""

    def __init__(self, node: NodeParts) -> None:
        self._aql = node.calls.aql
        self._loop_operations = node.calls.loop_operations
        node.fronts.session_ended.subscribe(self._end_session)

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        return {Stage.RECORDS: (self._loop_operations,)}

    def _end_session(self, ended: EndedSession) -> None:
        self._aql.end_session(ended.caller, ended.reason, is_graceful=ended.is_graceful)  # AQL-2.3.3-5

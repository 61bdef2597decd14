"""The parts of the registry of names: its state, requests, changes by controllers, reviews and publication."""

import msgspec

from interlock.approvals.inbox import Inbox
from interlock.approvals.trust.anchors import Anchors
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.names.actions import ControllerChanges, NamesActions, Sightings
from interlock.names.documents import DocumentFetcher, DocumentWatch
from interlock.names.publisher import Publisher
from interlock.names.requests import RequestDecisions, RequestService
from interlock.names.reviews import Reminders, Reviews
from interlock.names.state import RegistryState
from interlock.store.ports import KeyValue, NamesLog


class NameParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the registry that do not need the catalog of tools. The other parts are created later
    (`parts.py`).
    """

    state: RegistryState
    requests: RequestService
    decisions: RequestDecisions
    reviews: Reviews
    changes: ControllerChanges
    publisher: Publisher
    actions: NamesActions
    sightings: Sightings
    reminders: Reminders


def make_name_parts(
    names_log: NamesLog, kv: KeyValue, inbox: Inbox, anchors: Anchors, recorder: Recorder, clock: Clock
) -> NameParts:
    """Create the parts of the registry. `parts.py` adds those that need the catalog."""
    state = RegistryState(names_log, recorder, clock)
    documents = DocumentFetcher(clock)
    sightings = Sightings(state, kv, clock)
    decisions = RequestDecisions(state, inbox, anchors.approver_names)
    requests = RequestService(state, inbox, documents.fetch, decisions, sightings.under)
    changes = ControllerChanges(state, sightings)
    watch = DocumentWatch(state, documents.fetch, kv, clock)
    reminders = Reminders(state, requests.remind)
    return NameParts(
        state=state,
        requests=requests,
        decisions=decisions,
        reviews=Reviews(state, requests, documents, watch, sightings, reminders),
        changes=changes,
        publisher=Publisher(state, lambda: tuple(sorted(anchors.approver_names("names.*")))),
        actions=NamesActions(state, requests, changes),
        sightings=sightings,
        reminders=reminders,
    )

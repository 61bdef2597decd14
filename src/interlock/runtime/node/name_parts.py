"""What the registry of names is made of: its state, requests, changes by controllers, and publication."""

import msgspec

from interlock.config.plan import Plan
from interlock.runtime.names.changes import ControllerChanges
from interlock.runtime.names.documents import DocumentFetcher
from interlock.runtime.names.publishing import Publisher
from interlock.runtime.names.requests import RequestService
from interlock.runtime.names.reviews import Reviews
from interlock.runtime.names.state import RegistryState
from interlock.runtime.node.approval_parts import ApprovalParts
from interlock.runtime.node.store_parts import StoreParts
from interlock.store.sqlite.names_log import SqliteNamesLog


class NameParts(msgspec.Struct, frozen=True, kw_only=True):
    state: RegistryState
    requests: RequestService
    reviews: Reviews
    changes: ControllerChanges
    publisher: Publisher
    documents: DocumentFetcher


def make_name_parts(plan: Plan, stores: StoreParts, approvals: ApprovalParts) -> NameParts:
    anchors = approvals.anchors
    state = RegistryState(SqliteNamesLog(plan.data), stores.recorder, stores.clock)
    documents = DocumentFetcher(stores.clock)
    requests = RequestService(state, approvals.inbox, documents.fetch, lambda tool: tuple(anchors.approver_names(tool)))
    return NameParts(
        state=state,
        requests=requests,
        reviews=Reviews(state, requests, documents),
        changes=ControllerChanges(state),
        publisher=Publisher(state, lambda: tuple(sorted(anchors.approver_names("names.*")))),
        documents=documents,
    )

"""The feed of approvals: every change, in order, to the listeners of now.

A listener that reads too slowly loses the oldest changes, counted, and delays no other.
"""

from interlock.protocol.approvals.approval import Approval
from interlock.store.pubsub import LocalSubscription

Listener = LocalSubscription[Approval]  # of approvals as they now stand; ends when it or the inbox is closed


class ApprovalFeed:
    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._closed = False

    def listen(self) -> Listener:
        listener = Listener(self._listeners.discard)
        if self._closed:
            listener.close()
        else:
            self._listeners.add(listener)
        return listener

    def tell(self, approval: Approval) -> None:
        for listener in self._listeners:
            listener.deliver(approval)

    def close(self) -> None:
        self._closed = True
        for listener in list(self._listeners):
            listener.close()

"""The feed of approvals: every change, in order, to the listeners of now.

A listener that reads too slowly loses the oldest changes, counted, and delays no other.
"""

from interlock.protocol.approvals.approval import Approval
from interlock.store.pubsub import LocalSubscription

Listener = LocalSubscription[Approval]  # of approvals as they now stand; ends when it or the inbox is closed


class ApprovalFeed:
    def __init__(self) -> None:
        self._listeners: dict[Listener, bool] = {}  # and whether it hears own changes alone
        self._closed = False

    def listen(self, *, only_own: bool = False) -> Listener:
        """`only_own`: of changes that this replica made, so that only one of several acts on each."""
        listener = Listener(self._forget)
        if self._closed:
            listener.close()
        else:
            self._listeners[listener] = only_own
        return listener

    def _forget(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def tell(self, approval: Approval, *, is_own: bool = True) -> None:
        for listener, only_own in self._listeners.items():
            if is_own or not only_own:
                listener.deliver(approval)

    def close(self) -> None:
        self._closed = True
        for listener in list(self._listeners):
            listener.close()

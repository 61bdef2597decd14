"""The sockets of a node: bound before any server is started, so that a port in use is found first."""

import contextlib
import logging
import socket

from interlock.config.plan import Plan
from interlock.runtime.base.addresses import Addresses
from interlock.runtime.node.listen import answers, bind, reachable
from interlock.runtime.node.loopback import Taken, maybe_twin
from interlock.runtime.trust.passkeys import PasskeyService

log = logging.getLogger("interlock.node")


class NodeRunning(Exception):
    """Another node uses this data folder."""


class Sockets:
    def __init__(self, plan: Plan, addresses: Addresses, passkeys: PasskeyService) -> None:
        self.folder = plan.data / "run"  # of the sockets that are files
        self.public: socket.socket
        self.operator: tuple[socket.socket, ...]
        self.admin: socket.socket
        self._plan = plan.node
        self._addresses = addresses
        self._passkeys = passkeys
        self._opened = contextlib.ExitStack()

    async def open(self) -> None:
        """Raises NodeRunning, OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        admin_path = self.folder / "admin.sock"
        if answers(str(admin_path)):
            raise NodeRunning("a node is already running for this data folder")
        admin_path.unlink(missing_ok=True)
        with contextlib.ExitStack() as opened:
            self.public = opened.enter_context(bind(self._plan.listen))
            operator = opened.enter_context(bind(self._plan.operator_listen))
            twin = self._maybe_twin(operator)
            self.operator = (operator,) if twin is None else (operator, opened.enter_context(twin))
            opened.callback(lambda: admin_path.unlink(missing_ok=True))
            self.admin = opened.enter_context(socket.socket(socket.AF_UNIX))
            self.admin.bind(str(admin_path))
            admin_path.chmod(0o600)
            self._opened = opened.pop_all()
        scheme = "https" if self._plan.tls_cert is not None else "http"
        self._addresses.take_bound(
            public=f"{scheme}://{reachable(self.public, self._plan.listen)}",
            operator=f"{scheme}://{reachable(operator, self._plan.operator_listen)}",
        )

    async def close(self) -> None:
        self._opened.close()

    def _maybe_twin(self, operator: socket.socket) -> socket.socket | None:
        """Where else people find the operator endpoint when they ask for localhost."""
        try:
            return maybe_twin(operator)
        except Taken as taken:
            self._passkeys.on_shadowed()
            log.warning("another program is where browsers look for localhost (%s): no passkey counts here", taken)
            return None

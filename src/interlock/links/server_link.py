"""The link of a server that the node itself starts or dials, as the configuration or a driver says."""

import os
from pathlib import Path
from typing import Protocol

from interlock.config.plan import Dial, ServerPlan, Spawn
from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock
from interlock.links.connected_link import ConnectedLink
from interlock.links.link import Link, Own, ServerFacts
from interlock.links.link_events import LinkEvents


class Sharing(Protocol):
    """Decides whether a server's clients get links of their own (`share = "auto"`)."""

    def maybe_own(self, link: "ServerLink", facts: ServerFacts) -> Own | None: ...

    def maybe_own_of_legacy(self, link: "ServerLink", facts: ServerFacts) -> Own | None: ...

    def on_asked(self, link: "ServerLink", method: str, *, in_call: bool) -> Own | None: ...


class ServerLink(ConnectedLink):
    def __init__(
        self,
        plan: ServerPlan,
        events: LinkEvents,
        clock: Clock,
        *,
        vendor_meta: bool,
        own: Own | None = None,
        sharing: Sharing | None = None,
        shared: Link | None = None,
        owner: str | None = None,
        client: Caller | None = None,
    ) -> None:
        """`own` or `sharing`: of a link that all share. `shared`: of one beside it; `owner`, `client`: whose
        it is, where it is one's own."""
        is_dialled = isinstance(plan.reach, Dial)
        super().__init__(
            plan.segment,
            events,
            clock,
            kind="dialled" if is_dialled else "spawned",
            transport="http" if is_dialled else "stdio",
            vendor_meta=vendor_meta,
        )
        self.plan = plan
        self.reach = plan.reach
        self.unset = plan.unset
        self.classes = plan.classes
        self.timeout_s = plan.timeout_s
        self.result_bytes = plan.result_bytes
        self.own = own
        self.shared = shared
        self.owner = owner
        self.client = client
        self._sharing = sharing

    def greeted(self, facts: ServerFacts) -> None:
        if self._sharing is not None:
            self.own = self._sharing.maybe_own(self, facts)
            self.own_of_legacy = self._sharing.maybe_own_of_legacy(self, facts)
        super().greeted(facts)

    def on_asked(self, method: str, *, in_call: bool) -> None:
        if self._sharing is not None:
            self.own = self._sharing.on_asked(self, method, in_call=in_call)
        elif isinstance(self.shared, ServerLink) and self.owner is None:  # it is of several clients too
            self.shared.on_asked(method, in_call=in_call)

    def allowed_folders(self) -> tuple[str, ...]:
        roots = self.plan.roots
        if roots is not None:
            return tuple(os.path.realpath(path) for path in roots)
        if not isinstance(self.reach, Spawn):
            return ()
        given = (word for word in self.reach.command if word.startswith(("/", ".")))
        paths = ((self.reach.cwd or Path()) / word for word in given)
        return tuple(os.path.realpath(path) for path in paths if path.is_dir())

"""The link of a server that the node itself starts or dials, as the configuration or a driver says."""

import os
from pathlib import Path

from interlock.config.plan import Dial, ServerPlan, Spawn
from interlock.runtime.base.clock import Clock
from interlock.runtime.links.connected_link import ConnectedLink
from interlock.runtime.links.link import PerUser
from interlock.runtime.links.link_events import LinkEvents


class ServerLink(ConnectedLink):
    def __init__(
        self,
        plan: ServerPlan,
        events: LinkEvents,
        clock: Clock,
        *,
        vendor_meta: bool,
        per_user: PerUser | None = None,
        owner: str | None = None,
    ) -> None:
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
        self.classes = plan.classes
        self.timeout_s = plan.timeout_s
        self.per_user = per_user
        self.owner = owner

    def allowed_folders(self) -> tuple[str, ...]:
        roots = self.plan.roots
        if roots is not None:
            return tuple(os.path.realpath(path) for path in roots)
        if not isinstance(self.reach, Spawn):
            return ()
        given = (word for word in self.reach.command if word.startswith(("/", ".")))
        paths = ((self.reach.cwd or Path()) / word for word in given)
        return tuple(os.path.realpath(path) for path in paths if path.is_dir())

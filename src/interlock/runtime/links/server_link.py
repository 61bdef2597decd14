"""The link of a server that the node itself starts or dials, as the configuration or a driver says."""

from interlock.config.plan import Dial, ServerPlan
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
        self.per_user = per_user

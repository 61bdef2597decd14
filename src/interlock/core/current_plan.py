"""What is true of a node only while it runs: the plan in effect, and the URLs of its bound sockets."""

from interlock.config.plan import NodePlan, Plan


class CurrentPlan:
    """A holder of the configuration that is in effect now. Parts of the node read it each time, so that they notice a
    change.

    They read `plan` each time they need it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def replace(self, plan: Plan) -> None:
        """Put a new plan into effect."""
        self.plan = plan


class Addresses:
    """The public URL and the operator's URL, for parts that include them in messages.

    Final once the sockets are bound.
    """

    def __init__(self, node: NodePlan) -> None:
        self._node = node
        self.is_bound = False  # before that no browser can come back to this node
        self.public = node.public_url or f"http://{node.listen}"
        self.operator = node.operator_url or f"http://{node.operator_listen}"

    def take_bound(self, *, public: str, operator: str) -> None:
        """Store the URLs at which the endpoints now listen. A URL in the configuration takes precedence."""
        self.is_bound = True
        self.public = self._node.public_url or public
        self.operator = self._node.operator_url or operator

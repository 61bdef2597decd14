"""The URLs under which a node is reached, which are known in full when its sockets are bound."""

from interlock.config.plan import NodePlan


class Addresses:
    """Holds the public URL and the operator's URL for parts that name them to others."""

    def __init__(self, node: NodePlan) -> None:
        self._node = node
        self.is_bound = False  # before that no browser can come back to this node
        self.public = node.public_url or f"http://{node.listen}"
        self.operator = node.operator_url or f"http://{node.operator_listen}"

    def take_bound(self, *, public: str, operator: str) -> None:
        """Store the URLs of the bound sockets; a URL in the configuration takes precedence."""
        self.is_bound = True
        self.public = self._node.public_url or public
        self.operator = self._node.operator_url or operator

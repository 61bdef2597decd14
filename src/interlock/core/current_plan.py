"""The plan that is in effect: a changed configuration replaces it while the node runs."""

from interlock.config.plan import Plan


class CurrentPlan:
    """Holds the plan for parts that have to see the newest one whenever they look."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def replace(self, plan: Plan) -> None:
        self.plan = plan

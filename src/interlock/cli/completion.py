"""Shell completion: offers names from the running node, or none if no node runs, and the codes of `explain`."""

from collections.abc import Callable

import typer

from interlock.core.capability import load_reference

PATIENCE_S = 1.0  # longer than this and the person has typed the name


def codes(incomplete: str) -> list[str]:
    from interlock.cli.explain import every_key

    return [key for key in every_key() if key.startswith(incomplete)]


def _completion(operation_name: str, member: str, field: str) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion function that offers the `field` of the items that a running node lists. `member` names the
    list in the node's reply. After any failure nothing is offered.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from interlock.cli.command import Invocation

        config, data, url = (ctx.params.get(f"shared_{name}") for name in ("config", "data", "url"))
        try:
            node, operation = Invocation(config=config, data=data, url=url).node, load_reference(operation_name)
            listed = getattr(node.call(operation, timeout=PATIENCE_S).as_(operation.output), member)
        except Exception:
            return []
        return [value for item in listed if (value := getattr(item, field)).startswith(incomplete)]

    return complete


segments = _completion("interlock.links.api:LIST_LINKS", "links", "segment")
tool_names = _completion("interlock.catalog.api:LIST_TOOLS", "tools", "name")
approval_ids = _completion("interlock.approvals.api:LIST_APPROVALS", "approvals", "id")

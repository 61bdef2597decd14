"""Shell completion: offers names from the running node, or none if no node runs, and the codes of `explain`."""

from typing import Any

import typer

PATIENCE_S = 1.0  # longer than this and the person has typed the name


def segments(ctx: typer.Context, incomplete: str) -> list[str]:
    from interlock.links.api import LIST_LINKS

    return _complete(ctx, incomplete, LIST_LINKS, "links", "segment")


def tool_names(ctx: typer.Context, incomplete: str) -> list[str]:
    from interlock.catalog.api import LIST_TOOLS

    return _complete(ctx, incomplete, LIST_TOOLS, "tools", "name")


def approval_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    from interlock.approvals.api import LIST_APPROVALS

    return _complete(ctx, incomplete, LIST_APPROVALS, "approvals", "id")


def codes(incomplete: str) -> list[str]:
    from interlock.cli.explain import every_key

    return [key for key in every_key() if key.startswith(incomplete)]


def _complete(ctx: typer.Context, incomplete: str, operation: Any, member: str, field: str) -> list[str]:
    """Call `operation` and return the `field` of every listed item that begins with `incomplete`. `member` is the
    member of the reply that holds the list. Return an empty list after any failure.
    """
    from interlock.cli.command import Invocation

    config, data, url = (ctx.params.get(f"shared_{name}") for name in ("config", "data", "url"))
    try:
        node = Invocation(config=config, data=data, url=url).node
        listed = getattr(node.call(operation, timeout=PATIENCE_S).as_(operation.output), member)
    except Exception:
        return []
    return [value for item in listed if (value := getattr(item, field)).startswith(incomplete)]

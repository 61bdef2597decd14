"""What Tab offers: the names of the running node, and nothing when there is none."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from interlock.cli.client.operator import OperatorClient

PATIENCE_S = 1.0  # longer than this and the person has typed the name


def segments(ctx: typer.Context, incomplete: str) -> list[str]:
    from interlock.links.api import LIST_LINKS, Links

    node = _maybe_node(ctx)
    try:
        links = node.call(LIST_LINKS, timeout=PATIENCE_S).as_(Links).links if node else ()
    except Exception:
        return []
    return [link.segment for link in links if link.segment.startswith(incomplete)]


def tool_names(ctx: typer.Context, incomplete: str) -> list[str]:
    from interlock.catalog.api import LIST_TOOLS, Tools

    node = _maybe_node(ctx)
    try:
        tools = node.call(LIST_TOOLS, timeout=PATIENCE_S).as_(Tools).tools if node else ()
    except Exception:
        return []
    return [tool.name for tool in tools if tool.name.startswith(incomplete)]


def approval_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    from interlock.approvals.api import LIST_APPROVALS, Approvals

    node = _maybe_node(ctx)
    try:
        approvals = node.call(LIST_APPROVALS, timeout=PATIENCE_S).as_(Approvals).approvals if node else ()
    except Exception:
        return []
    return [approval.id for approval in approvals if approval.id.startswith(incomplete)]


def codes(incomplete: str) -> list[str]:
    from interlock.cli.codes import every_key

    return [key for key in every_key() if key.startswith(incomplete)]


def _maybe_node(ctx: typer.Context) -> "OperatorClient | None":
    from interlock.cli.command import Invocation

    params = ctx.params
    try:
        return Invocation(
            config=params.get("shared_config"), data=params.get("shared_data"), url=params.get("shared_url")
        ).node
    except Exception:
        return None

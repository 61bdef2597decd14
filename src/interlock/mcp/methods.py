"""The methods of MCP: which exist, in which era, and what a gateway must know of each.

MCP has two eras. In the legacy era (2024-11-05 to 2025-11-25) an `initialize` handshake opens a session. In the modern
era (2026-07-28) every request stands alone and carries its own version and capabilities. The era of a client and the
era of a server are found separately, and the gateway translates between them.

Everything else in this package asks the tables here: which member of the params names the target, which results carry
cache hints, and which capability of the client a server's request needs.
"""

from enum import Enum
from typing import Final

# The two eras of MCP and the revisions in each.
#
# Legacy: an `initialize` handshake opens a session (2024-11-05 to 2025-11-25). Modern: every request stands alone and
# carries its own version and capabilities (2026-07-28). The era of a client and the era of a server are found
# separately.


class Era(Enum):
    """An era of MCP: requests belong to a session (legacy) or are independent of each other (modern)."""

    LEGACY = "legacy"
    MODERN = "modern"


# A member of an enum is looked up by the enum's metaclass, ten times slower than a name: these are for the call path.
LEGACY: Final = Era.LEGACY
MODERN: Final = Era.MODERN

LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS: Final = ("2026-07-28",)
LATEST_LEGACY: Final = LEGACY_VERSIONS[-1]
LATEST_MODERN: Final = MODERN_VERSIONS[-1]

BATCH_VERSION: Final = "2025-03-26"  # the only revision with batches: those before do not name them, those after forbid


def negotiate_legacy(requested: str) -> str:
    """Return the version for the reply to `initialize`: the requested version if the gateway supports it, otherwise the
    newest supported legacy version.
    """
    return requested if requested in LEGACY_VERSIONS else LATEST_LEGACY


def era_of_header(version: str | None) -> Era:
    """Return the era of an HTTP request. An unknown version counts as modern, because validation of modern requests
    rejects it.
    """
    return Era.LEGACY if version is None or version in LEGACY_VERSIONS else Era.MODERN


INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
PING: Final = "ping"
DISCOVER: Final = "server/discover"
LISTEN: Final = "subscriptions/listen"
TOOLS_LIST: Final = "tools/list"
TOOLS_CALL: Final = "tools/call"
PROMPTS_LIST: Final = "prompts/list"
PROMPTS_GET: Final = "prompts/get"
RESOURCES_LIST: Final = "resources/list"
TEMPLATES_LIST: Final = "resources/templates/list"
RESOURCES_READ: Final = "resources/read"
SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"
COMPLETE: Final = "completion/complete"
SET_LEVEL: Final = "logging/setLevel"
TASKS_GET: Final = "tasks/get"
TASKS_RESULT: Final = "tasks/result"  # 2025-11-25 only
TASKS_LIST: Final = "tasks/list"  # 2025-11-25 only
TASKS_CANCEL: Final = "tasks/cancel"
TASKS_UPDATE: Final = "tasks/update"  # the extension of 2026-07-28 only

CREATE_MESSAGE: Final = "sampling/createMessage"
ELICIT: Final = "elicitation/create"
ROOTS_LIST: Final = "roots/list"

CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
LOG_MESSAGE: Final = "notifications/message"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"
RESOURCES_CHANGED: Final = "notifications/resources/list_changed"
RESOURCE_UPDATED: Final = "notifications/resources/updated"
ROOTS_CHANGED: Final = "notifications/roots/list_changed"
ELICITATION_COMPLETE: Final = "notifications/elicitation/complete"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
TASK_STATUS: Final = "notifications/tasks/status"  # 2025-11-25
TASK_NEWS: Final = "notifications/tasks"  # the same in the extension of 2026-07-28

LISTS: Final = {
    TOOLS_LIST: "tools",
    PROMPTS_LIST: "prompts",
    RESOURCES_LIST: "resources",
    TEMPLATES_LIST: "resourceTemplates",
}

# The params member that `Mcp-Name` repeats (2026-07-28).
NAMED_BY: Final = {
    TOOLS_CALL: "name",
    PROMPTS_GET: "name",
    RESOURCES_READ: "uri",
    TASKS_GET: "taskId",
    TASKS_UPDATE: "taskId",
    TASKS_CANCEL: "taskId",
}

# Requests a legacy server may send, and the client capability each needs.
ASKED_OF_CLIENT: Final = {CREATE_MESSAGE: "sampling", ELICIT: "elicitation", ROOTS_LIST: "roots"}

# Every method that some revision defines, or MCP-AX. What is none of them is a vendor's own.
_DEFINED: Final = frozenset(
    (
        *(INITIALIZE, INITIALIZED, PING, DISCOVER, LISTEN, COMPLETE, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE),
        *(TOOLS_CALL, PROMPTS_GET, RESOURCES_READ, *LISTS),
        *(TASKS_GET, TASKS_RESULT, TASKS_LIST, TASKS_CANCEL, TASKS_UPDATE, TASK_STATUS, TASK_NEWS),
        *(CREATE_MESSAGE, ELICIT, ROOTS_LIST, ELICITATION_COMPLETE, ACKNOWLEDGED),
        *(CANCELLED, PROGRESS, LOG_MESSAGE, RESOURCE_UPDATED, ROOTS_CHANGED),
        *(TOOLS_CHANGED, PROMPTS_CHANGED, RESOURCES_CHANGED),
    )
)
_OF_TREE: Final = ("notifications/mcpax/", "mcpax/")


def is_vendor_method(method: str) -> bool:
    """Return whether the method of a notification is defined by a vendor.

    The names of MCP's requests are not vendor methods: some servers execute a request that arrives as a notification.
    """
    return method not in _DEFINED and not method.startswith(_OF_TREE)


# Methods whose complete results carry cache hints in 2026-07-28.
CACHEABLE: Final = frozenset({DISCOVER, RESOURCES_READ, *LISTS})

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LOG_RANK: Final = {level: rank for rank, level in enumerate(LOG_LEVELS)}

META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
META_CLIENT: Final = "io.modelcontextprotocol/clientInfo"
META_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
META_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
META_SERVER: Final = "io.modelcontextprotocol/serverInfo"
META_TASK: Final = "io.modelcontextprotocol/related-task"

EXTENSION: Final = "dev.interlock/ax"
META_MISSING: Final = "dev.interlock/missing"  # of a list: the servers that are not there
TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"

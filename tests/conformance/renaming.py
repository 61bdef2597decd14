"""What the official suite calls things, and what a node's prefixed namespace calls them.

    test_simple_text     fixture__test_simple_text
    test://static-text   mcpax://fixture/test://static-text

The suite hard-codes its names. Prefixes are put on what it asks for and taken off what the node lists, reads and
reports. What a node lists without its prefix is spoilt, so that a scenario fails over it.
"""

import base64
from collections.abc import Callable
from typing import Any

SEGMENT = "fixture"
NAME_PREFIX = f"{SEGMENT}__"
URI_PREFIX = f"mcpax://{SEGMENT}/"
SPOILT = "without-prefix:"

# Where requests hold a name, and which of them repeat it in the header Mcp-Name.
ASKED = {
    "tools/call": ("name", NAME_PREFIX),
    "prompts/get": ("name", NAME_PREFIX),
    "resources/read": ("uri", URI_PREFIX),
    "resources/subscribe": ("uri", URI_PREFIX),
    "resources/unsubscribe": ("uri", URI_PREFIX),
}
REFERRED = {"ref/prompt": ("name", NAME_PREFIX), "ref/resource": ("uri", URI_PREFIX)}
LISTED = {
    "tools": ("name", NAME_PREFIX),
    "prompts": ("name", NAME_PREFIX),
    "resources": ("uri", URI_PREFIX),
    "resourceTemplates": ("uriTemplate", URI_PREFIX),
}

Json = dict[str, Any]


def to_node(message: Json) -> None:
    """Rename what the suite asks for, in place."""
    params = message.get("params")
    if not isinstance(params, dict):
        return
    method = message.get("method")
    if method in ASKED:
        put(params, *ASKED[method])
    elif method == "completion/complete" and isinstance(ref := params.get("ref"), dict) and ref.get("type") in REFERRED:
        put(ref, *REFERRED[ref["type"]])
    elif method == "subscriptions/listen":
        each_listened(params, lambda uri: URI_PREFIX + uri)


def name_header(method: Any, value: str) -> str:
    """The header Mcp-Name of such a request; a value that no encoder writes stays as wrong as it is."""
    if method not in ASKED:
        return value
    prefix = ASKED[method][1]
    wrapped = value.strip().removeprefix("=?base64?").removesuffix("?=")
    if value.strip() != f"=?base64?{wrapped}?=":
        return prefix + value
    try:
        inner = base64.b64decode(wrapped, validate=True)
    except ValueError:
        return value
    return f"=?base64?{base64.b64encode(prefix.encode() + inner).decode()}?="


def to_suite(message: Json) -> None:
    """Take the prefixes off an answer or a notification, in place."""
    result, params, error = message.get("result"), message.get("params"), message.get("error")
    if isinstance(result, dict):
        for kind, (member, prefix) in LISTED.items():
            for item in result.get(kind, ()):
                item[member] = stripped(item[member], prefix)
        for item in result.get("contents", ()):
            item["uri"] = item["uri"].removeprefix(URI_PREFIX)
    elif isinstance(params, dict) and message.get("method") == "notifications/resources/updated":
        params["uri"] = stripped(params["uri"], URI_PREFIX)
    elif isinstance(params, dict) and message.get("method") == "notifications/subscriptions/acknowledged":
        each_listened(params, lambda uri: stripped(uri, URI_PREFIX))
    elif isinstance(error, dict) and isinstance(data := error.get("data"), dict) and isinstance(data.get("uri"), str):
        data["uri"] = data["uri"].removeprefix(URI_PREFIX)


def put(holder: Json, member: str, prefix: str) -> None:
    if isinstance(holder.get(member), str):
        holder[member] = prefix + holder[member]


def stripped(text: str, prefix: str) -> str:
    return text.removeprefix(prefix) if text.startswith(prefix) else SPOILT + text


def each_listened(params: Json, rename: Callable[[str], str]) -> None:
    wanted = params.get("notifications")
    if isinstance(wanted, dict) and isinstance(uris := wanted.get("resourceSubscriptions"), list):
        wanted["resourceSubscriptions"] = [rename(uri) if isinstance(uri, str) else uri for uri in uris]

"""The names of operations (8.5): canonical verbs, and what is said against a name that has another."""

from collections.abc import Mapping
from typing import Final

from interlock.aql.protocol.model import Category

CANONICAL: Final[Mapping[Category, tuple[str, ...]]] = {
    Category.CREATE: ("create",),
    Category.READ: ("get", "list"),
    Category.UPDATE: ("update",),
    Category.DELETE: ("delete",),
    Category.EXECUTE: ("execute", "cancel"),
}
# Other verbs, by the canonical one that they are similar to.
SIMILAR: Final[Mapping[str, str]] = {
    **dict.fromkeys(("add", "insert", "upload", "register", "import", "new", "make", "append", "copy"), "create"),
    **dict.fromkeys(("fetch", "read", "show", "find", "lookup", "describe", "check", "count", "export"), "get"),
    **dict.fromkeys(("search", "query", "browse", "filter", "enumerate"), "list"),
    **dict.fromkeys(("edit", "modify", "set", "change", "patch", "rename", "move", "replace", "put"), "update"),
    **dict.fromkeys(("remove", "destroy", "purge", "erase", "drop", "clear", "wipe"), "delete"),
    **dict.fromkeys(("run", "start", "send", "merge", "publish", "trigger", "invoke", "process", "retry"), "execute"),
    **dict.fromkeys(("stop", "abort", "end", "halt"), "cancel"),
}
WHOLE: Final = frozenset({"introspect", "search"})  # system-wide names that need no resource


def canonical_verb(name: str, category: Category) -> str:
    """The canonical verb that a name's own verb is closest to."""
    verb = name.partition("_")[0]
    verbs = CANONICAL[category]
    if verb in verbs:
        return verb
    near = SIMILAR.get(verb)
    return near if near in verbs else verbs[0]


def objection(name: str, category: Category, reason: str | None) -> str | None:
    """What the naming rules say against a name; None where they are kept or a reason is given (8.5.3)."""
    verb, _, rest = name.partition("_")
    known = verb in SIMILAR or any(verb in verbs for verbs in CANONICAL.values())
    if verb in CANONICAL[category]:
        return None if rest else f"operation '{name}': a name has the form {verb}_RESOURCE (8.5.2)"
    if reason or name in WHOLE:
        return None
    canonical = canonical_verb(name, category)
    if not known:
        return f"operation '{name}': it does not begin with a known verb; call it {canonical}_RESOURCE, or give reason="
    return f"operation '{name}': the canonical verb is '{canonical}'; use it, or give reason= (8.5.1)"


def described(description: str, name: str, category: Category, reason: str | None) -> str:
    """The description, with the reason and the canonical equivalent of another verb (8.5.3)."""
    if not reason or name.partition("_")[0] in CANONICAL[category]:
        return description
    said = reason.strip().rstrip(".")
    return f"{description.rstrip()} {said[:1].upper()}{said[1:]}. Similar to {canonical_verb(name, category)}."

"""The category and the danger of a tool that is shown as an operation, with the reasons (8.3, C.map-7, C.danger-2).

Clients run READ operations without asking anybody. Therefore a name alone never makes a tool a READ, a hint of its
server never overrides a verb in its name that contradicts the hint, and a tool of which nothing is known is EXECUTE.
"""

from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Final, Literal

import msgspec

from interlock.aql.protocol.model import DEFAULT_DANGER, Category, Danger, snake

# Verbs at the beginning of a name, by what they do to a resource.
REMOVING: Final = frozenset(
    ["delete", "remove", "destroy", "drop", "purge", "erase", "wipe", "truncate", "clear", "unlink", "discard"]
)
CHANGING: Final = frozenset(
    [
        *("update", "edit", "modify", "set", "write", "rename", "move", "patch", "replace", "change", "put"),
        *("assign", "configure", "toggle", "overwrite", "upsert"),
    ]
)
ADDING: Final = frozenset(["create", "add", "upload", "register", "import", "insert", "new", "make"])
_JOINED: Final = frozenset(["or", "and"])

Rule = Literal["operator", "read_only", "verb", "shape", "fallback", "contradiction", "adapter"]
CANONICAL: Final = {category: category.value.lower() for category in Category} | {Category.READ: "get"}

_DANGEROUS: Final = (
    *("force_*", "*_permanently", "bulk_delete*", "override_*", "bypass_*", "*_without_backup", "purge_*"),
)
_FORBIDDEN: Final = (*("drop_*", "*delete_all*", "truncate_*", "reset_*", "destroy_*", "wipe_*", "*_production"),)


class CategoryVerdict(msgspec.Struct, frozen=True):
    """The category of a tool, the rule that determined it, and the reason as clients see it."""

    category: Category
    rule: Rule
    reason: str = ""  # a sentence, where the classification is a fallback or contradicts what the server says


def leading_verbs(local: str) -> list[str]:
    """Return the leading verb of a name and the verbs joined to it: create_or_update_file -> create, update."""
    words = snake(local).strip("_").split("_")
    verbs = words[:1]
    for before, word in pairwise(words):
        if before in _JOINED:
            verbs.append(word)
    return verbs


def classify(local: str, *, is_read_only: bool, is_destructive: bool | None = None) -> CategoryVerdict:
    """Classify a tool by its name and hints. Whether its parameters fit an UPDATE is checked later (C.map-8).

    `is_read_only` means that the effective AX capability is not mutable. `is_destructive` is the server's own hint, or
    None.
    """
    verbs, words = leading_verbs(local), snake(local).strip("_").split("_")
    # The most harmful category that the verbs of the name suggest. If they suggest none, a removing word elsewhere in
    # the name suggests DELETE.
    suggestions = (
        *((REMOVING, verbs, Category.DELETE), (CHANGING, verbs, Category.UPDATE)),
        *((ADDING, verbs, Category.CREATE), (REMOVING, words, Category.DELETE)),
    )
    by_verb = next((category for group, texts, category in suggestions if not group.isdisjoint(texts)), None)
    if is_read_only and by_verb is None:
        return CategoryVerdict(Category.READ, "read_only")
    if by_verb is None:
        verb = verbs[0] if verbs else ""
        reason = f"Classified EXECUTE because nothing is known of '{verb}'."
        return CategoryVerdict(Category.EXECUTE, "fallback", reason)
    if by_verb is Category.CREATE and is_destructive is True:
        reason = "Classified EXECUTE because it adds by its name and may overwrite by its destructiveHint."
        return CategoryVerdict(Category.EXECUTE, "contradiction", reason)
    if by_verb is Category.UPDATE and verbs[0] in ADDING:
        reason = "Classified as changing, because by its name it may overwrite what exists."
        return CategoryVerdict(by_verb, "contradiction", reason)
    if is_read_only:
        reason = f"Classified {by_verb.value} by its name, although it is declared read-only."
        return CategoryVerdict(by_verb, "contradiction", reason)
    if by_verb is Category.DELETE and verbs[0] not in REMOVING:
        return CategoryVerdict(by_verb, "verb", "Classified DELETE because its name says that something is removed.")
    return CategoryVerdict(by_verb, "verb")


_BY_METHOD: Final = {
    "GET": Category.READ,
    "HEAD": Category.READ,
    "PUT": Category.UPDATE,
    "PATCH": Category.UPDATE,
    "DELETE": Category.DELETE,
}


def category_of_request(method: str, name: str) -> Category | None:
    """Return the category of an operation that sends an HTTP request (8.5.1), or None for an unknown method.

    POST is a CREATE only if the operation's name suggests it.
    """
    if method == "POST":
        return Category.CREATE if leading_verbs(name)[0] in ADDING else Category.EXECUTE
    return _BY_METHOD.get(method)


def danger_by_name(local: str) -> Danger | None:
    """Return the danger that a tool's name suggests by the name patterns of the specification, or None."""
    name = snake(local).strip("_")
    if any(fnmatchcase(name, pattern) for pattern in _FORBIDDEN):
        return Danger.FORBIDDEN
    if any(fnmatchcase(name, pattern) for pattern in _DANGEROUS):
        return Danger.DANGEROUS
    return None


class DangerVerdict(msgspec.Struct, frozen=True):
    """The danger of an operation, and the reasons as clients see them."""

    level: Danger
    reasons: tuple[str, ...] = ()
    is_declared: bool = False  # by the operator or the native declaration; only a declared `forbidden` denies


def judge_danger(
    local: str,
    category: Category,
    *,
    declared: Danger | None = None,
    is_read_only: bool = False,
    is_irreversible: bool = False,
) -> DangerVerdict:
    """Return the danger of an operation, and the reasons for it.

    `declared` is what the operator configured, and overrides everything else. `is_irreversible` is true only if that
    was declared: in other places a tool that declares nothing counts as irreversible, but this alone does not make it
    dangerous.
    """
    if declared is not None:
        return DangerVerdict(declared, ("declared by the operator",), is_declared=True)
    level, reasons = DEFAULT_DANGER[category], []
    if category is Category.DELETE:
        reasons.append("it removes")
    if is_read_only and category is Category.READ:
        return DangerVerdict(level)
    by_name = danger_by_name(local)
    if by_name is not None and by_name > level:
        level = by_name
        reasons.append("its name says so")
    if is_irreversible and level < Danger.DESTRUCTIVE:
        level = Danger.DESTRUCTIVE
        reasons.append("it cannot be undone")
    return DangerVerdict(level, tuple(reasons))


Trust = Literal["untested", "generated", "validated", "community_reviewed", "certified"]
TRUSTS: Final[tuple[Trust, ...]] = ("untested", "generated", "validated", "community_reviewed", "certified")
Treatment = Literal["allow", "confirm", "deny"]
# The least trust in a server with which an operation is not denied, by the danger of the operation (danger-levels.md
# of the specification). An untested server is only introspected.
LEAST_TRUST: Final = {
    Danger.SAFE: "generated",
    Danger.REVERSIBLE: "validated",
    Danger.DESTRUCTIVE: "validated",
    Danger.DANGEROUS: "community_reviewed",
    Danger.FORBIDDEN: "certified",
}


def treatment(danger: Danger, trust: Trust, *, is_declared: bool = True) -> Treatment:
    """Return how a call is treated, given the danger of the operation and the trust in its server.

    In one place the specification lets highly trusted servers run destructive operations without confirmation, and in
    another it does not. The stricter rule applies: from `destructive` on, a call must be confirmed.
    """
    if trust == "untested":
        return "deny"
    level = Danger.DANGEROUS if danger is Danger.FORBIDDEN and not is_declared else danger
    if TRUSTS.index(trust) < TRUSTS.index(LEAST_TRUST[level]):
        return "deny"
    return "confirm" if danger >= Danger.DESTRUCTIVE else "allow"

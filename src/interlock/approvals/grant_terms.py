"""Standing grants: a person's signed permission for calls of one tool by one caller, within limits and until a time,
for a number of calls, or both.

The grant is signed once, over its canonical JSON (RFC 8785). The digest of the tool's definition is part of it, so a
changed definition is another tool. At the node that it names, and at no other, a grant has the effect of an approval of
a held call (MCP-AX 11.3). The module has three parts: paths as text, rules for arguments, and the grant itself. It
has no side effects, and gets the time as an argument.
"""

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.approvals.grants_api import GrantRule, GrantTerms
from interlock.wire.jsontext.canonical import INTEGER_MAX, NotCanonical, canonical, pointer_step

# Paths as text: whether one lies below a folder, judged without a file system.
#
# What is not the same path to every reader lies below no folder: `..`, percent-encoding, backslashes, variables and
# patterns, characters that are invisible or that normalise to a separator or a dot. Upper and lower case are
# different. Only the text is judged: a symbolic link below the folder may lead out of it, which a sandbox prevents
# and this cannot.

PATH_CHARS_MAX: Final = 4096
_EXPANDED: Final = frozenset("\\%$`*?{}")  # what a server, its shell or a URI decoder may turn into something else
_SEPARATING: Final = frozenset("./\\%~:")


def find_folder(text: str) -> str | None:
    """Return a folder's path without redundant parts, as it is signed. Return None if the text is not a path, or if the
    folder is too wide, such as `/`.
    """
    parts = _find_path_parts(text)
    return None if parts is None or not any(parts) else "/".join(parts)


def find_parent(path: str) -> str | None:
    """Return the folder that contains a path, or None if a grant must not cover this folder."""
    parts = _find_path_parts(path)
    return None if parts is None else find_folder("/".join(parts[:-1]))


def is_below(path: str, folder: str) -> bool:
    """Return whether the path lies inside the folder and is not the folder itself. `folder` comes from
    `find_folder`.
    """
    parts, above = _find_path_parts(path), folder.split("/")
    return parts is not None and len(parts) > len(above) and parts[: len(above)] == above


def _find_path_parts(text: str) -> list[str] | None:
    """Split a path into its names. The first name is empty if the path is absolute. Return None if programs could
    interpret the path differently.
    """
    if not text or len(text) > PATH_CHARS_MAX or text.startswith(("//", "~")) or ".." in text or "://" in text:
        return None
    if not _EXPANDED.isdisjoint(text) or not all(map(_is_plain, text)):
        return None
    first, *rest = text.split("/")
    parts = [first, *(part for part in rest if part not in ("", "."))]
    if first == "." and len(parts) > 1:
        parts = parts[1:]
    # Some systems drop dots and spaces at the end of a name: ". " would be the folder itself.
    if any(not part.strip(". ") for part in parts[0 if parts[0] else 1 :]):
        return None
    return parts


def _is_plain(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    if unicodedata.category(character)[0] in "CZ":  # invisible, private, unassigned, a space of another kind
        return False
    return _SEPARATING.isdisjoint(unicodedata.normalize("NFKC", character))


# Rules for the arguments of a tool that a person agrees to once for many calls: which arguments a call may have.
#
# A rule names one argument by a JSON pointer and says what it may be. What no rule names may not be there: nothing is
# free unless a rule says so. Arguments come as `jsontext.canonical` reads them, so that what is judged is what every
# server reads; numbers are compared by their value and texts by their characters, never one with the other.
#
#     equals   exactly this value
#     one_of   one of these values
#     below    a path inside this folder (`path_text`)
#     range    a number from the first to the second
#     any      whatever it is, and it may be left out

RULES_MAX: Final = 100
VALUES_MAX: Final = 100  # of one_of
POINTER_CHARS_MAX: Final = 1000
REASON_CHARS_MAX: Final = 120  # of a key or a rule, where it says why a call is not covered
EVERYTHING: Final = ""  # the pointer of all arguments together


class BadRules(ValueError):
    """Raised for rules that cannot be signed. The message says why."""


def pointer_of(name: str) -> str:
    """Return the JSON pointer of an argument. `name` is the key of the argument, or a pointer, which is returned
    unchanged.
    """
    return name if name.startswith("/") else f"/{pointer_step(name)}"


def check_rules(rules: Sequence[GrantRule]) -> None:
    """Raise BadRules if the rules of a grant are ambiguous, or limit less than a reader would think."""
    if len(rules) > RULES_MAX:
        raise BadRules(f"there are more than {RULES_MAX} rules")
    for rule in rules:
        _check_rule(rule)
    _tree(rules)


def find_violation(rules: Sequence[GrantRule], arguments: Mapping[str, Any]) -> str | None:
    """Return why the rules of a grant do not cover a call with these arguments, or None if they do."""
    tree = _tree(rules)
    if tree.rule is not None:  # any
        return None
    return _find_object_violation(tree, arguments, "")


def completed_rules(rules: Sequence[GrantRule], arguments: Mapping[str, Any]) -> tuple[GrantRule, ...]:
    """Return the rules, with a rule added for each argument of a call that has none: the argument must equal its value
    in this call. Raise BadRules if the rules would not cover the call itself.
    """
    check_rules(rules)
    tree = _tree(rules)
    completed = list(rules)
    if tree.rule is None:
        _complete(tree, arguments, "", completed)
    check_rules(completed)
    wrong = find_violation(completed, arguments)
    if wrong is not None:
        raise BadRules(f"the call itself would not be among those it covers: {wrong}")
    return tuple(sorted(completed, key=lambda rule: rule.at))


def proposed_rules(arguments: Mapping[str, Any]) -> tuple[GrantRule, ...]:
    """Propose rules that also cover similar calls: a path may be any path in the same folder, and a number any number
    up to this one. For other arguments no rule is proposed.
    """
    rules = []
    for key, value in arguments.items():
        at = f"/{pointer_step(key)}"
        texts = value if isinstance(value, list) else [value]
        if texts and all(isinstance(item, str) for item in texts):
            folders = {find_parent(item) if item.startswith("/") else None for item in texts}
            folder = folders.pop() if len(folders) == 1 else None
            if folder is not None:
                rules.append(GrantRule(at=at, kind="below", value=folder, each=isinstance(value, list)))
        elif _is_number(value) and 0 < value <= INTEGER_MAX:
            rules.append(GrantRule(at=at, kind="range", value=[0, value]))
    return tuple(rules)


def rule_text(rule: GrantRule) -> str:
    """Describe which values of an argument a rule allows, as the rest of a sentence that begins with "must be". The
    text is never shortened, because a person signs it.
    """
    match rule.kind:
        case "equals":
            text = _shown(rule.value)
        case "one_of":
            text = "one of " + ", ".join(map(_shown, rule.value))
        case "below":
            text = f"a path below {rule.value}"
        case "range":
            text = f"a number from {_shown(rule.value[0])} to {_shown(rule.value[1])}"
        case "any":
            text = "anything"
    return f"a list, each of it {text}" if rule.each else text


class _Tree:
    """A tree of rules, keyed by the steps of their JSON pointers."""

    __slots__ = ("children", "rule")

    def __init__(self) -> None:
        self.rule: GrantRule | None = None
        self.children: dict[str, _Tree] = {}


def _tree(rules: Sequence[GrantRule]) -> _Tree:
    root = _Tree()
    for rule in rules:
        place = root
        for step in _steps(rule.at):
            place = place.children.setdefault(step, _Tree())
            if place.rule is not None:
                raise BadRules(f"two rules are about {rule.at}")
        if place.rule is not None or place.children:
            raise BadRules(f"two rules are about {rule.at or 'all arguments'}")
        place.rule = rule
    if root.rule is not None and (root.children or root.rule.kind != "any"):
        raise BadRules("a rule for all arguments together can only let all of them through")
    return root


def _steps(pointer: str) -> list[str]:
    if pointer == EVERYTHING:
        return []
    if not pointer.startswith("/") or len(pointer) > POINTER_CHARS_MAX:
        raise BadRules(f"{pointer[:60]!r} is no JSON pointer, like /path or /options/mode")
    steps = []
    for step in pointer[1:].split("/"):
        if "~" in step.replace("~0", "").replace("~1", ""):
            raise BadRules(f"{pointer[:60]!r} is no JSON pointer: ~ is written ~0, and / inside a key ~1")
        steps.append(step.replace("~1", "/").replace("~0", "~"))
    return steps


def _check_rule(rule: GrantRule) -> None:
    value, at = rule.value, rule.at
    try:
        canonical(value)
    except NotCanonical as error:
        raise BadRules(f"{at}: {error}") from None
    match rule.kind:
        case "one_of" if not isinstance(value, list) or not 0 < len(value) <= VALUES_MAX or any(map(_is_nested, value)):
            raise BadRules(f"{at}: one_of takes 1 to {VALUES_MAX} texts, numbers, true, false or null")
        case "below" if not isinstance(value, str) or find_folder(value) != value:
            raise BadRules(
                f"{at}: {_cut(_shown(value))} is no folder that paths can be compared with; / alone is too wide"
            )
        case "range" if not _is_range(value):
            raise BadRules(f"{at}: a range is two numbers, the smaller one first")
        case "any" if value is not None or rule.each:
            raise BadRules(f"{at}: a rule that lets everything through says no more")
        case "equals" if rule.each:
            raise BadRules(f"{at}: equals names the whole value")


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | dict)


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(_is_number(bound) and abs(bound) <= INTEGER_MAX for bound in value)
        and bool(value[0] <= value[1])
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _find_object_violation(tree: _Tree, value: Mapping[str, Any], at: str) -> str | None:
    for key in value:
        if key not in tree.children:
            return f"{at}/{_cut(pointer_step(key))} is not among its arguments"
    for key, below in tree.children.items():
        place = f"{at}/{pointer_step(key)}"
        if key in value:
            wrong = _find_value_violation(below, value[key], place)
        else:
            wrong = None if below.rule is not None and below.rule.kind == "any" else f"{place} is missing"
        if wrong is not None:
            return wrong
    return None


def _find_value_violation(tree: _Tree, value: Any, at: str) -> str | None:
    rule = tree.rule
    if rule is None:
        return _find_object_violation(tree, value, at) if isinstance(value, dict) else f"{at} must be an object"
    if not rule.each:
        is_allowed = _is_kept(rule, value)
    else:
        is_allowed = isinstance(value, list) and bool(value) and all(_is_kept(rule, item) for item in value)
    return None if is_allowed else f"{at} must be {_cut(rule_text(rule))}"


def _is_kept(rule: GrantRule, value: Any) -> bool:
    match rule.kind:
        case "equals":
            return _is_same(value, rule.value)
        case "one_of":
            return not _is_nested(value) and any(_is_same(value, allowed) for allowed in rule.value)
        case "below":
            return isinstance(value, str) and is_below(value, rule.value)
        case "range":
            return _is_number(value) and bool(rule.value[0] <= value <= rule.value[1])
        case "any":
            return True


def _is_same(value: Any, other: Any) -> bool:
    try:
        return canonical(value) == canonical(other)
    except NotCanonical:
        return False


def _complete(tree: _Tree, value: Mapping[str, Any], at: str, rules: list[GrantRule]) -> None:
    for key, inner in value.items():
        place, below = f"{at}/{pointer_step(key)}", tree.children.get(key)
        if below is None:
            rules.append(GrantRule(at=place, kind="equals", value=inner))
        elif below.rule is None and isinstance(inner, dict):
            _complete(below, inner, place, rules)


def _shown(value: Any) -> str:
    try:
        return canonical(value).decode()
    except NotCanonical:
        return repr(value)


def _cut(text: str) -> str:
    """Shorten a long text and append how many characters it has."""
    return text if len(text) <= REASON_CHARS_MAX else f"{text[:REASON_CHARS_MAX]}… ({len(text)} characters)"


KIND: Final = "standing_grant"  # what is signed, and the type of the proof that a call under it has
VERSION: Final = 1
CALLS_MAX: Final = 10_000
LIFETIME_S_MAX: Final = 90 * 86_400  # what was agreed to longer ago is forgotten
SIGNING_S_MAX: Final = 300  # between the draft and its signature
BYTES_MAX: Final = 32 * 1024  # of the canonical JSON: a person reads it
TEXT_CHARS_MAX: Final = 1000
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def canonical_grant(grant: GrantTerms) -> bytes:
    """Return the canonical JSON of a grant, which a person signs. Raise BadRules if the grant has no canonical form."""
    members: dict[str, Any] = msgspec.to_builtins(grant)
    try:
        return canonical({**members, "kind": KIND, "v": VERSION})
    except NotCanonical as error:
        raise BadRules(str(error)) from None


def grant_digest(grant: GrantTerms) -> str:
    """Return the SHA-256 digest of a grant in hex. A proof for the grant contains it as call_digest."""
    return hashlib.sha256(canonical_grant(grant)).hexdigest()


def check_grant(grant: GrantTerms, now: float) -> None:
    """Raise BadRules if the grant cannot be signed now."""
    if not _UUID.fullmatch(grant.id):
        raise BadRules("the id of a grant is a UUID")
    if grant.calls is None and grant.until is None:
        raise BadRules("a grant ends: after a number of calls, or at a time")
    if grant.calls is not None and not 1 <= grant.calls <= CALLS_MAX:
        raise BadRules(f"a grant is for 1 to {CALLS_MAX} calls")
    if grant.until is not None and not 0 < grant.until - now <= LIFETIME_S_MAX:
        raise BadRules(f"a grant ends in the future, and within {LIFETIME_S_MAX // 86_400} days")
    if abs(now - grant.issued_at) > SIGNING_S_MAX:
        raise BadRules("it was drafted too long ago, or the clocks differ; draft it again")
    if not 0 < len(grant.who) <= TEXT_CHARS_MAX or len(grant.reason or "") > TEXT_CHARS_MAX:
        raise BadRules(f"a grant names its caller, and its reason has at most {TEXT_CHARS_MAX} characters")
    check_rules(grant.rules)
    if len(canonical_grant(grant)) > BYTES_MAX:
        raise BadRules(f"it is longer than {BYTES_MAX} bytes; let long arguments be anything, or leave them out")

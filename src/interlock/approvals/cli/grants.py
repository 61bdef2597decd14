"""Commands about standing grants, and the options that say which calls a grant covers.

An option such as `--below path=/srv` becomes a rule for one argument. For a held call, the node proposes rules; options
of the user replace the proposals for the same arguments.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from interlock.approvals import grants_api
from interlock.approvals.cli.keys import KeyChoice
from interlock.approvals.grant_terms import pointer_of
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.completion import tool_names
from interlock.cli.terminal.errors import BadUsage
from interlock.cli.terminal.text import count, local_time

EACH = "[]"  # behind the name of an argument: each item of a list
_DURATION = re.compile(r"(\d{1,6})\s*(s|m|min|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}

Texts = list[str] | None


@dataclass(frozen=True, kw_only=True)
class GrantLimits:
    """The options that say which calls a standing grant covers, and how many or for how long."""

    below: Annotated[
        Texts, option("--below", "A path inside this folder; ARG[] for a list of paths.", "ARG=FOLDER")
    ] = None
    one_of: Annotated[Texts, option("--one-of", "One of these values; may be repeated.", "ARG=A,B")] = None
    most: Annotated[Texts, option("--max", "A number from 0 to this one.", "ARG=NUMBER")] = None
    least: Annotated[Texts, option("--min", "The smallest number instead of 0.", "ARG=NUMBER")] = None
    equal: Annotated[
        Texts, option("--equal", "Exactly this value; without VALUE, that of the held call.", "ARG[=VALUE]")
    ] = None
    free: Annotated[Texts, option("--any", "Any value of this argument, or none.", "ARG")] = None
    calls: Annotated[
        int | None, typer.Option("--calls", metavar="N", min=1, help="For this many calls.", show_default=False)
    ] = None
    time: Annotated[str | None, option("--for", "For this long: 30m, 8h, 7d (a day by default).", "TIME")] = None

    def rules(self, arguments: Mapping[str, Any] | None = None) -> list[grants_api.GrantRule]:
        """Return the rules that the options give. `arguments` are the arguments of the held call; if an argument
        is a list there, its rule applies to each item.
        """
        rules: list[grants_api.GrantRule] = []
        for text in self.below or ():
            at, each, folder = _assignment(text, "--below", arguments)
            rules.append(grants_api.GrantRule(at=at, kind="below", value=folder.rstrip("/"), each=each))
        for text in self.one_of or ():
            at, each, values = _assignment(text, "--one-of", arguments)
            like = _at(arguments, at)
            allowed = [_value(item, like) for item in values.split(",")]
            rules.append(grants_api.GrantRule(at=at, kind="one_of", value=allowed, each=each))
        ends: dict[str, list[Any]] = {}
        for texts, place, name in ((self.most, 1, "--max"), (self.least, 0, "--min")):
            for text in texts or ():
                at, each, number = _assignment(text, name, arguments)
                try:
                    bound = int(number) if number.lstrip("-").isdecimal() else float(number)
                except ValueError:
                    raise BadUsage("usage", f"{name}: {number} is no number") from None
                ends.setdefault(at, [0, None, each])[place] = bound
        for at, (smallest, largest, each) in ends.items():
            if largest is None:
                raise BadUsage("usage", f"{at}: --min alone leaves it open how large it may be", hint="add --max")
            rules.append(grants_api.GrantRule(at=at, kind="range", value=[smallest, largest], each=bool(each)))
        for text in self.equal or ():
            name, bounds, value = text.partition("=")
            at = _pointer(name)
            held = _at(arguments, at)
            if not bounds and held is _ABSENT:
                raise BadUsage("usage", f"--equal {text} names no argument of the call", hint="--equal ARG=VALUE")
            rules.append(grants_api.GrantRule(at=at, kind="equals", value=_value(value, held) if bounds else held))
        rules += [
            grants_api.GrantRule(at="" if name == "*" else _pointer(name), kind="any") for name in self.free or ()
        ]
        return rules


def seconds_of(text: str | None) -> int | None:
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadUsage("usage", f"{text} is no time", hint="--for 30m, 8h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


def with_proposed(
    own: Sequence[grants_api.GrantRule], proposed: Sequence[grants_api.GrantRule]
) -> list[grants_api.GrantRule]:
    """Return the user's own rules, completed by the proposed rules for the arguments about which the
    user gave no rule.
    """
    if any(rule.at == "" for rule in own):
        return list(own)
    combined = list(own)
    for rule in proposed:
        # A rule of the user replaces the proposed rules for the same argument, for its parts, and for what contains it.
        is_replaced = any(f"{rule.at}/".startswith(f"{o.at}/") or f"{o.at}/".startswith(f"{rule.at}/") for o in own)
        if rule.kind != "equals" and not is_replaced:
            combined.append(rule)
    return combined


_ABSENT: Any = object()


def _at(arguments: Mapping[str, Any] | None, pointer: str) -> Any:
    value: Any = arguments if arguments is not None else _ABSENT
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        value = value[key] if isinstance(value, Mapping) and key in value else _ABSENT
    return value


def _pointer(name: str) -> str:
    return pointer_of(name.removesuffix(EACH))


def _assignment(text: str, flag: str, arguments: Mapping[str, Any] | None) -> tuple[str, bool, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise BadUsage("usage", f"{flag} {text} names no argument and value", hint=f"{flag} ARG=VALUE")
    at = _pointer(name)
    return at, name.endswith(EACH) or isinstance(_at(arguments, at), list), value


def _value(text: str, like: Any) -> Any:
    """Return the value of an option. A number, true, false, null or quoted text is read as JSON. If `like`, the
    argument of the call, is a string, the text is used unchanged.
    """
    if isinstance(like, str):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, list | dict) else value


app = verb_app(
    "Sign, see and revoke standing grants: one yes for many calls.",
    examples="""
    interlock grants list
    interlock approve 3f9c0a1b --standing
    interlock grants revoke 7e57ab1e
    """,
)

Reference = Annotated[str, typer.Argument(metavar="ID", help="The id, or its beginning.")]


@verb(app, "list")
def list_grants(
    invocation: Invocation, *, everything: Annotated[bool, option("--all", "Also grants that have ended.")] = False
) -> None:
    """List standing grants, how often each was used, and until when.

    Examples:
        interlock grants list
        interlock grants list --all
        interlock grants list --json | jq '.grants[].terms.tool'
    """
    if (answer := invocation.call_or_print(grants_api.LIST_GRANTS)) is None:
        return
    grants = [grant for grant in answer.grants if everything or grant.state == "active"]
    if not grants:
        invocation.out.remark("there is no standing grant; interlock approve ID --standing signs one from a held call")
        return
    rows = []
    for grant in grants:
        terms, style = grant.terms, "" if grant.state == "active" else "dim"
        end = grant.over or (local_time(grant.until) if grant.until else "no limit")
        rows.append(((terms.id[:8], "bold"), terms.tool, terms.who, _uses(grant), (end, style), grant.anchor))
    invocation.out.draw_table("ID|TOOL|WHO|USED|UNTIL|SIGNED BY", rows, shrink={1: 16, 2: 12, 4: 12})


@verb(app, "show")
def show(invocation: Invocation, id: Reference) -> None:
    """Show a grant in full, and the latest calls under it.

    Examples:
        interlock grants show 7e57ab1e
        interlock grants show 7e57ab1e --json
    """
    from interlock.approvals.cli.signing import grant_lines

    if (grant := invocation.call_or_print(grants_api.GET_GRANT, id=id)) is None:
        return
    out = invocation.out
    out.lines("\n".join((*grant_lines(grant.words), "")))
    out.line(f"id      {grant.terms.id}")
    out.line(f"state   {grant.state}" + (f": it {grant.over}" if grant.over else ""))
    out.line(f"used    {_uses(grant)}" + (f", last {local_time(grant.used_at)}" if grant.used_at else ""))
    anchor, bringer = grant.anchor, grant.signed_by
    out.line(f"signed  by {anchor} at {local_time(grant.signed_at)}, brought by {bringer}")
    if grant.terms.reason:
        out.line(f"reason  {grant.terms.reason}")
    for approval in grant.approvals:
        out.advice(f"call    interlock approvals show {approval[:8]}")


@verb(app, "sign")
def sign(
    invocation: Invocation,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The name of the tool.", autocompletion=tool_names)],
    *,
    who: Annotated[str, option("--who", "The caller, as interlock approvals names it.", "CALLER")],
    limits: GrantLimits,
    reason: Annotated[str | None, option("--reason", "Why; it is signed too.", "TEXT")] = None,
    key: KeyChoice,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: I have read what it lets pass.")] = False,
) -> None:
    """Sign a standing grant: calls of a tool by one caller run without being held, within limits.

    Calls with an argument that no option names are not covered. A grant ends with its time or its number of calls,
    when you revoke it, when the tool's definition changes, and when your key may no longer approve.

    Examples:
        interlock grants sign files.move --who client:me --below to=/srv --for 8h
        interlock grants sign greenhouse.water_beds --who local --max litres=5
        interlock grants sign mail.send --who local --one-of to=me,you --any text
    """
    from interlock.approvals.cli.signing import sign_drafted

    rules, seconds = tuple(limits.rules()), seconds_of(limits.time)
    wanted = grants_api.DraftGrant(tool=tool, who=who, rules=rules, calls=limits.calls, seconds=seconds, reason=reason)
    draft = invocation.node.call(grants_api.DRAFT_GRANT, body=wanted).as_(grants_api.GrantDraft)
    sign_drafted(invocation, draft, key, yes=yes)


@verb(app, "revoke")
def revoke(invocation: Invocation, id: Reference) -> None:
    """Revoke a grant. From now on its calls are held again; it takes no signature.

    Examples:
        interlock grants revoke 7e57ab1e
        interlock grants revoke 7e57ab1e --json
    """
    if (grant := invocation.call_or_print(grants_api.REVOKE_GRANT, id=id)) is not None:
        passed = f"it let {count(grant.used, 'call')} of {grant.terms.tool} pass"
        invocation.out.line(f"{grant.terms.id[:8]} {grant.over or ''}; {passed}")


def _uses(grant: grants_api.Grant) -> str:
    return str(grant.used) if grant.terms.calls is None else f"{grant.used} of {grant.terms.calls}"

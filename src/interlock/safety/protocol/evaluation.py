"""The evaluation of what an agent reports: its hint, the autonomy policy, and the five stages (8.6.3, 8.7.2, 8.7.4).

The hint is an agent's prose, in any script and spelling. `read_hint` returns the normalized text, the described action
without text that is only quoted, the words of that action, and every name in it that could be called. All processing
takes linear time.

The policy determines what an agent may do without approval: step limit, risk tolerance, patterns and enabled stages.

`evaluate` evaluates a reported step, and `evaluate_call` the call that follows it. The result is whether the agent
continues, pauses, must be verified or is stopped, with the reason and one factor for each stage. The first stage that
pauses or stops the agent ends the evaluation. Factors and reasons do not reveal any pattern, so that an agent cannot
learn how to phrase hints to avoid them. The result is sent to the agent as an AutonomyDirective (8.7.1) with
notifications (8.7.3).
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Any, Final, Literal

import msgspec

HINT_CHARS_MIN: Final = 8  # AQL-8.6.3-6
HINT_CHARS_MAX: Final = 10_000  # a person may have to read it
NORMAL_CHARS_MAX: Final = 2 * HINT_CHARS_MAX  # of a normal text; one character may stand for 18
EXAMPLE: Final = "calling write_file on project/config.json to update database URL"

# Letters that look like others (a selection of Unicode TS 39), after compatibility decomposition and case folding.
_LOOKALIKE: Final = str.maketrans(
    {
        **dict(zip("аеорсухіјѕһԁԛԝӏвкмнтгпьɑɡıʟᴏᴄᴠᴡᴢꞁ", "aeopcyxijshdqwlbkmhtrnbagilocvwzl", strict=True)),
        **dict(zip("αερονικτυχωγηβμσ", "aepoviktuxwynbuo", strict=True)),
        **dict(zip("օսոհցզքէյլռաբ", "ounhgqpejlnub", strict=True)),
        **dict(zip("‘’‚‛“”„‟«»", '\'\'\'\'""""""', strict=True)),
    }
)
_FILLERS: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800")  # letters and symbols that show nothing
_DROPPED: Final = frozenset({"Mn", "Me", "Cf", "Cs", "Co", "Cn"})  # marks above letters, and what shows nothing

_CAMEL: Final = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPACE: Final = re.compile(r"\s+")
_JOINTS: Final = re.compile(r" ?_[_ ]*")
_SPELLED: Final = re.compile(r"(?<![^\W_])(?:[^\W_] ){2,}[^\W_](?![^\W_])")  # "d r o p"
_QUOTED: Final = re.compile(r'"[^"]*"|(?<![^\s(=:])\'[^\']*\'(?![^\W_])')
_WORDS: Final = re.compile(r"[^\W_]+")
_NAMES: Final = re.compile(r"[^\s\"'`()<>{}\[\],;]+")
_EDGES: Final = ".:!?*"

# Who runs what it quotes has not only mentioned it.
_RUNNING: Final = frozenset(
    {"execute", "run", "call", "invoke", "perform", "shell", "command", "bash", "sh", "zsh", "powershell", "cmd"}
    | {"exec", "eval", "sql", "script", "sudo"}
)


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    text: str  # the whole, normal
    actions: tuple[str, ...]  # the spellings that patterns are tried on, without what is only quoted
    words: tuple[str, ...]  # of the action; "drop_tableUsers" has three
    names: frozenset[str]  # what could be the name of something to call, without what is only quoted


def normalise(text: str, *, split: bool = False) -> str:
    """Return a text in normalized form, so that differences in spelling cannot hide its meaning.

    This removes differences in compatibility forms, case, marks, invisible characters, lookalikes, dashes and white
    space. With `split`, the parts of a word such as camelCase are first separated by an underscore. Some characters
    expand to many: a text that exceeds NORMAL_CHARS_MAX is cut off there, and callers must refuse it.
    """
    plain = "".join(islice(_plain_characters(text), NORMAL_CHARS_MAX + 1))
    if split:
        plain = _CAMEL.sub("_", plain)
    folded = unicodedata.normalize("NFKC", plain.casefold().translate(_LOOKALIKE)).casefold()
    return _JOINTS.sub("_", _SPACE.sub(" ", folded)).strip()


def _plain_characters(text: str) -> Iterator[str]:
    """Yield the normalized characters of a text.

    Each character is decomposed separately, because sorting a long run of combining marks takes quadratic time.
    """
    for written in text:
        if written.isascii():
            yield written if written >= " " and written != "\x7f" else " "
            continue
        for character in unicodedata.normalize("NFKD", written):
            category = unicodedata.category(character)
            if category in _DROPPED or unicodedata.combining(character) or character in _FILLERS:
                continue
            if category == "Pd" or character == "\u2212":
                yield "-"
            elif category == "Pc":
                yield "_"
            elif category[0] == "Z" or category == "Cc":
                yield " "
            else:
                yield character


def read_hint(written: str) -> Hint:
    whole, parted = normalise(written), normalise(written, split=True)
    # Quoted text is only an argument if the rest of the hint names an action, and that action does not run the text.
    rest = _WORDS.findall(_QUOTED.sub(" ", parted))
    is_mentioned = len(rest) > 1 and not any(stem in _RUNNING for word in rest for stem in stems(word))
    spellings = [_QUOTED.sub('""', each) if is_mentioned else each for each in (whole, parted)]
    spellings += [_SPELLED.sub(lambda match: match.group().replace(" ", ""), each) for each in spellings]
    actions = tuple(dict.fromkeys(spellings))
    words = tuple(dict.fromkeys(word for action in actions for word in _WORDS.findall(action)))
    # AQL-X-17: what the patterns are not tried on is not granted either
    names = frozenset(name for each in _NAMES.findall(actions[0]) for name in (each, each.strip(_EDGES)) if name)
    return Hint(text=whole, actions=actions, words=words, names=names)


# Of the arguments of one call, so that looking at them takes some milliseconds at most.
RUN_KEYS_MAX: Final = 1_000  # different keys
RUN_VALUES_MAX: Final = 10_000  # objects, lists, and strings that are run


def has_words(text: str, written: str) -> bool:
    """Return whether a normalized text contains the whole phrase `written`, beginning and ending at word boundaries."""
    return re.search(f"(?<![^\\W_]){re.escape(normalise(written))}(?![^\\W_])", text) is not None


_RUN_NAMES: Final = _RUNNING | {"code", "statement", "argv", "program", "python", "javascript", "terminal"}


def runs_text(name: str) -> bool:
    """Return whether the name of a tool or of an argument says that it runs text as code, such as `run_command` or
    `sql`.
    """
    return any(stem in _RUN_NAMES for word in _WORDS.findall(normalise(name, split=True)) for stem in stems(word))


def find_run_text(names: Iterable[str], arguments: Any) -> str | None:
    """Return the text that a call runs as code or as a command. If the name of the tool says that it runs text, these
    are all strings in the arguments, otherwise those under a key that says so. Return None if there is too much text to
    judge.

    Other arguments are content, like quoted text in a hint.
    """
    runs_by_name = {name: runs_text(name) for name in names}
    pieces: list[str] = []
    left, values, waiting = HINT_CHARS_MAX, RUN_VALUES_MAX, [(arguments, any(runs_by_name.values()))]
    while waiting:
        value, is_run = waiting.pop()
        values -= 1
        if isinstance(value, str):
            left -= len(value)
            pieces.append(value)
        if left < 0 or values < len(waiting):
            return None
        if isinstance(value, list):
            waiting += [(item, is_run) for item in reversed(value) if isinstance(item, _judged(is_run))]
        elif isinstance(value, dict):
            for key in value:
                if key not in runs_by_name:
                    if len(runs_by_name) >= RUN_KEYS_MAX:
                        return None
                    runs_by_name[key] = runs_text(key)
            is_run = is_run or any(runs_by_name[key] for key in value)
            # A program comes before its arguments, in whatever order they were sent.
            ordered = sorted(value, key=lambda key: not runs_by_name[key])
            waiting += [(value[key], is_run) for key in reversed(ordered) if isinstance(value[key], _judged(is_run))]
    return " ".join(pieces)


def _judged(is_run: bool) -> tuple[type, ...]:
    return (str, list, dict) if is_run else (list, dict)


def stems(word: str) -> tuple[str, ...]:
    """Return the base forms that a word may be an inflection of, such as delete for deleting or drop for dropped."""
    forms = [word]
    for ending in ("ing", "ed", "es", "s", "d"):
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            stem = word[: -len(ending)]
            forms.append(stem)
            if ending in ("ing", "ed"):
                forms.append(stem + "e")
                if len(stem) > 2 and stem[-1] == stem[-2]:
                    forms.append(stem[:-1])
    return tuple(forms)


def find_hint_fault(written: str, is_known: Callable[[str], bool]) -> str | None:
    """Return why the text with which an agent reports a step is too short or too long to be evaluated, or None if it is
    acceptable.

    `is_known` returns whether a normalized name is one that can be called.
    """
    text = normalise(written)
    if len(text) > NORMAL_CHARS_MAX:
        return f"written out it has more than {NORMAL_CHARS_MAX} characters"
    if not text:
        return f"describe the action you intend, for example: {EXAMPLE}"
    if " " not in text:  # AQL-8.6.3-6
        if is_known(text):
            return None
        return f"one word says too little of an action; for example: {EXAMPLE}"
    if len(text) < HINT_CHARS_MIN:  # AQL-8.6.3-6
        return f"{HINT_CHARS_MIN} characters or more are needed to judge an action; for example: {EXAMPLE}"
    return None


# Glob patterns over hints and names (8.7.2, stage 3): `*`, `?` and `[...]`, in time linear in the text.
#
# A pattern of deny or requiresApproval is looked for from every word start, because hints are prose; without a star
# at its end it ends where a word ends. One of autoApprove has to be the whole text. Words are parted by anything that
# is neither letter nor digit: `drop_*` finds "calling drop_table", and `force` finds "force_push" and not
# "enforcement".

PATTERN_CHARS_MAX: Final = 200

_WORD_START: Final = r"(?<![^\W_])"
_WORD_END: Final = r"(?![^\W_])"


class Pattern:
    """A compiled glob. The parts between its stars have a fixed length. Matching searches for each part after the place
    where the part before it was found.

    A part is an atomic group, which is matched once and never tried elsewhere, so that matching takes linear time.
    """

    __slots__ = ("_found", "_whole", "text")

    def __init__(self, text: str) -> None:
        """Compile a pattern. Raise ValueError with the reason if it is invalid."""
        self.text = text
        written = _parts(text)
        first, *rest = ("".join(map(_expression, part)) for part in written)
        head = _WORD_START if written[0][:1] and written[0][0][0].isalnum() else ""
        tail = _WORD_END if written[-1][-1:] and written[-1][-1][-1].isalnum() else ""
        bounded = [head + first, *rest]
        bounded[-1] += tail
        self._found = re.compile("".join(f"(?>.*?{part})" for part in bounded), re.DOTALL)
        between = "".join(f"(?>.*?{part})" for part in rest[:-1])
        last = f".*?{rest[-1]}" if rest else ""
        self._whole = re.compile(f"{first}{between}{last}\\Z", re.DOTALL)

    def is_found_in(self, text: str) -> bool:
        """Return whether the pattern occurs in a normalized text, starting at a word boundary."""
        return self._found.match(text) is not None

    def is_whole(self, text: str) -> bool:
        """Return whether the pattern matches an entire normalized text."""
        return self._whole.match(text) is not None


def _parts(text: str) -> list[list[str]]:
    """Return the parts between the stars of a glob, each as its characters and sets of characters."""
    if not text.strip():
        raise ValueError("a pattern must not be empty")
    if len(text) > PATTERN_CHARS_MAX:
        raise ValueError(f"a pattern has at most {PATTERN_CHARS_MAX} characters")
    lead, trail = " " if text[0] == " " else "", " " if text[-1] == " " else ""
    parts: list[list[str]] = [[]]
    for piece in re.findall(r"\[[^\]]*\]|.", f"{lead}{normalise(text)}{trail}", re.DOTALL):
        if piece == "[":
            raise ValueError("a '[' in a pattern needs its ']'")
        if piece == "*":
            parts.append([])
        else:
            parts[-1].append(piece)
    # Neighbouring stars are one; a pattern keeps its first and last part, which may be empty.
    return [parts[0], *filter(None, parts[1:-1]), *parts[1:][-1:]]


def _expression(piece: str) -> str:
    """Return the regular expression of one piece of a glob: a character, `?` or a set of characters."""
    return "." if piece == "?" else _set(piece[1:-1]) if piece[1:] else re.escape(piece)


def _set(members: str) -> str:
    negated = members[:1] in ("!", "^")
    members = members[1:] if negated else members
    if not members:
        raise ValueError("'[]' in a pattern names no character")
    escaped = "".join(re.escape(each) if each in "\\]^[" else each for each in members)
    try:
        re.compile(f"[{escaped}]")
    except re.error:
        raise ValueError(f"[{members}] in a pattern is no set of characters") from None
    return f"[{'^' if negated else ''}{escaped}]"


Mode = Literal["disabled", "logging", "monitoring", "enforcing"]
Tolerance = Literal["conservative", "moderate", "aggressive"]

STEPS_DEFAULT: Final = 25
STAGES: Final = (1, 2, 3, 4, 5)  # the first is always on (8.7.5)
# The examples of 8.7.2. `force` is a whole word here: an agent that writes of "enforcement" forces nothing.
DENY: Final = ("drop_*", "delete_all*", "rm -rf*")
REQUIRES_APPROVAL: Final = ("delete_*", "force", "deploy_*", "git push*")
AUTO_APPROVE: Final = ("read_*", "list_*", "get_*", "search_*")


class AutonomyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    max_autonomous_steps: int = STEPS_DEFAULT
    risk_tolerance: Tolerance = "moderate"
    deny: tuple[str, ...] = DENY
    requires_approval: tuple[str, ...] = REQUIRES_APPROVAL
    auto_approve: tuple[str, ...] = AUTO_APPROVE
    stages: tuple[int, ...] = STAGES
    tolerance_relaxes_confirm: bool = False
    preapproved: bool = False


class CompiledPolicy:
    """The autonomy policy of an agent with compiled patterns. Creating it raises ValueError for an invalid pattern."""

    __slots__ = ("auto_approve", "deny", "policy", "requires_approval")

    def __init__(self, policy: AutonomyPolicy) -> None:
        self.policy = policy
        self.deny = tuple(Pattern(text) for text in policy.deny)
        self.requires_approval = tuple(Pattern(text) for text in policy.requires_approval)
        self.auto_approve = tuple(Pattern(text) for text in policy.auto_approve)


# The risk of an action (8.7.2, stages 4 and 5): a score from 0 to 100, its tier, and the tolerance of an agent.
#
# The score is a pure function of the words of the action and of what is known of the danger of the operation it
# names. A word that means more harm raises it, nothing lowers it; an action in which nothing is recognised scores
# UNRECOGNISED.

SCORES: Final = (10, 25, 50, 75, 95)  # by danger level: safe, reversible, destructive, dangerous, forbidden
UNRECOGNISED: Final = 30
SCORE_MAX: Final = 100


class Tier(Enum):
    """Class of a risk score, which decides whether an agent continues, waits for a person or is blocked (8.7.2)."""

    ADVISORY = "advisory"
    CONFIRM = "confirm"
    VERIFY = "verify"
    DANGER_ZONE = "danger_zone"


_TIERS: Final = ((30, Tier.ADVISORY), (60, Tier.CONFIRM), (85, Tier.VERIFY), (SCORE_MAX, Tier.DANGER_ZONE))
TOLERANCES: Final = {"conservative": 25, "moderate": 50, "aggressive": 75}

_VERBS: Final = (
    "read get list search find show view fetch look check count describe inspect summarise summarize introspect open",
    "write create add update set edit insert send post put upload move rename copy append save change call make",
    "delete remove revoke overwrite uninstall kill terminate disable unlink detach discard erase merge publish pay buy",
    "force purge drop override bypass permanently sudo truncate chmod chown transfer",
    "destroy wipe shred mkfs nuke obliterate",
)
DANGER_BY_WORD: Final = {word: level for level, words in enumerate(_VERBS) for word in words.split()}


class Risk(msgspec.Struct, frozen=True):
    """Risk of an action: a score from 0 to 100, and the word or assessment that caused the score."""

    score: int
    why: str
    is_clamped: bool = False

    @property
    def tier(self) -> Tier:
        return next(tier for limit, tier in _TIERS if self.score <= limit)


def whole_score(score: float) -> tuple[int, bool]:
    """Round a score up to an integer and clamp it to the range 0 to 100. Return it, and whether it
    had to be clamped.
    """
    if math.isnan(score):
        return SCORE_MAX, True
    if not 0 <= score <= SCORE_MAX:
        return (0, True) if score < 0 else (SCORE_MAX, True)
    return math.ceil(score), False


def risk_of(words: Iterable[str], *, danger: int | None = None, also: float = 0.0) -> Risk:
    """Return the risk of an action that is described by `words`.

    `danger` is the declared danger level of the operation, or None. `also` is a score from another assessment, which
    can only raise the result.
    """
    level, word = max(
        ((DANGER_BY_WORD[stem], each) for each in words for stem in stems(each) if stem in DANGER_BY_WORD),
        key=lambda pair: pair[0],
        default=(-1, ""),
    )
    score, why = (SCORES[level], f'"{word}"') if level >= 0 else (UNRECOGNISED, "nothing in it is recognised")
    if danger is not None and (level < 0 or SCORES[danger] > score):
        score, why = SCORES[danger], "the danger level of the operation"
    other_score, is_clamped = whole_score(also)
    if other_score > score:
        score, why = other_score, "another assessment"
    return Risk(score, why, is_clamped)


LIMIT_REASON: Final = "Step limit exceeded"
StepOutcome = Literal["success", "failure", "skipped"]
READ_ONLY: Final = 0  # the danger level of what changes nothing

_SEVERAL: Final = re.compile(r"[;&|<>$`]|\b(?:and|then)\b")  # an action with more behind it


class StepVerdict(Enum):
    """Result of an evaluation: whether the agent may continue."""

    CONTINUE = "continue"
    PAUSE = "pause"
    VERIFY = "verify"
    STOP = "stop"


_NEEDS_APPROVAL: Final = "This action needs the approval of a person."
_TOO_DANGEROUS: Final = "This action is too dangerous. The agent is blocked until a person verifies it."
_BY_TIER: Final[Mapping[Tier, tuple[StepVerdict, str | None]]] = {
    Tier.ADVISORY: (StepVerdict.CONTINUE, None),
    Tier.CONFIRM: (StepVerdict.PAUSE, _NEEDS_APPROVAL),
    Tier.VERIFY: (StepVerdict.VERIFY, "This action waits until a person verifies it with a code."),
    Tier.DANGER_ZONE: (StepVerdict.STOP, _TOO_DANGEROUS),
}


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of evaluating a step: whether the agent may continue, the reason, and one factor for each stage that was
    evaluated.
    """

    verdict: StepVerdict
    factors: tuple[str, ...]
    reason: str | None = None
    risk: Risk | None = None  # where stage 4 ran
    stage: int = 0  # that ended it; 0: all were passed
    steps_remaining: int | None = None
    is_counted: bool = True  # against the step limit

    def or_stopped(self, reason: str) -> "Evaluation":
        """Return an evaluation that stops the agent for this reason. If this evaluation stops the agent already, return
        it unchanged.
        """
        if self.verdict is StepVerdict.STOP:
            return self
        factors = (*self.factors, "Stage 4: another assessment stops it")
        return msgspec.structs.replace(self, verdict=StepVerdict.STOP, reason=reason, stage=4, factors=factors)


def evaluate(
    compiled: CompiledPolicy,
    hint: Hint,
    *,
    steps: int,
    outcome: StepOutcome | None = None,
    also: float = 0.0,
) -> Evaluation:
    """Evaluate the step that an agent reports, in the stages of its policy, and return the result.

    `steps` is the number of steps before this one, and `outcome` is the result of the previous step. `also` is a risk
    score from another assessment.
    """
    policy = compiled.policy
    # A hint is approved automatically if a pattern matches all of it and it describes no further or risky action.
    is_read = (
        3 in policy.stages
        and any(pattern.is_whole(hint.text) for pattern in compiled.auto_approve)
        and not _SEVERAL.search(hint.actions[0])
        and risk_of(hint.words).score <= UNRECOGNISED
    )
    limit, number = policy.max_autonomous_steps, steps + (0 if is_read else 1)
    left = max(0, limit - number)  # AQL-8.7.2-2
    factors: list[str] = []

    def ended(verdict: StepVerdict, stage: int, reason: str, factor: str, risk: Risk | None = None) -> Evaluation:
        all_factors = (*factors, f"Stage {stage}: {factor}")
        return Evaluation(
            verdict=verdict, factors=all_factors, reason=reason, risk=risk, stage=stage, steps_remaining=left,
            is_counted=not is_read,
        )  # fmt: skip

    if number > limit:  # AQL-8.7.2-2
        return ended(StepVerdict.PAUSE, 1, LIMIT_REASON, f"step {number} is beyond the limit of {limit}")
    factors.append(f"Stage 1: step {number} of {limit}")
    if 2 in policy.stages and outcome is not None:
        if outcome == "failure":
            reason = "The previous step failed; tell your user, or the system you work for, before it is tried again."
            return ended(StepVerdict.PAUSE, 2, reason, "the previous step failed")
        factors.append(f"Stage 2: the previous step was reported as {outcome}")
    matched = _match(compiled, hint.actions) if 3 in policy.stages else None
    if matched is not None:
        return ended(matched.verdict, 3, matched.reason or "", matched.factors[0])
    if is_read:
        factors.append("Stage 3: approved automatically")
        return Evaluation(verdict=StepVerdict.CONTINUE, factors=tuple(factors), steps_remaining=left, is_counted=False)
    if 3 in policy.stages:
        factors.append("Stage 3: no pattern matches")
    risk = risk_of(hint.words, also=also)
    if 4 in policy.stages:
        judged = _judge(compiled, risk)
        if judged.verdict is not StepVerdict.CONTINUE:
            return ended(judged.verdict, 4, judged.reason or "", judged.factors[0], risk)
        factors.append(f"Stage 4: {judged.factors[0]}")
    if 5 in policy.stages:
        threshold = TOLERANCES[policy.risk_tolerance]
        if risk.score > threshold:
            reason = f"The risk of this action is above what a {policy.risk_tolerance} agent may take by itself."
            factor = f"risk {risk.score} is above {threshold} ({policy.risk_tolerance})"
            return ended(StepVerdict.PAUSE, 5, reason, factor, risk if 4 in policy.stages else None)
        factors.append(f"Stage 5: risk {risk.score} is within {threshold} ({policy.risk_tolerance})")
    return Evaluation(
        verdict=StepVerdict.CONTINUE,
        factors=tuple(factors),
        risk=risk if 4 in policy.stages else None,
        steps_remaining=left,
    )


def evaluate_call(
    compiled: CompiledPolicy, names: Iterable[str], danger: int | None, run_text: str | None = ""
) -> Evaluation:
    """Evaluate the call that an agent makes, with stages 3 to 5 of its policy. `names` are all names of the called
    tool, and `run_text` is what `find_run_text` returned.
    """
    policy = compiled.policy
    texts = (*names, run_text) if run_text else tuple(names)
    forms = tuple(dict.fromkeys(form for text in texts for form in (normalise(text), normalise(text, split=True))))
    matched = _match(compiled, forms) if 3 in policy.stages else None
    if matched is not None:
        return matched
    if run_text is None and not {3, 4}.isdisjoint(policy.stages):
        factors = ("what the call runs is too much to be judged",)
        return Evaluation(verdict=StepVerdict.PAUSE, factors=factors, reason=_NEEDS_APPROVAL, stage=3)
    words = [word for form in forms for word in re.findall(r"[^\W_]+", form)]
    risk = Risk(10, "it changes nothing") if danger == READ_ONLY else risk_of(words, danger=danger)
    if 4 in policy.stages:
        judged = _judge(compiled, risk)
        if judged.verdict is not StepVerdict.CONTINUE:
            return judged
    if 5 in policy.stages and risk.score > TOLERANCES[policy.risk_tolerance]:
        reason = "Its risk is above the tolerance."
        return Evaluation(verdict=StepVerdict.PAUSE, factors=(f"risk {risk.score}",), reason=reason, stage=5)
    return Evaluation(verdict=StepVerdict.CONTINUE, factors=("The call is within the policy.",))


def _match(compiled: CompiledPolicy, texts: Iterable[str]) -> Evaluation | None:
    """Return the result of the first pattern list that matches one of the texts: deny, then requiresApproval. Return
    None if no pattern matches.
    """
    texts = tuple(texts)
    if any(pattern.is_found_in(text) for pattern in compiled.deny for text in texts):
        reason = "This action is denied. The agent is blocked until a person verifies it."
        return Evaluation(verdict=StepVerdict.STOP, factors=("a deny pattern matches",), reason=reason, stage=3)
    if any(pattern.is_found_in(text) for pattern in compiled.requires_approval for text in texts):
        factors = ("a pattern asks for approval",)
        return Evaluation(verdict=StepVerdict.PAUSE, factors=factors, reason=_NEEDS_APPROVAL, stage=3)
    return None


def _judge(compiled: CompiledPolicy, risk: Risk) -> Evaluation:
    policy = compiled.policy
    factor = f"risk {risk.score} ({risk.why}), tier {risk.tier.value}"
    verdict, reason = _BY_TIER[risk.tier]
    is_relaxed = policy.tolerance_relaxes_confirm and risk.score <= TOLERANCES[policy.risk_tolerance]
    if risk.tier is Tier.CONFIRM and is_relaxed:
        verdict, reason = _BY_TIER[Tier.ADVISORY]
    return Evaluation(verdict=verdict, factors=(factor,), reason=reason, risk=risk, stage=4)


class NotificationType(Enum):
    PERMISSION_PENDING = "permission_pending"
    AUTONOMY_PAUSE = "autonomy_pause"
    DANGER_ZONE = "danger_zone"
    STATUS = "status"
    ERROR = "error"


class Metadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    operation: str | None = None
    reason: str | None = None
    level: str | None = None
    verification_id: str | None = None


class AgentNotification(msgspec.Struct, frozen=True, omit_defaults=True):
    type: NotificationType
    message: str
    timestamp: str
    metadata: Metadata | None = None


class Directive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Reply to an agent's reported step. It tells the agent whether it may continue, and why."""

    continue_: bool = msgspec.field(name="continue")
    factors: tuple[str, ...]
    stopped: bool = False
    reason: str | None = None
    steps_remaining: int | None = None
    next_step_risk: str | None = None
    notifications: tuple[AgentNotification, ...] = ()

    def shown(self) -> dict[str, Any]:
        members: dict[str, Any] = msgspec.to_builtins(self)
        return members

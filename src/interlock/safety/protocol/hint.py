"""The hint of a reported step (8.6.3): an agent's prose, normalized for evaluation.

The input is the text that the agent wrote, in any script and spelling. The output is the normalized text, the described
action without text that is only quoted, the words of that action, and every name in it that could be called. All
processing takes linear time.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

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
    names: frozenset[str]  # whatever could be the name of something to call


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
    is_mentioned = _is_only_mentioned(parted)
    spellings = [_QUOTED.sub('""', each) if is_mentioned else each for each in (whole, parted)]
    spellings += [_SPELLED.sub(lambda match: match.group().replace(" ", ""), each) for each in spellings]
    actions = tuple(dict.fromkeys(spellings))
    words = tuple(dict.fromkeys(word for action in actions for word in _WORDS.findall(action)))
    names = frozenset(name for each in _NAMES.findall(whole) for name in (each, each.strip(_EDGES)) if name)
    return Hint(text=whole, actions=actions, words=words, names=names)


def _is_only_mentioned(text: str) -> bool:
    """Return whether quoted text is only an argument: `text`, the rest of the hint, names an action that does not run
    the quoted text.
    """
    rest = _WORDS.findall(_QUOTED.sub(" ", text))
    return len(rest) > 1 and not any(stem in _RUNNING for word in rest for stem in stems(word))


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
    """Return why a hint is too short or too long to be evaluated, or None if it is acceptable.

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

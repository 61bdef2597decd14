"""Does a newcomer find the file? Twelve questions, searched for by their own words.

The search knows nothing about the answers and has no synonyms. It takes the words of the question, leaves out the small
ones, reduces each to its stem, and looks for it in every module of src/interlock:

    in the path of the file              4 points
    in the first line of its docstring   3 points
    in the name of a function or class   2 points
    in any other docstring of the file   1 point

A word counts once for each of these, times how rare the word is: a word that every file has counts nothing. The file
with the most points is proposed first. For at least ten of the twelve questions that is the right file.

The answers were found by reading the code. `witness` is the code that answers the question, so that an answer that has
moved fails here instead of being searched for in vain.
"""

import ast
import functools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src" / "interlock"
RIGHT_MIN = 10
WEIGHTS = {"path": 4.0, "summary": 3.0, "names": 2.0, "docstrings": 1.0}


class Question(NamedTuple):
    text: str
    answer: str  # the path of the file, below src/interlock
    witness: str  # code in that file that does what the question asks about


QUESTIONS = [
    Question("Where is a held call released?", "gate/confirm.py", "release"),
    Question("Where is a heartbeat timeout handled?", "ax/protocol/registration/registrations.py", "class Liveness"),
    Question("Where is the verification code compared?", "safety/codes.py", "hmac.compare_digest("),
    Question("Where is a restricted participant blocked?", "rooms/protocol/enforcement.py", "privilege_violation"),
    Question("Where is a device frame's CRC computed?", "devices/protocol/framing.py", "def crc16"),
    Question("Where is a tool's name made client-safe?", "ax/protocol/names.py", "alias"),
    Question("Where is a bearer token checked?", "access/tokens.py", "class TokenRegistry"),
    Question("Where is the list of the guard's checks?", "guard/checks.py", "class "),
    Question("Where is a registry entry's status change judged?", "names/protocol/entry.py", "class EntryMove"),
    Question("Where is the audit record of a call written?", "core/recorder.py", "class Recorder"),
    Question("Where is a new kind of server added?", "drivers/protocol/kinds.py", "SERVERS"),
    Question("Where is a metric defined?", "core/metrics.py", "def counter"),
]

_SMALL_WORDS = (
    "a an and are at by for how in is it its made new of on or s that the their this to what where which who why with"
)
SMALL_WORDS = frozenset(_SMALL_WORDS.split())
_ENDINGS = ("ations", "ation", "ingly", "ings", "ing", "ies", "ied", "ers", "er", "ed", "es", "s", "e", "y")


class Module(NamedTuple):
    """The words of a module, by place; each as stems."""

    path: str
    places: dict[str, frozenset[str]]


def stem(word: str) -> str:
    """Cut the ending off a word, so that `checks`, `checked` and `checking` are one."""
    word = {"written": "write"}.get(word, word)
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def words(texts: Iterable[str]) -> frozenset[str]:
    """Return the stems of all words, of names in any spelling too: `HeldCall`, `held_call`, `held-call`."""
    spelled = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", " ".join(texts)).replace("_", " ")
    return frozenset(stem(word) for word in re.findall(r"[a-z0-9]+", spelled.lower()) if word not in SMALL_WORDS)


def read(path: str, text: str) -> Module:
    tree = ast.parse(text)
    definitions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    summary, _, rest = (ast.get_docstring(tree) or "").partition("\n")
    return Module(
        path,
        {
            "path": words([path.removesuffix(".py").replace("/", " ")]),
            "summary": words([summary]),
            "names": words(node.name for node in definitions),
            "docstrings": words([rest, *(ast.get_docstring(node) or "" for node in definitions)]),
        },
    )


@functools.cache
def modules() -> tuple[Module, ...]:
    paths = sorted(SOURCES.rglob("*.py"))
    return tuple(read(path.relative_to(SOURCES).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


def search(question: str, among: Sequence[Module]) -> list[tuple[float, str]]:
    """Return the points and the path of every module, best first."""
    asked_for = words([question])
    holding = {
        word: sum(any(word in place for place in module.places.values()) for module in among) for word in asked_for
    }
    rarity = {word: math.log(len(among) / number) for word, number in holding.items() if number}

    def points(module: Module) -> float:
        return sum(
            weight * rarity[word]
            for place, weight in WEIGHTS.items()
            for word in rarity
            if word in module.places[place]
        )

    return sorted(((points(module), module.path) for module in among), key=lambda hit: (-hit[0], hit[1]))


def is_right(question: Question, among: Sequence[Module]) -> bool:
    return search(question.text, among)[0][1] == question.answer


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_the_answer_is_where_the_code_is(question: Question) -> None:
    assert question.witness in (SOURCES / question.answer).read_text(encoding="utf-8")


def test_the_first_file_that_the_search_proposes_is_right_for_ten_of_twelve() -> None:
    assert len(QUESTIONS) == 12
    wrong = [
        f"{question.text} leads to {search(question.text, modules())[:3]}, not to {question.answer}"
        for question in QUESTIONS
        if not is_right(question, modules())
    ]
    assert len(QUESTIONS) - len(wrong) >= RIGHT_MIN, "\n".join(wrong)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_a_file_without_name_and_docstrings_is_not_found(question: Question) -> None:
    silent = Module(question.answer, {place: frozenset() for place in WEIGHTS})
    assert not is_right(question, [silent if module.path == question.answer else module for module in modules()])


def test_one_word_in_all_its_forms_is_one_stem() -> None:
    assert len({stem(word) for word in ("check", "checks", "checked", "checking")}) == 1
    assert words(["HeldCall"]) == words(["held_calls"])

"""Does a newcomer find the file? Five questions, searched for as a stranger would, over file names and docstrings.

The search knows nothing about the answers. It takes the words of the question, leaves out the small ones, adds the
synonyms that an engineer would try, and looks for each word in the path of every module (as `find | grep` does) and
in the first line of its docstring. The right file must be the only best hit by its name and
first line, and its docstring must confirm every word.
"""

import ast
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src" / "interlock"

QUESTIONS = {
    "Where is the 401 retry towards a server?": "links/unauthorized_retry.py",
    "Who decides which process serves a tenant?": "drivers/provider/tenant_processes.py",
    "Where is the text for a missing credential?": "drivers/secrets/missing_credentials.py",
    "Why is a tool not listed?": "catalog/unlisted_tools.py",
    "Where are JWTs verified?": "crypto/keys/jwt_verification.py",
}

SMALL_WORDS = {
    "a",
    "an",
    "are",
    "decides",
    "for",
    "in",
    "is",
    "of",
    "the",
    "to",
    "towards",
    "which",
    "who",
    "why",
    "where",
}
PHRASES = {"not listed": "unlisted"}
SYNONYMS = {  # one table for all questions; a word is found where it or one of its synonyms is
    "401": ("unauthorized", "unauthorised"),
    "retry": ("resend", "again", "renewal"),
    "server": ("link", "upstream"),
    "process": ("instance", "worker"),
    "serve": ("server", "handle"),
    "tenant": ("isolation",),
    "text": ("message", "wording"),
    "missing": ("absent", "lack"),
    "credential": ("secret", "token", "login"),
    "unlisted": ("withheld", "hidden"),
    "listed": ("listing", "catalog"),
    "jwt": ("token", "jose"),
    "verified": ("verif", "signature"),
}


class Module(NamedTuple):
    path: str
    first_line: str


@functools.cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found.append(Module(path.relative_to(SOURCES).as_posix(), docstring.split("\n")[0]))
    return tuple(found)


def search_words(question: str) -> list[str]:
    text = question.lower()
    words = [word for phrase, word in PHRASES.items() if phrase in text]
    words += [_singular(word) for word in re.findall(r"\w+", text) if word not in SMALL_WORDS | {"not"}]
    return words


def _singular(word: str) -> str:
    return word.removesuffix("s") if not word.endswith("ss") else word


def hits(words: list[str], text: str) -> int:
    text = text.lower()
    return sum(any(spelling in text for spelling in (word, *SYNONYMS.get(word, ()))) for word in words)


def ranked(question: str, among: Sequence[Module]) -> list[tuple[int, int, str]]:
    """Hits in the path, hits in the docstring's first line, the path; best first."""
    words = search_words(question)
    scores = [(hits(words, module.path), hits(words, module.first_line), module.path) for module in among]
    return sorted(scores, key=lambda score: (-score[0], -score[1], score[2]))


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items())
def test_the_search_leads_to_the_file(question: str, answer: str) -> None:
    best, second, *_ = ranked(question, modules())
    assert best[2] == answer, f"{question} {search_words(question)} leads to {best[2]}"
    assert best[:2] > second[:2], f"{question} {search_words(question)} leads to {second[2]} as well"


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items())
def test_the_docstring_confirms_it(question: str, answer: str) -> None:
    found = {path: in_docstring for _, in_docstring, path in ranked(question, modules())}
    assert found[answer] == len(search_words(question))


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items())
def test_a_file_with_a_name_that_says_nothing_is_not_found(question: str, answer: str) -> None:
    renamed = [Module("node/parts.py", "") if module.path == answer else module for module in modules()]
    assert ranked(question, renamed)[0][2] != "node/parts.py"

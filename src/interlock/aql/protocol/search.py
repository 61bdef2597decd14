"""Search by words over operations or tools: BM25 with field weights (BM25F), in memory, with no network.

A document is some fields of text, each with a weight: a word in the name counts more than one in the description. The
index keeps one posting per word and document with its whole weight, so that a query is a sum over its words. Rare
words choose the candidates; a word that nearly all documents have only orders them. Documents with equal scores keep
their order. The first part of the module finds the names that a caller may have meant: the nearest of some names, also
across case, spelling and look-alike letters.
"""

import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest, nsmallest
from itertools import pairwise
from math import log
from typing import Final

from interlock.aql.protocol.model import WORD_BORDER, snake

KNOWN_MAX: Final = 300  # names that are looked through for pairs of letters; one takes some 2 us
COMPARED_MAX: Final = 20  # of these, the ones that are compared letter by letter; one takes some 100 us
NAME_CHARS_MAX: Final = 100
_LIKENESS: Final = 0.6
# Letters of other scripts that look like Latin ones (UTS 39), as far as names are made of them.
_LOOK_ALIKE: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb\u043a\u043c\u0442\u043d\u0432"
    "\u03b1\u03b5\u03bf\u03c1\u03c4\u03c5\u03b9\u03ba\u03bd\u0131\u0261\u00df",
    "aeopcyxijsdqwhkmthbaeoptuiknigb",
)


def folded(name: str) -> str:
    """Return a name without case, separators and look-alike letters, so that different spellings become equal."""
    plain = unicodedata.normalize("NFKD", name[:NAME_CHARS_MAX]).casefold().translate(_LOOK_ALIKE)
    return "".join(sign for sign in plain if sign.isascii() and sign.isalnum())


def nearest(name: str, candidates: Sequence[str], most: int = 3) -> list[str]:
    """Return the candidates that are most similar to a name, best first. Only the first KNOWN_MAX candidates are
    compared.
    """
    from difflib import get_close_matches  # here, because an idle node needs it for nothing

    form = folded(name)
    same = [each for each in candidates if folded(each) == form] if len(candidates) <= KNOWN_MAX else []
    written = snake(name[:NAME_CHARS_MAX])
    pairs = _pairs(written)
    likely = nlargest(COMPARED_MAX, candidates[:KNOWN_MAX], key=lambda each: len(pairs & _pairs(each)))
    close = get_close_matches(written, likely, n=most, cutoff=_LIKENESS)
    return list(dict.fromkeys((*same, *close)))[:most]


@lru_cache(4096)
def _pairs(name: str) -> frozenset[str]:
    return frozenset(map("".join, pairwise(name)))


def ranked(name: str, candidates: Iterable[str], most: int) -> list[str]:
    """Return the candidates that are most similar to a name, best first."""
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(b=snake(name[:NAME_CHARS_MAX]))

    def likeness(candidate: str) -> float:
        matcher.set_seq1(candidate)
        return matcher.ratio()

    return sorted(candidates, key=likeness, reverse=True)[:most]


def did_you_mean(unknown: Iterable[str], candidates: Sequence[str]) -> Mapping[str, str]:
    """Return the most similar candidate for each unknown name. Names without a similar candidate are left out."""
    nearest_names = {name: nearest(name, candidates, 1) for name in list(unknown)[:20]}
    return {name: near[0] for name, near in nearest_names.items() if near}


# The parameters of BM25, with the usual names.
K1: Final = 1.2  # how soon a repeated word stops raising the score
B: Final = 0.6  # how much the length of a text lowers its score
NAME_WEIGHT: Final = 3.0
PARAMETER_WEIGHT: Final = 0.6
TEXT_WEIGHT: Final = 1.0
TEXT_CHARS_MAX: Final = 1000  # of a description
WORDS_MAX: Final = 16  # of a query
BEGINNINGS_MAX: Final = 5  # words that begin with a searched word, if no document has that word itself
COMMON_MIN: Final = 4000  # documents with a word, above which it only orders candidates that another word found
CANDIDATES_MAX: Final = 500  # that common words order

_WORD: Final = re.compile(r"[a-z]+|[0-9]+|[^\W\d_]+")
_STOP: Final = frozenset(
    [
        *("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "is", "it", "its", "of", "on", "or"),
        *("that", "the", "this", "to", "with"),
    ]
)
_SYNONYMS: Final[Mapping[str, str]] = {"remove": "delete", "erase": "delete", "fetch": "get", "find": "search"}


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without plural endings. The most common words are left out."""
    result = []
    for word in _WORD.findall(WORD_BORDER.sub(" ", text).lower()):
        if word in _STOP:
            continue
        if len(word) > 3 and word[-1] == "s" and word[-2] not in "su":
            word = word[:-3] + "y" if word.endswith("ies") and len(word) > 4 else word[:-1]
        result.append(word)
    return result


def term_weights(name: str, text: str, parameters: Iterable[str] = ()) -> dict[str, float]:
    """Return the weight of each word of a document, not yet normalized by the document's length."""
    weights: dict[str, float] = {}
    for field, weight in (
        (name, NAME_WEIGHT),
        (text[:TEXT_CHARS_MAX], TEXT_WEIGHT),
        (" ".join(parameters), PARAMETER_WEIGHT),
    ):
        for word in words(field):
            weights[word] = weights.get(word, 0.0) + weight
    return weights


class SearchIndex:
    """An immutable search index over texts, which ranks them by the words of a query.

    It identifies documents by their position in the sequence passed to the constructor.
    """

    def __init__(self, documents: Sequence[Mapping[str, float]]) -> None:
        total = sum(sum(document.values()) for document in documents)
        average = total / len(documents) if documents and total else 1.0
        places: dict[str, array[int]] = {}
        shares: dict[str, array[float]] = {}
        for place, weights in enumerate(documents):
            drag = K1 * (1 - B + B * sum(weights.values()) / average)
            for word, weight in weights.items():
                if word not in places:
                    places[word], shares[word] = array("i"), array("d")
                places[word].append(place)
                shares[word].append(weight * (K1 + 1) / (weight + drag))
        count = len(documents)
        self._places = places
        self._words = sorted(places)
        self._shares = shares
        self._rarity = {
            word: log(1 + (count - len(positions) + 0.5) / (len(positions) + 0.5)) for word, positions in places.items()
        }
        self._best = {word: self._champions(word) for word, positions in places.items() if len(positions) > COMMON_MIN}

    def _champions(self, word: str) -> dict[int, float]:
        """Return the documents in which a very common word has the highest weights, with these weights."""
        pairs = zip(self._places[word], self._shares[word], strict=True)
        return dict(nsmallest(CANDIDATES_MAX, pairs, key=lambda pair: (-pair[1], pair[0])))

    def search(self, text: str, most: int) -> list[int]:
        """Return the positions of the best matching documents, best first."""
        query = list(dict.fromkeys(words(text[:TEXT_CHARS_MAX])))[:WORDS_MAX]
        query += [_SYNONYMS[word] for word in query if word in _SYNONYMS and _SYNONYMS[word] not in query]
        terms: list[str] = []
        for word in query:
            if word in self._places:
                terms.append(word)
            elif len(word) > 2:
                # No document contains the word itself: take a few indexed words that begin with it.
                first = bisect_left(self._words, word)
                terms += [each for each in self._words[first : first + BEGINNINGS_MAX] if each.startswith(word)]
        terms.sort(key=lambda word: len(self._places[word]))
        scores: dict[int, float] = {}
        for word in terms:
            rarity, best = self._rarity[word], self._best.get(word)
            places, shares = self._places[word], self._shares[word]
            if best is None:
                get = scores.get
                for place, share in zip(places, shares, strict=True):
                    scores[place] = get(place, 0.0) + share * rarity
                continue
            # A common word adds new candidates only if no other word matched any document.
            if not scores:
                scores = {place: share * rarity for place, share in best.items()}
                continue
            if len(scores) > CANDIDATES_MAX:
                leading = nsmallest(CANDIDATES_MAX, scores, key=lambda place: (-scores[place], place))
                scores = {place: scores[place] for place in leading}
            for place in scores:
                index = bisect_left(places, place)
                if index < len(places) and places[index] == place:
                    scores[place] += shares[index] * rarity
        return nsmallest(most, scores, key=lambda place: (-scores[place], place))

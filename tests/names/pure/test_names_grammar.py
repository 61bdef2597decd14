"""Which texts are surface names, prefixes, scopes and handles, and what a refused one is told."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.names.protocol.grammar import (
    Lookalikes,
    covers,
    find_name_fault,
    is_handle,
    is_lookalike,
    is_name,
    is_prefix,
    is_scope,
    length_warnings,
)

# The draft's section 4.2, as a parser: each rule takes a text and gives what may be left of it.
ALPHA, DIGIT = frozenset("abcdefghijklmnopqrstuvwxyz"), frozenset("0123456789")


def component(text: str) -> set[str]:
    """name-component = ALPHA *( ALPHA / DIGIT )"""
    if not text or text[0] not in ALPHA:
        return set()
    left = {text[1:]}
    rest = text[1:]
    while rest and (rest[0] in ALPHA or rest[0] in DIGIT):
        rest = rest[1:]
        left.add(rest)
    return left


def is_surface_name(text: str) -> bool:
    """surface-name = name-component *( "_" name-component )"""
    seen: set[str] = set()
    waiting = component(text)
    while waiting:
        seen |= waiting
        waiting = {end for each in waiting if each[:1] == "_" for end in component(each[1:])} - seen
    return "" in seen


@pytest.mark.req("REG-4.2-1")
@given(st.text(alphabet="ab1_A-", max_size=12))
def test_the_expression_and_the_abnf_agree(text: str) -> None:
    assert is_name(text) is is_surface_name(text)
    assert (find_name_fault(text) is None) is is_name(text)


@pytest.mark.req("REG-4.2-1")
@pytest.mark.parametrize("name", ["a", "a1", "a_b", "get2_b3", "org_alter_handbook"])
def test_surface_names_pass(name: str) -> None:
    assert find_name_fault(name) is None


@pytest.mark.req("REG-4.2-1", "REG-4.2-2", "REG-4.2-3")
@pytest.mark.parametrize(
    ("text", "offset", "said"),
    [
        ("", 0, "not empty"),
        ("_a", 0, "at least one letter"),
        ("a_", 1, "does not end"),
        ("a__b", 2, "at least one letter"),
        ("1a", 0, "begins with a letter"),
        ("a_1b", 2, "begins with a letter"),
        ("a1b_c2-d", 6, "a1b_c2_d would be"),
        ("A", 0, "a would be a surface name"),
        ("aB", 1, "ab would be"),
        ("é", 0, "U+00E9"),
        ("ａ", 0, "U+FF41"),
        ("аcme", 0, "U+0430"),  # the first letter is Cyrillic
        ("a\n", 1, "U+000A"),
        ("a\0", 1, "U+0000"),
        ("a-b", 1, "a_b would be"),
        ("a.b", 1, "register the last segment alone: b"),
        ("a/b", 1, "'/' is not allowed"),
        ("a:b", 1, "':' is not allowed"),
        ("a b", 1, "' ' is not allowed"),
    ],
)
def test_other_texts_are_refused_with_the_place_and_the_reason(text: str, offset: int, said: str) -> None:
    fault = find_name_fault(text)
    assert fault is not None
    assert (fault.code, fault.offset) == ("name_syntax", offset)
    assert said in fault.reason


@pytest.mark.req("REG-4.2-4")
def test_sixty_four_octets_pass_and_one_more_does_not() -> None:
    assert find_name_fault("a" * 64) is None
    assert [code for code, _ in length_warnings("a" * 64)] == ["ax_segment_overflow", "alias_budget"]
    assert [code for code, _ in length_warnings("a" * 48)] == ["alias_budget"]
    assert length_warnings("a" * 47) == ()
    fault = find_name_fault("a" * 65)
    assert fault is not None
    assert fault.code == "name_too_long"


@pytest.mark.req("REG-4.2-8")
@given(st.from_regex(r"[a-z][a-z0-9]{0,9}(_[a-z][a-z0-9]{0,5}){0,6}", fullmatch=True).filter(lambda n: len(n) <= 64))
def test_every_surface_name_is_a_name_for_clients_and_comes_back_from_an_alias(name: str) -> None:
    assert is_name(name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
    for separator in ("__", "_D_"):
        assert f"infra{separator}edge{separator}{name}".rpartition(separator)[2] == name


@pytest.mark.req("REG-3-5")
def test_a_prefix_counts_only_on_the_boundary_of_a_component() -> None:
    assert is_prefix("org_alter_") and is_prefix("a" * 62 + "_")
    assert not is_prefix("a" * 63 + "_")  # no name could begin so
    assert not any(is_prefix(text) for text in ("", "_", "org_alter", "org__", "1a_", "Org_", "org_1_", "a" * 64 + "_"))
    assert covers("org_alter_", "org_alter_ingest")
    assert not any(covers("org_alter_", name) for name in ("org_alterx", "org_alter", "org_alter_"))


@pytest.mark.req("REG-3-4")
def test_a_handle_begins_with_a_tilde_and_is_no_pronoun() -> None:
    assert is_handle("~acme")
    assert is_handle("~acme-labs")
    assert is_handle("~" + "a" * 32)
    assert not any(is_handle(text) for text in ("acme", "~", "~Acme", "~org", "~a-", "~" + "a" * 33, "~a\n"))


@pytest.mark.req("REG-4.1-6")
def test_a_scope_is_a_class_and_perhaps_its_tier() -> None:
    scopes = ("public", "member-recognition", "trust-tier:engineering", "~handle-signed-token")
    assert all(is_scope(text) for text in scopes)
    assert not any(
        is_scope(text) for text in ("", "Public", "a b", "a:", ":a", "a:b:c", "trust-tier:Engineering", "a\n")
    )


@pytest.mark.req("REG-5-8")
def test_names_that_read_alike_are_found() -> None:
    alike = [("search", "serach"), ("search", "searhc"), ("list_a", "lists_a"), ("model", "rnodel"), ("tool", "t001")]
    assert all(is_lookalike(one, other) and is_lookalike(other, one) for one, other in alike)
    assert not any(is_lookalike(*pair) for pair in (("search", "search"), ("search", "fetch"), ("ab_c", "cd_e")))


SIMILAR = st.text("ab", min_size=5, max_size=7)


@pytest.mark.req("REG-5-8", "REG-8.3-1")
@given(st.sets(SIMILAR, max_size=8), SIMILAR)
def test_a_near_miss_is_found_among_all_names_as_by_comparing_each(names: set[str], name: str) -> None:
    near = Lookalikes(names).near(name)
    alike = {other for other in names if is_lookalike(name, other)}
    assert near in alike if alike and name not in names else near is None

"""Are segments, local names, qualified names and aliases what MCP-AX 4.1 and our decisions on it say?"""

import hashlib
import random
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.ax.protocol.names import (
    WithheldName,
    alias,
    check_segment,
    is_qualified,
    is_segment,
    normalise,
    qualify,
    resolve_locals,
    withhold_colliding_aliases,
)


def unalias(text: str) -> str | None:
    """Return the qualified name whose alias is `text`, or None if `text` is no alias or a shortened one."""
    qualified = text.replace("_D_" if "D" in text else "__", ".")
    return qualified if len(text) <= 64 and is_qualified(qualified) and alias(qualified) == text else None


CLIENT_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")
SEGMENT_CHARACTERS = string.ascii_lowercase + string.digits + "_-"

segments = st.text(SEGMENT_CHARACTERS, min_size=1, max_size=63)
# Few distinct characters, so that "__", edge underscores and near misses of the separators are common.
awkward_segments = st.text("a_-", min_size=1, max_size=4)
long_segments = st.text(SEGMENT_CHARACTERS, min_size=30, max_size=63)
qualified_names = (
    st.lists(segments | awkward_segments | long_segments, min_size=2, max_size=6)
    .map(".".join)
    .filter(lambda name: len(name) <= 255)
)
tool_names = st.text(max_size=80) | st.text("aB_9/é", max_size=6)


@pytest.mark.req("AX-4.1-2")
@pytest.mark.parametrize("text", ["a", "0", "_", "-", "a" * 63, "stm32h7", "dma2d_status"])
def test_a_segment_may_be_1_to_63_characters_of_the_pattern(text: str) -> None:
    assert is_segment(text)
    assert check_segment(text) is None


@pytest.mark.req("AX-4.1-2")
@pytest.mark.parametrize(
    "text", ["", "a" * 64, "Jira", "a.b", "a b", "größe", "a\n", "\na", "a\x00", "٣", "ａ", "\ud800"]
)
def test_anything_else_is_no_segment_and_the_refusal_names_it(text: str) -> None:
    assert not is_segment(text)
    reason = check_segment(text)
    assert reason is not None
    assert ascii(text)[:60] in reason


@pytest.mark.parametrize("text", ["rooms", "names", "tools", "notifications_dropped"])
def test_reserved_segments_and_own_tools_cannot_be_assigned_although_they_fit_the_pattern(text: str) -> None:
    assert is_segment(text)
    assert text in (check_segment(text) or "")


@pytest.mark.req("AX-4.1-3")
@pytest.mark.parametrize(
    ("original", "local"),
    [
        ("createIssue", "create_issue"),
        ("HTTPGet", "http_get"),
        ("get/user", "get_user"),
        ("größe", "gr__e"),
        ("admin.tools.list", "admin_tools_list"),
        ("getHTTPSUrl2Go", "get_https_url2_go"),
        ("ABC", "abc"),
        ("tool\n", "tool_"),
        ("日本", "__"),
        ("\u212a", "_"),  # the Kelvin sign lower-cases to an ASCII k; it must not pass for one
        ("\ud800", "_"),
        ("already_valid-9", "already_valid-9"),
        ("__", "__"),
    ],
)
def test_odd_names_are_normalised(original: str, local: str) -> None:
    assert normalise(original) == local


@pytest.mark.req("AX-4.1-3")
def test_a_long_name_keeps_54_characters_and_8_digits_of_the_hash_of_the_original() -> None:
    original = "X" * 128
    assert normalise(original) == "x" * 54 + "_" + hashlib.sha256(original.encode()).hexdigest()[:8]
    assert len(normalise(original)) == 63
    assert is_segment(normalise("x" * 70 + "\ud800"))


@pytest.mark.req("AX-4.1-3")
def test_a_name_that_grows_beyond_63_by_its_boundaries_is_shortened_too() -> None:
    original = "aB" * 31
    assert len(original) == 62
    assert len(normalise(original)) == 63
    assert normalise("a" * 63) == "a" * 63


@given(tool_names)
def test_every_name_but_the_empty_name_becomes_a_segment_that_stays_the_same(original: str) -> None:
    local = normalise(original)
    assert is_segment(local) == (original != "")
    assert normalise(local) == local


@pytest.mark.req("AX-4.1-3")
@given(st.text("aB9_é.", max_size=140))
def test_normalising_follows_the_rule_read_word_by_word(original: str) -> None:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"([A-Z])(?=[A-Z][a-z])", r"\1_", original))
    plain = "".join(c if c in SEGMENT_CHARACTERS else "_" for c in spaced.lower())
    if len(plain) > 63:
        plain = plain[:54] + "_" + hashlib.sha256(original.encode()).hexdigest()[:8]
    assert normalise(original) == plain


def hashed(head: str, original: str) -> str:
    return f"{head}_{hashlib.sha256(original.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


@pytest.mark.req("AX-4.1-3")
def test_an_already_valid_name_stays_beside_rewritten_names_in_any_order() -> None:
    for originals in (["createIssue", "create_issue"], ["create_issue", "createIssue"]):
        resolution = resolve_locals(originals)
        given = {"create_issue": "create_issue", "createIssue": hashed("create_issue", "createIssue")}
        assert (resolution.local_names, resolution.withheld) == (given, ())


@pytest.mark.req("AX-4.1-3")
@pytest.mark.parametrize(
    ("names", "head"),
    [
        (["getUser", "GetUser"], "get_user"),
        (["Upper", "UPPER"], "upper"),
        (["日本", "中国"], "name"),
        (["größe", "grüße"], None),
        (["a b", "a/b", "a.b"], "a_b"),
        (["x" * 54 + "Ab", "x" * 54 + "aB"], None),
        (["\ud800", "\udfff"], "name"),
    ],
)
def test_rewritten_names_that_meet_all_carry_their_own_hash(names: list[str], head: str | None) -> None:
    for originals in (names, names[::-1]):
        resolution = resolve_locals(originals)
        assert resolution.withheld == ()
        assert list(resolution.local_names) == originals
        assert len(set(resolution.local_names.values())) == len(names)
        if head is not None:
            assert resolution.local_names == {name: hashed(head, name) for name in originals}


@pytest.mark.parametrize("unwritable", ["日本", "ｕｐｐｅｒ", "\u202e", "--", "...", " ", "\x00", "\ud800", "🔧" * 500])
def test_a_name_of_which_nothing_can_be_written_has_a_hash_that_depends_on_no_other(unwritable: str) -> None:
    if is_segment(unwritable):
        assert resolve_locals([unwritable]).local_names == {unwritable: unwritable}
        return
    alone = resolve_locals([unwritable]).local_names[unwritable]
    assert is_segment(alone) and alone.strip("_-0123456789abcdef")
    assert resolve_locals(["other", "中国", unwritable, "__", "🔧" * 499]).local_names[unwritable] == alone


def test_a_tool_named_like_a_hashed_alias_takes_no_name_from_others() -> None:
    taken = hashed("upper", "Upper")
    resolution = resolve_locals(["Upper", "UPPER", taken])
    assert resolution.local_names == {"UPPER": hashed("upper", "UPPER"), taken: taken}
    assert [one.name for one in resolution.withheld] == ["Upper"]


def test_a_name_listed_twice_is_withheld_and_keeps_its_place_taken() -> None:
    resolution = resolve_locals(["get_user", "list", "getUser", "get_user"])
    assert resolution.local_names == {"list": "list", "getUser": hashed("get_user", "getUser")}
    assert [one.name for one in resolution.withheld] == ["get_user"]
    assert "2 times" in resolution.withheld[0].reason


def test_an_empty_name_is_withheld() -> None:
    resolution = resolve_locals(["", "a"])
    assert resolution.local_names == {"a": "a"}
    assert resolution.withheld == (WithheldName(name="", reason="the name is empty"),)


def test_local_names_keep_the_order_of_the_list() -> None:
    assert list(resolve_locals(["zeta", "Alpha", "mid"]).local_names) == ["zeta", "Alpha", "mid"]


@pytest.mark.req("AX-4.1-3")
@given(st.lists(tool_names, max_size=12), st.randoms(use_true_random=False))
def test_a_list_resolves_alike_in_any_order_and_loses_no_name(originals: list[str], order: random.Random) -> None:
    shuffled = list(originals)
    order.shuffle(shuffled)
    one, other = resolve_locals(originals), resolve_locals(shuffled)
    assert one.local_names == other.local_names
    assert one.withheld == other.withheld
    assert set(one.local_names) | {w.name for w in one.withheld} == set(originals)
    assert set(one.local_names).isdisjoint(w.name for w in one.withheld)
    assert len(set(one.local_names.values())) == len(one.local_names)
    assert all(is_segment(local) for local in one.local_names.values())


def test_a_qualified_name_joins_the_segments() -> None:
    assert qualify(["infra", "edge", "stm32h7"], "dma2d_status") == "infra.edge.stm32h7.dma2d_status"
    assert qualify([], "notifications_dropped") == "notifications_dropped"


@pytest.mark.req("AX-4.1-4")
def test_a_qualified_name_of_255_characters_is_listed_and_a_name_of_256_is_withheld() -> None:
    above = ["a" * 63, "b" * 63, "c" * 63]
    fits = qualify([*above, "d" * 20], "e" * 42)
    assert isinstance(fits, str)
    assert len(fits) == 255
    assert is_qualified(fits)
    too_long = qualify([*above, "d" * 20], "e" * 43)
    assert isinstance(too_long, WithheldName)
    assert too_long.name == "e" * 43
    assert "256" in too_long.reason
    assert not is_qualified(fits + "e")
    assert not is_qualified("a..b") and not is_qualified("a.B")


@pytest.mark.req("AX-4.1-1")
@pytest.mark.parametrize("text", ["", ".", ".a", "a.", "a..b", "X.y", "a.b\n"])
def test_a_name_with_an_empty_or_invalid_segment_is_not_qualified(text: str) -> None:
    assert not is_qualified(text)


@pytest.mark.req("AX-3.2-5")
@pytest.mark.parametrize(
    ("qualified", "spelled"),
    [
        ("jira.create_issue", "jira__create_issue"),
        ("infra.edge.stm32h7.dma2d_status", "infra__edge__stm32h7__dma2d_status"),
        ("a.gr__e", "a_D_gr__e"),
        ("a._b", "a_D__b"),
        ("a_.b", "a__D_b"),
        ("_a.b", "_a_D_b"),
        ("a.b_", "a_D_b_"),
        ("a.__", "a_D___"),
        ("a._.b", "a_D___D_b"),
        ("notifications_dropped", "notifications_dropped"),
    ],
)
def test_an_alias_spells_the_dots_and_is_read_back(qualified: str, spelled: str) -> None:
    assert alias(qualified) == spelled
    assert unalias(spelled) == qualified


@pytest.mark.req("AX-3.2-5", "AX-C.3-2")
def test_a_long_alias_keeps_both_ends_around_a_hash_of_the_qualified_name() -> None:
    qualified = "a-server-with-a-long-name." + "t" * 50
    spelled = alias(qualified)
    digest = hashlib.sha256(qualified.encode()).hexdigest()[:10]
    assert spelled == "a-server-with-a-" + "_H" + digest + "_" + "t" * 35
    assert len(spelled) == 64


@pytest.mark.req("AX-3.2-5")
def test_an_alias_is_shortened_only_beyond_64_characters() -> None:
    assert alias("a." + "b" * 61) == "a__" + "b" * 61
    assert "_H" in alias("a." + "b" * 62)


@pytest.mark.req("AX-3.2-5")
@given(st.lists(qualified_names, max_size=10), st.randoms(use_true_random=False))
def test_aliases_are_client_safe_reversible_and_independent_of_order(names: list[str], order: random.Random) -> None:
    table = withhold_colliding_aliases(names)
    assert table.withheld == ()
    assert set(table.qualified_names.values()) == set(names)
    for spelled, name in table.qualified_names.items():
        assert CLIENT_SAFE.fullmatch(spelled)
        assert spelled == alias(name)
        assert unalias(spelled) == (None if "_H" in spelled else name)
    shuffled = list(names)
    order.shuffle(shuffled)
    assert withhold_colliding_aliases(shuffled).qualified_names == table.qualified_names


@pytest.mark.req("AX-3.2-5")
@given(st.text("ab_DH-.", max_size=70) | st.text(max_size=20))
def test_only_what_alias_would_write_is_read_back(text: str) -> None:
    name = unalias(text)
    assert name is None or (is_qualified(name) and alias(name) == text)


@pytest.mark.req("AX-3.2-5")
@pytest.mark.parametrize("text", ["a_D_b", "a_D_D_b", "a____b", "__a", "A__b", "a__B", "", "a.b__c", "a__" + "b" * 64])
def test_a_spelling_that_is_no_alias_is_refused(text: str) -> None:
    assert unalias(text) is None


@pytest.mark.req("AX-3.2-5")
def test_a_shortened_alias_with_a_wrong_hash_is_not_in_the_table() -> None:
    name = "a-server-with-a-long-name." + "t" * 50
    table = withhold_colliding_aliases([name]).qualified_names
    right = alias(name)
    wrong = right[:18] + ("0" if right[18] != "0" else "1") + right[19:]
    assert table.get(right) == name
    assert table.get(wrong) is None
    assert unalias(right) is None
    assert unalias(wrong) is None


def test_names_that_share_an_alias_are_all_withheld_and_the_others_stay() -> None:
    # The first 40 bits of the SHA-256 of these two are equal.
    one = "server-one-with-a-long-name.961783.a-local-name-long-enough-to-fill-the-tail"
    other = "server-one-with-a-long-name.1054524.a-local-name-long-enough-to-fill-the-tail"
    assert alias(one) == alias(other)
    for names in ([one, "jira.search", other], [other, one, "jira.search"]):
        table = withhold_colliding_aliases(names)
        assert table.qualified_names == {"jira__search": "jira.search"}
        assert [w.name for w in table.withheld] == sorted([one, other])
        assert all(alias(one) in w.reason for w in table.withheld)


def test_a_name_given_twice_does_not_collide_with_itself() -> None:
    assert withhold_colliding_aliases(["a.b", "a.b"]).qualified_names == {"a__b": "a.b"}

"""[aql]: what is refused at the start, by name, and which environment variables win."""

from pathlib import Path

import pytest

from interlock.config.load import load
from interlock.config.plan import Plan
from interlock.config.problems import ConfigInvalid


def read(folder: Path, text: str, env: dict[str, str] | None = None) -> Plan:
    file = folder / "interlock.toml"
    file.write_text(text)
    return load(file, env or {}, {"data": str(folder / "data")}).plan


@pytest.mark.req("AQL-3.3-3", "AQL-3.3-5", "AQL-C.mode-1", "AQL-C.token-7", "AQL-4.6.2-1", "AQL-C.map-3")
@pytest.mark.req("AQL-4.7.5-2", "AQL-4.7.5-3", "AQL-4.7.5-4", "AQL-4.7.5-5", "AQL-4.7.5-6")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[aql]\nmode = "both"', "semantic, single, all"),
        ('[aql]\nprofile = "nope"', "crude"),
        ('[aql]\nprofile = "mine"\nfamilies = { look = ["READ"] }', "no family takes CREATE"),
        ('[aql]\nfamilies = { Look = ["READ"] }', "Look"),
        ('[aql]\nfamilies = { a = ["READ", "op"], b = ["CREATE", "UPDATE", "DELETE", "EXECUTE", "op"] }', "'op'"),
        ("[aql]\nlimits = { request_bytes = 65535 }", "65536 to 10485760"),
        ("[aql]\nlimits = { request_bytes = 10485761 }", "65536 to 10485760"),
        ("[aql]\nlimits = { response_bytes = 1048575 }", "1048576 to 104857600"),
        ("[aql]\nlimits = { response_bytes = 104857601 }", "1048576 to 104857600"),
        ("[aql]\nlimits = { string_bytes = 10485761 }", "65536 to 10485760"),
        ("[aql]\nlimits = { array_elements = 100001 }", "100 to 100000"),
        ("[aql]\nlimits = { nesting_depth = 7 }", "8 to 64"),
        ("[aql]\nlimits = { string_bytes = 65535 }", "65536 to 10485760"),
        ("[aql]\nlimits = { array_elements = 99 }", "100 to 100000"),
        ("[aql]\nlimits = { nesting_depth = 65 }", "8 to 64"),
        ("[aql]\nlimits = { batch_operations = 1001 }", "1 to 1000"),
        ("[aql]\ndanger = { token_s = { forbidden = 301 } }", "1 to 300"),
        ("[aql]\ndanger = { token_s = { destructive = 901 } }", "1 to 900"),
        ("[aql]\ndanger = { token_s = { dangerous = 901 } }", "1 to 900"),
        ("[aql]\ndanger = { skew_s = 301 }", "0 to 300"),
        ('[aql]\ntool_prefix = "GitHub_"', "tool_prefix"),
        ('[aql]\ntool_prefix = "git-hub_"', "tool_prefix"),
        ('[aql]\ntool_prefix = "github"', "tool_prefix"),
        ('[aql]\ntool_prefix = "aaaaaaaaaaaaaaaaaaa_"', "tool_prefix"),
        ('[node]\nlisten = "0.0.0.0:7411"\n[auth]\nanonymous = "never"\n[aql]\nstrict_mode = false', "development"),
        ('[[tool]]\nmatch = "a.b"\naql = { name = "Bad-Name" }', "a-z"),
        ('[[tool]]\nmatch = "a.b"\naql = { category = "QUERY" }', "CREATE"),
        (
            '[[tool]]\nmatch = "a.b"\naql = { name = "one" }\n[[tool]]\nmatch = "c.d"\naql = { name = "one" }',
            "two entries of [[tool]] give the operation name 'one'",
        ),
        ('[[tool]]\nmatch = "a.b"\naql = { category = "UPDATE", read = "a__get" }', "'read' of aql is not available"),
        ("[aql]\nomit_empty = true", "omit_empty"),
        ('[mcp]\nsurface = "five"', "aql-single"),
    ],
)
def test_an_impossible_value_is_refused_with_the_choices(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


@pytest.mark.req("AQL-C.mode-1")
def test_the_environment_wins_and_the_older_word_is_taken(tmp_path: Path) -> None:
    env = {
        "MCP_AQL_ENDPOINT_MODE": "single",
        "MCP_AQL_ENDPOINT_PROFILE": "database",
        "MCP_AQL_TOOL_PREFIX": "github_",
    }
    plan = read(tmp_path, '[aql]\nmode = "all"\nprofile = "hardware"\n', env)
    assert (plan.aql.mode, plan.aql.profile, plan.aql.tool_prefix) == ("single", "database", "github_")
    assert read(tmp_path, '[aql]\nmode = "crude"\n').aql.mode == "semantic"
    for name, value in (
        ("MCP_AQL_ENDPOINT_MODE", "x"),
        ("MCP_AQL_ENDPOINT_PROFILE", "x"),
        ("MCP_AQL_TOOL_PREFIX", "x"),
    ):
        with pytest.raises(ConfigInvalid):
            read(tmp_path, "", {name: value})
    assert read(tmp_path, "").aql == read(tmp_path, '[aql]\nmode = "semantic"\n').aql


@pytest.mark.req("AQL-C.token-7")
def test_the_longest_lives_are_taken_and_a_large_skew_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "interlock.toml"
    lives = "token_s = { destructive = 900, dangerous = 900, forbidden = 300 }"
    for skew, warned in ((60, 0), (61, 1)):
        file.write_text(f"[aql]\ndanger = {{ skew_s = {skew}, {lives} }}\n")
        loaded = load(file, {}, {"data": str(tmp_path / "data")})
        assert (loaded.plan.aql.danger.skew_s, loaded.plan.aql.danger.token_s.dangerous) == (skew, 900)
        assert len([one for one in loaded.warnings if "skew_s" in one.message]) == warned

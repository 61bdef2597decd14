"""Which file, variable or flag a setting comes from, and what happens when there is none."""

import os
from pathlib import Path

import pytest
from tests.config.config_project import Project

from interlock.config.folders import config_folder, data_folder
from interlock.config.load import ConfigInvalid, load
from interlock.config.plan import Address, AxPlan, Dial, LimitsPlan, McpPlan, NodePlan, Spawn


def test_without_any_file_the_defaults_hold_and_a_warning_says_what_to_do(project: Project) -> None:
    loaded = project.load()
    assert loaded.paths == ()
    assert loaded.plan.servers == ()
    assert loaded.plan.node == NodePlan()
    assert loaded.plan.workspace == project.folder
    assert loaded.plan.data == project.home / ".local" / "share" / "interlock"
    (warning,) = loaded.warnings
    assert "interlock init" in str(warning)


def test_a_flag_beats_the_environment_beats_the_project_file_beats_the_user_file(project: Project) -> None:
    project.user_file.write_text('[node]\nname = "user"\nlisten = "127.0.0.1:1"\n[auth]\ntoken_days = 1\n')
    text = '[node]\nname = "file"\nlisten = "127.0.0.1:2"\npublic_url = "http://file"\n'
    env = {"INTERLOCK_NODE__NAME": "env", "INTERLOCK_NODE__LISTEN": "127.0.0.1:3"}
    loaded = project.load(text, env, {"node.name": "flag"})
    assert loaded.plan.node.name == "flag"
    assert loaded.plan.node.listen == Address("127.0.0.1", 3)
    assert loaded.plan.node.public_url == "http://file"
    assert loaded.plan.auth.token_days == 1
    assert loaded.paths == (project.file, project.user_file)
    assert project.load(text, {}, {}).plan.node.listen.port == 2


def test_servers_of_two_files_are_joined_and_a_server_of_both_is_the_project_files_alone(project: Project) -> None:
    project.user_file.write_text('[servers.a]\npypi = "user-a"\nargs = ["x"]\n[servers.b]\npypi = "user-b"\n')
    loaded = project.load('[servers.a]\nurl = "http://localhost/mcp"\n')
    servers = {server.segment: server.reach for server in loaded.plan.servers}
    assert servers["a"] == Dial(url="http://localhost/mcp")
    assert isinstance(servers["b"], Spawn)


def test_lists_of_entries_are_taken_whole_from_one_file(project: Project) -> None:
    project.user_file.write_text('[[tool]]\nmatch = "user"\n[[access]]\nwho = ["user"]\n')
    loaded = project.load('[[tool]]\nmatch = "file"\n')
    assert [rule.match for rule in loaded.plan.tools] == ["file"]
    assert [rule.who for rule in loaded.plan.access] == [("user",)]


def test_a_named_file_is_read_alone(project: Project) -> None:
    project.user_file.write_text('[node]\nname = "user"\n')
    project.file.write_text('[node]\nname = "file"\n')
    other = project.folder / "sub" / "other.toml"
    other.parent.mkdir()
    other.write_text("")
    for loaded in (
        load(Path("sub/other.toml"), project.env, {}),
        load(None, project.env | {"INTERLOCK_CONFIG": "sub/other.toml"}, {}),
        load(other, project.env | {"INTERLOCK_CONFIG": str(project.file)}, {}),
    ):
        assert loaded.paths == (other,)
        assert loaded.plan.node.name == "default"
        assert loaded.plan.workspace == other.parent


def test_the_variable_naming_the_file_may_start_at_home(project: Project) -> None:
    (project.home / "mine.toml").write_text('[node]\nname = "mine"\n')
    assert project.load(env={"INTERLOCK_CONFIG": "~/mine.toml"}).plan.node.name == "mine"


def test_a_named_file_that_is_missing_is_a_problem(project: Project) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(Path("none.toml"), project.env, {})
    (problem,) = refused.value.problems
    assert problem.file == "none.toml"
    assert "no such file" in problem.message
    assert "interlock init" in str(problem.hint)
    by_variable = project.problem(env={"INTERLOCK_CONFIG": "none.toml"})
    assert "INTERLOCK_CONFIG" in by_variable.message


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "file.toml/below"])
def test_a_path_that_cannot_exist_is_a_problem(project: Project, name: str) -> None:
    (project.folder / "file.toml").write_text("")
    with pytest.raises(ConfigInvalid):
        load(Path(name), project.env, {})


def test_a_folder_in_place_of_a_file_is_a_problem_that_names_the_file(project: Project) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(project.folder, project.env, {})
    assert str(project.file) in str(refused.value)


def test_a_file_that_is_there_and_cannot_be_read_is_a_problem_even_if_it_was_not_named(project: Project) -> None:
    project.file.symlink_to(project.file)
    problem = project.problem()
    assert problem.file == "interlock.toml"
    assert "cannot be read" in problem.message


def test_a_folder_of_settings_that_is_no_folder_holds_no_file(project: Project) -> None:
    (project.home / "flat").write_text("")
    assert project.load("", {"XDG_CONFIG_HOME": str(project.home / "flat")}).paths == (project.file,)


def test_a_configuration_that_is_no_regular_file_is_refused_at_once(project: Project) -> None:
    pipe = project.folder / "pipe"
    os.mkfifo(pipe)  # whoever opens it to read waits for a writer
    for path in (Path("/dev/zero"), pipe):
        with pytest.raises(ConfigInvalid) as refused:
            load(path, project.env, {})
        assert "is not a regular file" in str(refused.value)
        assert [one.hint for one in refused.value.problems] == ["write what it holds to a file, and name that"]


def test_a_current_folder_that_is_gone_is_a_problem(project: Project) -> None:
    gone = project.folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert "current folder" in project.problem().message


def test_values_of_every_kind_come_from_the_environment(project: Project) -> None:
    loaded = project.load(
        env={
            "INTERLOCK_WORKSPACE": "work",
            "INTERLOCK_DATA": "~/data",
            "INTERLOCK_NODE__NAME": "true",  # text stays text
            "INTERLOCK_NODE__LISTEN": "[::1]:80",
            "INTERLOCK_NODE__ORIGINS": '["https://a.example", "https://b.example"]',
            "INTERLOCK_MCP__LATENCY_META": "true",
            "INTERLOCK_MCP__SESSION_IDLE_S": "2.5",
            "INTERLOCK_AX": "{ list_ttl_s = 3, root_segment = 'r' }",
            "INTERLOCK_LIMITS__MESSAGE_BYTES": "1Mi",
            "INTERLOCK_LIMITS__CALLS_IN_FLIGHT": "7",
            "INTERLOCK_SERVERS__MY__TIME": '{ pypi = "mcp-server-time", args = ["--utc"] }',
            "INTERLOCK_TOOL": '[{ match = "a", hide = true }, { match = "b" }]',
            "INTERLOCK_STORE__BACKEND": "",  # as good as unset
        }
    )
    plan = loaded.plan
    assert plan.workspace == project.folder / "work"
    assert plan.data == project.home / "data"
    assert plan.node.name == "true"
    assert plan.node.listen == Address("::1", 80)
    assert plan.node.origins == ("https://a.example", "https://b.example")
    assert plan.mcp == McpPlan(latency_meta=True, session_idle_s=2.5)
    assert plan.ax == AxPlan(list_ttl_s=3, root_segment="r")
    assert plan.limits == LimitsPlan(message_bytes=1024 * 1024, calls_in_flight=7)
    assert [server.segment for server in plan.servers] == ["my__time"]
    assert [rule.hide for rule in plan.tools] == [True, False]
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("INTERLOCK_NODE__LISEN", "x", "unknown key 'lisen' in [node]; did you mean 'listen'?"),
        ("INTERLOCK_NOD__LISTEN", "x", "unknown table 'nod' at the top level; did you mean 'node'?"),
        ("INTERLOCK_MCP__LATENCY_META", "True", "is not a TOML value; for instance true"),
        ("INTERLOCK_NODE__ORIGINS", "https://a", 'is not a TOML value; for instance ["https://app.example.com"]'),
        ("INTERLOCK_NODE__ORIGINS", '[]\nx = "smuggled"', 'for instance ["https://app.example.com"]'),
        ("INTERLOCK_AUTH__TOKEN_DAYS", '"9"', "'token_days' in [auth] must be an integer, not a string"),
        ("INTERLOCK_AUTH__ANONYMOUS", "nobody", "must be one of loopback, never, any"),
        ("INTERLOCK_SERVERS__X", "http://a", 'for instance { "command" = '),
        ("INTERLOCK_TOOL", "5", "'tool' must be a list of tables, not an integer"),
        ("INTERLOCK_NODE", "5", "'node' must be a table, not an integer"),
        ("INTERLOCK_NODE__TLS_CERT", "a\udcffb", "'tls_cert' in [node] is not valid UTF-8"),
        ("INTERLOCK_LIMITS__CALLS_IN_FLIGHT", "[" * 5000, "is not a TOML value"),
    ],
)
def test_a_wrong_variable_is_a_problem_named_by_the_variable(
    project: Project, name: str, text: str, message: str
) -> None:
    problem = next(each for each in project.problems(env={name: text}) if each.file == f"environment variable {name}")
    assert message in str(problem)
    assert problem.line is None


def test_a_table_and_a_key_of_it_may_both_be_variables(project: Project) -> None:
    env = {"INTERLOCK_NODE": '{ name = "table" }', "INTERLOCK_NODE__PUBLIC_URL": "http://key"}
    node = project.load(env=env).plan.node
    assert (node.name, node.public_url) == ("table", "http://key")
    wrong_key = project.problem(env=env | {"INTERLOCK_NODE__LISTEN": "x"})
    assert wrong_key.file == "environment variable INTERLOCK_NODE__LISTEN"
    broken = {"INTERLOCK_NODE": "5", "INTERLOCK_NODE__PUBLIC_URL": "http://key"}
    assert "must be a table" in project.problem(env=broken).message


def test_a_likely_slip_in_a_variable_is_warned_of(project: Project) -> None:
    loaded = project.load("", {"INTERLOCK_NODE_LISTEN": "127.0.0.1:1", "INTERLOCK_WORKSPCE": "x"})
    assert [warning.hint for warning in loaded.warnings] == [
        "did you mean INTERLOCK_NODE__LISTEN?",
        "did you mean INTERLOCK_WORKSPACE?",
    ]


def test_variables_that_others_set_with_our_prefix_are_left_alone(project: Project) -> None:
    env = {
        "INTERLOCK_SERVICE_HOST": "10.0.0.1",
        "INTERLOCK_SERVICE_PORT": "7411",
        "INTERLOCK_PORT": "tcp://10.0.0.1:7411",
        "INTERLOCK_PORT_7411_TCP_ADDR": "10.0.0.1",
        "INTERLOCK_URL": "http://127.0.0.1:7412",
        "INTERLOCK_TOKEN": "ilo_x",
    }
    assert project.load("", env).warnings == ()


def test_a_wrong_flag_is_a_problem_of_the_command_line(project: Project) -> None:
    problems = project.problems(flags={"node.listen": "nowhere", "nod.x": "1", "mcp.latency_meta": "maybe"})
    assert {problem.file for problem in problems} == {"command line"}
    assert {problem.key for problem in problems} == {"node.listen", "nod", "mcp.latency_meta"}


def test_problems_of_a_weaker_source_count_even_where_a_stronger_source_wins(project: Project) -> None:
    assert project.problem("[node]\nname = 5\n", flags={"node.name": "fine"}).line == 2


def test_all_sources_are_checked_before_anything_is_reported(project: Project) -> None:
    project.user_file.write_text("= broken\n")
    problems = project.problems("[node]\nlisen = 1\n", {"INTERLOCK_NODE__NAME": "a b"}, {"auth.anonymous": "x"})
    assert [problem.file for problem in problems] == [
        str(project.user_file),
        "interlock.toml",
        "environment variable INTERLOCK_NODE__NAME",
        "command line",
    ]


def test_relative_paths_start_at_the_file_that_holds_them_and_a_tilde_at_home(project: Project) -> None:
    project.user_file.write_text('[node]\ntls_cert = "cert.pem"\n')
    loaded = project.load('workspace = "../other"\ndata = "~/d/../data"\n[node]\ntls_key = "/k.pem"\n')
    assert loaded.plan.node.tls_cert == project.user_file.parent / "cert.pem"
    assert loaded.plan.node.tls_key == Path("/k.pem")
    assert loaded.plan.workspace == project.folder.parent / "other"
    assert loaded.plan.data == project.home / "data"


def test_the_users_own_file_does_not_move_the_workspace_to_the_folder_of_settings(project: Project) -> None:
    project.user_file.write_text("")
    assert project.load().plan.workspace == project.folder


def test_another_persons_home_is_not_guessed(project: Project) -> None:
    assert "write the whole path" in str(project.problem('workspace = "~bob/x"\n'))


def test_standing_in_the_users_own_folder_reads_its_file_once(project: Project) -> None:
    os.chdir(project.user_file.parent)
    project.user_file.write_text("[node]\nlisen = 1\n")
    assert len(project.problems()) == 1


@pytest.mark.parametrize(
    ("platform", "env", "config", "data"),
    [
        ("linux", {}, "/h/.config/interlock", "/h/.local/share/interlock"),
        ("linux", {"XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "/d"}, "/c/interlock", "/d/interlock"),
        ("linux", {"XDG_CONFIG_HOME": "c", "XDG_DATA_HOME": ""}, "/h/.config/interlock", "/h/.local/share/interlock"),
        (
            "darwin",
            {"XDG_CONFIG_HOME": "/c"},
            "/h/Library/Application Support/interlock",
            "/h/Library/Application Support/interlock",
        ),
    ],
)
def test_the_folders_are_those_of_the_system(platform: str, env: dict[str, str], config: str, data: str) -> None:
    env = {"HOME": "/h"} | env
    assert config_folder(env, platform) == Path(config)
    assert data_folder(env, platform) == Path(data)


def test_a_home_that_is_not_set_is_asked_of_the_system() -> None:
    assert config_folder({}, "linux").is_absolute()

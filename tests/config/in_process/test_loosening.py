"""Which changes of a configuration wait for a signature, and which count at once."""

import json
import time
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from tests.config.config_project import Project

from interlock.config.keys import Key, Section
from interlock.config.load import load
from interlock.config.loosening import (
    describe_loosening,
    hold_back,
    join_bindings,
    join_signed,
    limit_lines,
    ordered_keys,
    signed_values,
)
from interlock.config.order import find_order, orders_of
from interlock.config.plan import Plan, Spawn
from interlock.config.schema import full_plan

# What lets through more, and what lets through less, than the line before.
CHANGES = [
    ('[gate]\nmode = "gated"', '[gate]\nmode = "open"'),
    ('[gate]\nmode = "defer"', '[gate]\nmode = "open"'),
    ('[gate]\nunannotated = "classify"', '[gate]\nunannotated = "allow"'),
    ('[gate]\nalso = ["mail.*"]', "[gate]\nalso = []"),
    ('[safety]\nmode = "enforcing"', '[safety]\nmode = "logging"'),
    ('[safety]\nrequire = ["client:coder"]', "[safety]\nrequire = []"),
    ("[safety]\nmax_autonomous_steps = 5", "[safety]\nmax_autonomous_steps = 50"),
    ('[safety]\nrisk_tolerance = "conservative"', '[safety]\nrisk_tolerance = "aggressive"'),
    ('[safety]\nstages = ["patterns", "risk"]', '[safety]\nstages = ["risk"]'),
    ("[safety]\npreapproved = false", "[safety]\npreapproved = true"),
    ('[safety]\nauto_approve = ["read_*"]', '[safety]\nauto_approve = ["read_*", "*"]'),
    ("[safety.agents.coder]\npreapproved = false", "[safety.agents.coder]\npreapproved = true"),
    ('[safety.agents.coder]\ndeny = ["x"]', "[safety]"),
    ("[budget]\nmax_calls_per_minute = 5", "[budget]"),
    ("[budget]\nmax_calls_per_minute = 5", "[budget]\nmax_calls_per_minute = 6"),
    ('[auth]\nanonymous = "never"', '[auth]\nanonymous = "any"'),
    ('[[access]]\nwho = ["client:ci"]\nscope = "read"', '[[access]]\nwho = ["client:ci"]\nscope = "admin"'),
    ('[[access]]\nwho = ["client:ci"]\ntools = ["a.*"]', '[[access]]\nwho = ["client:ci"]\ntools = ["*"]'),
    ('[[access]]\nwho = ["client:ci"]\nscope = "read"', ""),
    ("", '[[access]]\nwho = ["client:ci"]\nscope = "admin"'),
    ('[[tool]]\nmatch = "a.b"\nreversible = false', '[[tool]]\nmatch = "a.b"\nreversible = true'),
    ('[[tool]]\nmatch = "a.b"\npin = true', ""),
    ("", '[[tool]]\nmatch = "a.b"\nmutable = false'),
    ('[[tool]]\nmatch = "a.b"\nhide = true', '[[tool]]\nmatch = "a.b"'),
    ('[[tool]]\nmatch = "a.b"\npin = true', '[[tool]]\nmatch = "a.*"\n[[tool]]\nmatch = "a.b"\npin = true'),
    (
        '[servers.a]\nurl = "http://127.0.0.1:1/mcp"\ntools = { x = "irreversible" }',
        '[servers.a]\nurl = "http://127.0.0.1:1/mcp"',
    ),
    (
        '[servers.a]\nurl = "http://127.0.0.1:1/mcp"',
        '[servers.a]\nurl = "http://127.0.0.1:1/mcp"\ntools = { x = "read_only" }',
    ),
    (
        '[servers.a]\nurl = "http://127.0.0.1:1/mcp"',
        '[servers.a]\nurl = "http://127.0.0.1:1/mcp"\ndefinitions = "notify"',
    ),
    (
        '[servers.a]\nurl = "http://127.0.0.1:1/mcp"\ndefinitions = "notify"',
        '[servers.a]\nurl = "http://127.0.0.1:1/mcp"\ndefinitions = "follow"',
    ),
    ('[drivers.definitions]\nfiles-mcp = "notify"', '[drivers.definitions]\nfiles-mcp = "follow"'),
    ('[servers.a]\ncommand = "a"\negress = []', '[servers.a]\ncommand = "a"'),
    ('[servers.a]\ncommand = "a"\negress = []', '[servers.a]\ncommand = "a"\negress = ["example.com"]'),
    ('[servers.a]\ncommand = "a"\nfiles = []', '[servers.a]\ncommand = "a"\nfiles = ["/srv"]'),
    ('[servers.a]\ndocker = "i"\negress = []', '[servers.a]\ndocker = "i"'),
    ('[servers.a]\ndocker = "i"\nfiles = []', '[servers.a]\ndocker = "i"\nfiles = ["/srv"]'),
    ('[servers.a]\ndocker = "i"\negress = []', '[servers.a]\ncommand = "i"'),
    ('[servers.a]\ndocker = "i"', '[servers.a]\ncommand = "i"'),
    ('[servers.a]\ndocker = "i"\negress = []', '[servers.a]\nnpm = "i"\nfiles = ["/srv"]'),
    ('[rooms]\nmode = "restricted"', '[rooms]\nmode = "open"'),
    ('[[room]]\ntopic = "yard"', '[[room]]\ntopic = "yard"\nmode = "open"'),
    ('[[room]]\ntopic = "yard"\nfull = []', '[[room]]\ntopic = "yard"\nfull = ["client:eve"]'),
    ("", '[[room]]\ntopic = "yard"\nmode = "open"'),
    ("[approvals]", '[approvals]\nchannels = ["console", "cli", "os_dialog"]'),
    (
        '[approvals]\nchannels = ["cli", "command"]\ncommand = ["notify", "ops"]',
        '[approvals]\nchannels = ["cli", "command"]\ncommand = ["notify ops"]',
    ),
    ('[registry]\nenforce = "reject"', '[registry]\nenforce = "off"'),
    ("[drivers]", "[drivers]\ntrust_workspace = true"),
    ("[drivers]", '[drivers.sandbox]\nfiles-mcp = "off"'),
    ("[limits]\nsandbox_memory_mb = 64", "[limits]\nsandbox_memory_mb = 128"),
    ("[aql]", "[aql]\ndanger = { enforce = false }"),
    # Without an entry, a subserver may read, a user of this machine may not register, and [budget] limits both.
    ("", '[[access]]\nwho = ["subserver:edge"]\nscope = "write"'),
    ("", '[[access]]\nwho = ["client:a", "*"]\nscope = "write"'),
    ("", '[[access]]\nwho = ["uid:1001"]\nscope = "read"'),
    ("", '[[access]]\nwho = ["certificate:edge.example.com"]\nscope = "read"'),
    ("", '[[access]]\nwho = ["subserver:e"]\nscope = "read"\nbudget = { max_calls_per_minute = 9 }'),
    ("", '[[tool]]\nmatch = "a.*"\ncost_units = 0'),
    # Anyone may enter an open room that lists no one.
    ('[[room]]\ntopic = "y"\nmode = "open"\nmembers = ["client:a"]', '[[room]]\ntopic = "y"\nmode = "open"'),
    ('[rooms]\nmode = "observe"\nfull = ["client:a"]', '[rooms]\nmode = "observe"'),
]
# Between the two, the strict value of one is no value of the other.
OTHERWISE = ("a.*", "notify ops", "uid:", "certificate:", "client:a", "subserver:")


def stored(plan: Plan) -> dict[str, object]:
    """What is on disk of a signed plan, read again."""
    values: dict[str, object] = json.loads(json.dumps(signed_values(plan)))
    return values


@pytest.mark.req("AX-11.N-1")
@pytest.mark.parametrize(("strict", "loose"), CHANGES)
def test_a_looser_value_waits_and_a_stricter_one_counts(project: Project, strict: str, loose: str) -> None:
    before, after = project.load(strict).plan, project.load(loose).plan
    held = hold_back(stored(before), after)
    assert describe_loosening(held, after), "it counted at once"
    assert hold_back(stored(before), held) == held, "what is held back is not strict enough itself"
    # A list whose entries moved, and another command, wait in both directions.
    if not any(word in strict + loose for word in OTHERWISE):
        assert hold_back(stored(after), before) == before


@pytest.mark.req("AX-11.N-1")
def test_each_key_waits_or_is_declared_to_be_free() -> None:
    sections = {field.name: field.type for field in msgspec.structs.fields(Plan)}
    undeclared = [
        f"{section}.{key}"
        for section, key, _, _ in ordered_keys(Plan)
        if find_order(sections[section]) is None and (key is None or key not in orders_of(sections[section].__origin__))
    ]
    assert undeclared == [], "declare an order on the field, or FREE if the key is not about the guard"


def test_each_setting_of_a_room_and_of_a_sandbox_has_an_order() -> None:
    from interlock.config import plan_agents, plan_servers

    assert plan_agents.ROOMS.parts.keys() == set(plan_agents.RoomsPlan.__struct_fields__)
    assert plan_servers._SANDBOX.parts.keys() == set(plan_servers.SandboxPlan.__struct_fields__)
    assert plan_agents._DANGER.parts.keys() == set(plan_agents.AqlDangerPlan.__struct_fields__)


class _New(msgspec.Struct, frozen=True, kw_only=True):
    level: Annotated[int, Key(2)] = 1


def test_a_key_that_nobody_gave_an_order_waits_whenever_it_changes() -> None:
    plan = msgspec.defstruct("Plan", [("toy", Annotated[_New, Section("A toy.")], _New())], bases=(Plan,), frozen=True)
    folders = {"workspace": Path("/w"), "data": Path("/d")}
    before, after = plan(**folders), plan(**folders, toy=_New(level=2))
    assert hold_back(stored(before), after) == before
    # A value that was signed by a version without the key is its default.
    assert hold_back({}, after) == before


def test_free_keys_count_at_once(project: Project) -> None:
    before = project.load("[mcp]").plan
    after = project.load(
        '[safety.agents.coder]\n[mcp]\nsurface = "aql"\n[servers.new]\nurl = "http://127.0.0.1:1/mcp"'
    ).plan
    assert hold_back(stored(before), after) == after


def test_tightening_counts_beside_a_loosening_of_the_same_list(project: Project) -> None:
    before = project.load('[gate]\nalso = ["mail.*", "pay.*"]').plan
    after = project.load('[gate]\nalso = ["mail.*", "door.*"]').plan
    held = hold_back(stored(before), after)
    assert set(held.gate.also) == {"mail.*", "pay.*", "door.*"}
    (line,) = describe_loosening(held, after)
    assert line == 'gate.also: ["mail.*","door.*","pay.*"] -> ["mail.*","door.*"]'


def test_a_server_that_is_removed_and_written_again_is_no_new_one(project: Project) -> None:
    sandboxed = project.load('[servers.a]\ncommand = "a"\negress = []').plan
    signed = join_signed(stored(sandboxed), project.load("").plan)
    after = project.load('[servers.a]\ncommand = "a"').plan
    assert hold_back(signed, after).servers[0].reach != after.servers[0].reach


def test_a_server_that_is_reached_in_another_way_meanwhile_keeps_its_sandbox(project: Project) -> None:
    signed = stored(project.load('[servers.a]\ncommand = "a"\negress = []').plan)
    remote = project.load('[servers.a]\nurl = "http://127.0.0.1:1/mcp"').plan
    signed = join_signed(signed, hold_back(signed, remote))
    free = project.load('[servers.a]\ncommand = "a"').plan
    assert hold_back(signed, free).servers[0].reach != free.servers[0].reach
    # What an approver signs counts.
    assert hold_back(join_signed(signed, free), free) == free


@pytest.mark.req("AX-11.N-1")
def test_a_container_keeps_its_limits_and_a_program_in_its_place_gets_them(project: Project) -> None:
    signed = stored(project.load('[servers.a]\ndocker = "i"\nargs = ["x"]\negress = []\nfiles = ["/srv/a"]').plan)

    def reach(text: str) -> Spawn:
        held = hold_back(signed, project.load(f"[servers.a]\n{text}").plan).servers[0].reach
        assert isinstance(held, Spawn)
        return held

    limits = ("docker", "run", "-i", "--rm", "--network", "none")
    other = reach('docker = "j"\nargs = ["y"]\nfiles = ["/srv/a", "/srv/b"]')
    assert other.command == (*limits, "-v", "/srv/a:/srv/a", "j", "y")
    assert reach('docker = "j"').command == (*limits, "j")
    program = reach('command = "i"').sandbox
    assert program is not None
    assert (program.egress, program.write, program.from_arguments) == ((), (Path("/srv/a"),), False)
    # A container that was reached in another way meanwhile is no new one.
    remote = project.load('[servers.a]\nurl = "http://127.0.0.1:1/mcp"').plan
    signed = join_signed(signed, hold_back(signed, remote))
    assert reach('docker = "i"').command == (*limits, "i")
    # What an approver signs counts.
    free = project.load('[servers.a]\ncommand = "i"').plan
    assert hold_back(join_signed(signed, free), free) == free


TRUSTED_FILES = {
    "client_ca": '[node]\nclient_ca = "ca.pem"\ntls_cert = "c.pem"\ntls_key = "k.pem"',
    "ca_file": '[drivers]\nca_file = "ca.pem"',
}


@pytest.mark.req("AX-11.N-1")
@pytest.mark.parametrize("key", TRUSTED_FILES)
def test_a_file_of_authorities_is_compared_by_its_content(project: Project, key: str) -> None:
    def plan(name: str = "ca.pem") -> Plan:
        return project.load(TRUSTED_FILES[key].replace("ca.pem", name)).plan

    def value(plan: Plan) -> Path | None:
        return plan.node.client_ca if key == "client_ca" else plan.drivers.ca_file

    ours, other = project.folder / "ca.pem", project.folder / "other.pem"
    ours.write_text("ours")
    other.write_text("theirs")
    signed = stored(plan())
    assert hold_back(signed, plan()) == plan()
    assert value(hold_back(signed, plan("other.pem"))) == ours
    assert value(hold_back(signed, project.load("").plan)) is None  # fewer are believed
    other.write_text("ours")
    assert hold_back(signed, plan("other.pem")) == plan("other.pem")  # the same authorities at another place
    ours.write_text("theirs")
    held = hold_back(signed, plan())
    assert value(held) is None
    assert any(f"{key}: (nothing)" in line for line in describe_loosening(held, plan()))
    assert hold_back(stored(plan()), plan()) == plan()
    ours.unlink()
    assert value(hold_back(signed, plan())) is None
    assert value(hold_back(stored(project.load("").plan), plan("other.pem"))) is None


@pytest.mark.req("AX-11.N-1")
def test_a_parent_is_another_one_with_other_authorities(project: Project) -> None:
    ours = project.folder / "ca.pem"
    ours.write_text("ours")
    text = '[[ax.parents]]\nurl = "wss://hub.example.com/ax"\nsegment = "edge"\nca_file = "ca.pem"'
    signed = stored(project.load(text).plan)
    assert hold_back(signed, project.load(text).plan) == project.load(text).plan
    ours.write_text("theirs")
    assert hold_back(signed, project.load(text).plan).ax.parents == ()


@pytest.mark.req("AX-11.N-1")
@pytest.mark.parametrize("key", ["public_url", "operator_url"])
def test_the_addresses_that_tokens_are_for_and_that_people_decide_at_wait(project: Project, key: str) -> None:
    before = project.load(f'[node]\n{key} = "https://a.example.com"').plan
    after = project.load(f'[node]\n{key} = "https://b.example.com"').plan
    assert hold_back(stored(before), after) == before
    assert hold_back(stored(project.load("").plan), after) == project.load("").plan


def test_a_subserver_with_an_entry_and_a_client_are_limited_at_once(project: Project) -> None:
    before = project.load("").plan
    after = project.load(
        '[[access]]\nwho = ["client:ci"]\ntools = ["a.*"]\nbudget = { max_calls_per_minute = 9 }\n'
        '[[access]]\nwho = ["subserver:edge"]\nscope = "read"'
    ).plan
    assert hold_back(stored(before), after) == after


def test_an_emptied_list_of_a_restricted_room_counts_at_once(project: Project) -> None:
    before = project.load('[[room]]\ntopic = "y"\nmode = "restricted"\nmembers = ["client:a"]').plan
    after = project.load('[[room]]\ntopic = "y"\nmode = "restricted"').plan
    assert hold_back(stored(before), after) == after


def test_a_room_that_is_opened_is_described_in_the_words_of_the_file(project: Project) -> None:
    before = project.load('[[room]]\ntopic = "y"').plan
    after = project.load('[[room]]\ntopic = "y"\nmode = "open"').plan
    assert describe_loosening(hold_back(stored(before), after), after) == ('room[1].mode: "mixed" -> "open"',)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[gate]\nalso = {}", "mail.{}"),
        ("[ax]\ndial_back = {}", "http://{}.example.com/*"),
        ("[safety]\nauto_approve = {}", "a{}"),
        ('[[access]]\nwho = ["client:a"]\ntools = {}', "a{}.*"),
    ],
)
def test_long_lists_are_joined_in_linear_time(project: Project, text: str, value: str) -> None:
    signed, written = (
        project.load(text.replace("{}", json.dumps([value.format(f"{kind}{number}") for number in range(10_000)]))).plan
        for kind in "xy"
    )
    values, began = stored(signed), time.process_time()
    held = hold_back(values, written)
    describe_loosening(held, written)
    assert time.process_time() - began < 0.7


def test_what_is_signed_is_shown_to_its_end(project: Project) -> None:
    """A long harmless beginning hides nothing."""
    many = [f"harmless-{number}" for number in range(500)]
    text = f"""
[safety]
auto_approve = {json.dumps([*many, "*"])}
[approvals]
channels = ["cli", "command"]
command = {json.dumps(["notify", *many, "evil"])}
[servers.a]
command = {json.dumps(["serve", *many, "the-end"])}
env = {{ TOKEN = "${{secrets.KEY}}" }}
"""
    before, after = project.load(f"[safety]\nauto_approve = {json.dumps(many)}").plan, project.load(text).plan
    lines = describe_loosening(hold_back(stored(before), after), after)
    assert 'safety.auto_approve, only what differs: [] -> ["*"]' in lines
    assert any(line.startswith("... ") and line.endswith(" evil") for line in lines)
    assert any(line.startswith("... ") and line.endswith(" the-end") for line in lines)
    assert max(map(len, lines)) < 500


def test_a_command_shows_characters_that_mislead_as_escapes(project: Project) -> None:
    after = project.load('[approvals]\nchannels = ["command"]\ncommand = ["notify", "a\\ngate.mode: 1"]').plan
    lines = describe_loosening(hold_back(stored(project.load("").plan), after), after)
    assert 'approvals.command: ["notify","a\\ngate.mode: 1"]' in lines


def test_lines_that_are_left_out_are_counted_in_the_first_one() -> None:
    lines = tuple(map(str, range(12)))
    assert limit_lines(lines, 12) == lines
    first, *others = limit_lines(lines, 10)
    assert first.startswith("3 lines are not shown here")
    assert others == list(lines[:9])


@pytest.mark.parametrize("broken", [[], {"a": 3}, {"y": {"mode": "none"}}, 5, None, "x", [{}], {"z": 3}])
def test_a_stored_value_of_another_form_counts_as_the_default(project: Project, broken: object) -> None:
    plan = project.load(
        '[node]\norigins = ["https://a.example.com"]\n[approvals]\nchannels = ["os_dialog"]\n'
        '[servers.a]\ncommand = "a"\negress = []\n[[room]]\ntopic = "y"\n'
        '[[anchor]]\nname = "z"\nkey = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="'
    ).plan
    for key in signed_values(plan):
        signed = {**stored(plan), key: broken}
        join_signed(signed, hold_back(signed, plan))


def test_nothing_that_is_stored_holds_a_secret(project: Project) -> None:
    text = """
[approvals]
channels = ["webhook", "smtp"]
webhook_url = "https://hooks.example.com/PART-OF-URL"
webhook_secret = "SIGNING-SECRET"
smtp_url = "smtps://login:MAIL-SECRET@mail.example.com"
smtp_from = "a@example.com"
smtp_to = ["b@example.com"]
[servers.a]
command = "a"
env = { TOKEN = "ENV-SECRET" }
[servers.b]
url = "https://mcp.example.com/mcp"
headers = { Authorization = "HEADER-SECRET" }
[[auth.issuers]]
name = "corp"
url = "https://login.example.com"
introspection_url = "https://login.example.com/introspect"
client_id = "node"
client_secret = "CLIENT-SECRET"
[[ax.parents]]
url = "wss://hub.example.com/ax"
segment = "edge"
secret = "PARENT-SECRET"
"""
    plan = project.load(text).plan
    on_disk = json.dumps(stored(plan))
    assert "SECRET" not in on_disk
    assert "PART-OF-URL" not in on_disk
    assert hold_back(stored(plan), plan) == plan


SECRET_SERVER = """
[servers.crm]
url = "{url}/mcp"
headers = {{ X-Key = "${{secrets.CRM}}" }}
auth = {{ client_id = "node", client_secret = "${{secrets.CRM}}", issuer = "{issuer}" }}
"""


@pytest.mark.req("AX-11.N-3")
def test_a_secret_is_withheld_from_another_host_or_issuer_and_each_of_them_has_to_be_named(project: Project) -> None:
    def plan(url: str, issuer: str) -> Plan:
        return project.load(SECRET_SERVER.format(url=url, issuer=issuer)).plan

    before = plan("https://a.example.com", "https://login.example.com")
    signed = stored(before)
    assert hold_back(signed, before) == before
    for after in (
        plan("https://b.example.com", "https://login.example.com"),
        plan("https://a.example.com:8443", "https://login.example.com"),
        plan("https://a.example.com", "https://evil.example.com"),
    ):
        (use,) = hold_back(signed, after).withheld_secrets
        assert (use.secret, use.segment) == ("crm", "crm")
        hosts = [f"crm {host.rpartition(':')[0]}" for host in use.hosts]
        assert hold_back(join_bindings(signed, dict.fromkeys(hosts[:1])), after).withheld_secrets == (use,)
        assert hold_back(join_bindings(signed, dict.fromkeys(hosts)), after) == after
    # Stored by a version that knew nothing of this: what is written counts as confirmed.
    del signed["withheld_secrets"]
    assert hold_back(signed, before) == before


@pytest.mark.req("AX-11.N-3")
def test_a_secret_is_withheld_from_another_program_arguments_or_environment(project: Project) -> None:
    def plan(text: str) -> Plan:
        return project.load(f"[servers.a]\n{text}", {"HOME_KEY": "ENV-SECRET", "OTHER": "x"}).plan

    usual = 'command = ["a", "${env:HOME_KEY}"]\nenv = { T = "${secrets.TOKEN}", B = "1" }'
    signed = stored(plan(usual))
    assert "ENV-SECRET" not in json.dumps(signed)
    for text in (
        usual.replace('"a"', '"b"'),
        usual.replace('"a"', '"a", "--verbose"'),
        usual.replace('B = "1"', 'B = "1", LD_PRELOAD = "x.so"'),
        'npm = "a"\nenv = { T = "${secrets.TOKEN}", B = "1" }',
    ):
        assert hold_back(signed, plan(text)).withheld_secrets, text
    assert hold_back(signed, plan(f"{usual}\ntimeout_s = 5")).withheld_secrets == ()
    # Without the server nothing is withheld, and it gets its secret again when it is back.
    gone = join_signed(signed, project.load("").plan)
    assert hold_back(gone, plan(usual)) == plan(usual)


@pytest.mark.req("AX-11.N-1")
def test_a_device_waits_and_its_password_in_clear_is_not_stored(project: Project) -> None:
    folder = project.folder / ".devices"
    folder.mkdir()
    link = '[link]\ntransport = "mqtt_json"\nhost = "localhost"\nusername = "a"\npassword = "CLEAR-SECRET"\n'
    tool = '[[tool]]\nid = 1\nname = "read"\nmutable = false\nreversible = true\n'
    none = project.load("").plan
    (folder / "pump.toml").write_text(f'profile = "json"\n{link}{tool}')
    pump = project.load("").plan
    assert hold_back(stored(none), pump) == none
    assert not any("CLEAR-SECRET" in line for line in describe_loosening(none, pump))
    signed = stored(pump)
    assert "CLEAR-SECRET" not in json.dumps(signed)
    assert hold_back(signed, pump) == pump
    (folder / "pump.toml").write_text(f'profile = "json"\n{link.replace("localhost", "127.0.0.1")}{tool}')
    assert hold_back(signed, project.load("").plan) == pump
    (folder / "pump.toml").write_text(f'profile = "json"\n{link.replace("CLEAR", "OTHER")}{tool}')
    assert hold_back(signed, project.load("").plan) == none
    # A file that cannot be used is shown as it is, and opens nothing.
    (folder / "pump.toml").write_text("profile = 7")
    faulty = load(None, project.env, {}, lenient=True).plan
    assert hold_back(stored(none), faulty) == faulty


def test_every_section_is_walked() -> None:
    walked = {section for section, _, _, _ in ordered_keys(full_plan())}
    assert walked == set(full_plan().__struct_fields__)

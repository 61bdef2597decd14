"""Are anchors read right, and refused with the place of the mistake and without the key?"""

from pathlib import Path

import pytest
from tests.config.config_project import Project

from interlock.config.effective import effective
from interlock.config.plan import AnchorPlan

KEY = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
PASSKEY = "ed25519:AbCd:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"


def test_an_anchor_is_read_and_shown(project: Project) -> None:
    loaded = project.load(
        f'[[anchor]]\nname = "plant"\nkey = "{KEY}"\nspeaks_for = ["dns:Edge01.Example.com.", "edge02.example.com"]\n'
        '[[anchor]]\nname = "ops"\nkey = "ops.pem"\napproves = ["files.*"]\n'
        '[[anchor]]\nname = "corp"\njwks = "https://login.example.com/jwks"\napproves = ["*"]\n'
        '[[anchor]]\nname = "near"\njwks = "http://127.0.0.1:9/jwks"\napproves = ["*"]\n'
        '[[anchor]]\nname = "set"\njwks = "~/set.json"\napproves = ["*"]\n'
    )
    assert loaded.warnings == ()
    assert loaded.plan.anchors == (
        AnchorPlan(name="plant", key=KEY, speaks_for=("edge01.example.com", "edge02.example.com")),
        AnchorPlan(name="ops", key=project.folder / "ops.pem", approves=("files.*",)),
        AnchorPlan(name="corp", jwks="https://login.example.com/jwks", approves=("*",)),
        AnchorPlan(name="near", jwks="http://127.0.0.1:9/jwks", approves=("*",)),
        AnchorPlan(name="set", jwks=project.home / "set.json", approves=("*",)),
    )
    shown = effective(loaded.plan)["anchor"]
    assert shown[1] == {
        "name": "ops",
        "key": str(project.folder / "ops.pem"),
        "jwks": None,
        "passkey": None,
        "approves": ["files.*"],
        "speaks_for": [],
    }


def test_a_pem_block_may_be_written_out(project: Project) -> None:
    lines = ("BEGIN PUBLIC KEY-----", "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
    text = f"-----{lines[0]}\n{lines[1]}\n-----END PUBLIC KEY-----\n"
    (anchor,) = project.load(f'[[anchor]]\nname = "a"\nkey = """\n{text}"""\napproves = ["*"]\n').plan.anchors
    assert anchor.key == text


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        ("", 1, "has no key"),
        (f'key = "{KEY}"\njwks = "set.json"', 1, "has key and jwks"),
        ('key = "ed25519:AAAA"', 3, "32 bytes"),
        ('key = "{}"', 3, "JWK"),
        ('key = "{ not json"', 3, "neither"),
        ('key = """-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"""', 3, "private key"),
        ('key = """{"kty":"OKP","crv":"Ed25519","x":"AA","d":"c2VjcmV0"}"""', 3, "private key"),
        ("key = 7", 3, "a public key or a file"),
        ('jwks = "http://login.example.com/jwks"', 3, "https"),
        ('jwks = "ftp://login.example.com/jwks"', 3, "https"),
        (f'key = "{KEY}"\nspeaks_for = ["*.example.com"]', 4, "DNS name"),
        (f'key = "{KEY}"\nspeaks_for = ["192.0.2.1"]', 4, "DNS name"),
        (f'key = "{KEY}"\nspeaks_for = ["dns:"]', 4, "DNS name"),
        (f'key = "{KEY}"\nspeaks_for = "edge01.example.com"', 4, "a list"),
        (f'key = "{KEY}"\nspeak_for = ["edge01.example.com"]', 4, "did you mean 'speaks_for'?"),
        (f'kee = "{KEY}"', 3, "did you mean 'key'?"),
        ('passkey = "ed25519:not base64url!:AbCd"', 3, "credential"),
        ('passkey = "AbCd"', 3, "interlock access passkey"),
        ('passkey = "es256:AbCd:AbCd"', 3, "no key"),
        (f'passkey = "{PASSKEY}"\nspeaks_for = ["edge01.example.com"]', 4, "passkey"),
    ],
)
def test_a_wrong_anchor_is_refused_at_its_line(project: Project, lines: str, line: int, says: str) -> None:
    problems = project.problems(f'[[anchor]]\nname = "a"\n{lines}\n')
    assert says in str(problems[0])
    assert problems[0].line == line
    assert not any("c2VjcmV0" in str(problem) for problem in problems)


def test_an_anchor_needs_a_name_and_no_two_have_the_same(project: Project) -> None:
    assert "'name'" in str(project.problem(f'[[anchor]]\nkey = "{KEY}"\n'))
    twice = f'[[anchor]]\nname = "a"\nkey = "{KEY}"\napproves = ["*"]\n' * 2
    problem = project.problem(twice)
    assert "two entries of [[anchor]]" in problem.message and problem.line == 6


@pytest.mark.parametrize(
    ("lines", "says"),
    [(f'key = "{KEY}"', "trusted for nothing"), (f'passkey = "{PASSKEY}"', "trusted for nothing")],
)
def test_an_anchor_that_does_nothing_is_a_warning(project: Project, lines: str, says: str) -> None:
    (warning,) = project.load(f'[[anchor]]\nname = "a"\n{lines}\n').warnings
    assert says in str(warning)


def test_a_relative_file_is_beside_the_configuration(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.file.write_text('[[anchor]]\nname = "a"\nkey = "keys/a.pub"\napproves = ["*"]\n')
    assert project.load().plan.anchors[0].key == Path(project.folder / "keys" / "a.pub")


@pytest.mark.parametrize(
    ("node", "warned"),
    [
        ('operator_listen = "127.0.0.1:7412"', False),
        ('operator_url = "https://operator.example.com"', False),
        ('operator_url = "https://192.0.2.1"', True),
        ('operator_listen = "192.0.2.1:7412"\noperator_url = "http://operator.example.com"', True),
    ],
)
def test_a_passkey_needs_an_operator_endpoint_that_browsers_can_use(project: Project, node: str, warned: bool) -> None:
    anchor = f'[[anchor]]\nname = "ada"\npasskey = "{PASSKEY}"\napproves = ["*"]\n'
    warnings = [str(one) for one in project.load(f"[node]\n{node}\n{anchor}").warnings]
    assert any("passkey of anchor" in one for one in warnings) is warned

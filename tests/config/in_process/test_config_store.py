"""[store]: where replicas of a node share what they remember, what belongs together, and what is shown of it."""

import pytest
from tests.config.config_project import Project

from interlock.config.effective import effective
from interlock.config.plan import StorePlan


def test_without_a_word_about_it_a_file_remembers(project: Project) -> None:
    assert project.load("").plan.store == StorePlan(backend="sqlite", nats_url=(), nats_replicas=1)


@pytest.mark.parametrize(
    ("written", "urls"),
    [
        ('"nats://127.0.0.1"', ("nats://127.0.0.1:4222",)),
        ('"tls://a.example:4333, tls://b.example"', ("tls://a.example:4333", "tls://b.example:4222")),
        ('["tls://a.example/", "tls://[::1]:4333"]', ("tls://a.example:4222", "tls://[::1]:4333")),
    ],
)
def test_servers_are_one_url_several_or_a_list(project: Project, written: str, urls: tuple[str, ...]) -> None:
    loaded = project.load(f'[store]\nbackend = "nats"\nnats_url = {written}\n')
    assert loaded.plan.store.nats_url == urls
    assert loaded.warnings == ()


def test_servers_may_be_in_the_environment(project: Project) -> None:
    project.env |= {"INTERLOCK_STORE__BACKEND": "nats", "INTERLOCK_STORE__NATS_URL": "nats://127.0.0.1,tls://b.example"}
    assert project.load("").plan.store.nats_url == ("nats://127.0.0.1:4222", "tls://b.example:4222")


def test_the_secret_is_replaced_or_left_to_the_node_and_never_shown(project: Project) -> None:
    project.env["NATS"] = "me:hush"
    start = '[store]\nbackend = "nats"\nnats_url = "nats://127.0.0.1"\n'
    plan = project.load(f'{start}nats_secret = "${{env:NATS}}"\n').plan
    assert plan.store.nats_secret == "me:hush"
    assert effective(plan)["store"]["nats_secret"] == "***"
    assert "hush" not in str(effective(plan))
    assert project.load(f'{start}nats_secret = "${{secrets.nats}}"\n').plan.store.nats_secret == "${secrets.nats}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend = "natz"', "did you mean 'nats'"),
        ('nats_urls = "nats://127.0.0.1"', "did you mean 'nats_url'"),
        ('backend = "nats"', "the backend 'nats' in [store] needs 'nats_url'"),
        ('backend = "nats"\nnats_url = []', "the backend 'nats' in [store] needs 'nats_url'"),
        ('nats_url = "http://127.0.0.1"', "must be nats://HOST:PORT or tls://HOST:PORT"),
        ('nats_url = "nats://127.0.0.1:99999"', "must be nats://HOST:PORT or tls://HOST:PORT"),
        ('nats_url = ["nats://127.0.0.1", "nats://"]', "must be nats://HOST:PORT or tls://HOST:PORT"),
        ('nats_url = "nats://127.0.0.1/x"', "must be nats://HOST:PORT or tls://HOST:PORT"),
        ("nats_url = 4222", "a URL or a list of them"),
        ('nats_url = "nats://me:s3cret@127.0.0.1"', "put them in nats_secret"),
        ("nats_replicas = 0", "1 to 5"),
        ('nats_secret = "${secrets.}"', "names the secret"),
    ],
)
def test_what_cannot_be_meant_is_named(project: Project, text: str, said: str) -> None:
    problems = [str(problem) for problem in project.problems(f"[store]\n{text}\n")]
    assert any(said in problem for problem in problems), problems
    assert "s3cret" not in str(problems)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('nats_url = "nats://127.0.0.1"', "is not used without the backend 'nats'"),
        ("nats_replicas = 3", "is not used without the backend 'nats'"),
        ('backend = "nats"\nnats_url = "nats://10.0.0.1, tls://b.example"', "without TLS: nats://10.0.0.1:4222"),
    ],
)
def test_a_setting_that_may_not_be_meant_is_warned_of(project: Project, text: str, said: str) -> None:
    warnings = [str(one) for one in project.load(f"[store]\n{text}\n").warnings]
    assert len(warnings) == 1
    assert said in warnings[0]

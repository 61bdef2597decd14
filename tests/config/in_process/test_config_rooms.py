"""Are the privileges that a configuration names one of the two that there are?"""

import pytest
from tests.config.config_project import Project

from interlock.config.plan import room_settings
from interlock.rooms.protocol.participants import Privilege


@pytest.mark.req("X-3.1-1")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[rooms]\nextra_kinds = { "mcp/reject" = "admin" }', "rooms.extra_kinds.'mcp/reject'"),
        ('[[room]]\ntopic = "garden"\nextra_kinds = { x = "Full" }', "room[0].extra_kinds.x"),
        ('[rooms]\nv0_clients = "observer"', "rooms.v0_clients"),
        ('[[room]]\ntopic = "garden"\nv0_clients = ""', "room[0].v0_clients"),
    ],
)
def test_a_third_privilege_is_refused_by_its_code(project: Project, text: str, key: str) -> None:
    problem = project.problem(text)
    assert (problem.code, problem.key) == ("unknown_privilege", key)


@pytest.mark.req("X-3.1-1")
def test_a_list_of_members_with_another_privilege_is_no_key(project: Project) -> None:
    assert "observers" in project.problem('[[room]]\ntopic = "garden"\nobservers = ["client:eve"]').message
    plan = project.load('[[room]]\ntopic = "garden"\nmembers = ["client:bob"]\nfull = ["client:ada"]').plan
    assert plan.room[0].settings(plan.rooms).full == ("client:ada",)


@pytest.mark.req("X-3.1-1")
def test_the_two_privileges_are_known_by_their_names(project: Project) -> None:
    said = '[[room]]\ntopic = "garden"\nextra_kinds = { note = "full", mood = "restricted" }'
    plan = project.load(said).plan
    kinds = plan.room[0].settings(plan.rooms).extra_kinds
    assert kinds == {"note": Privilege.FULL, "mood": Privilege.RESTRICTED}
    assert (
        room_settings(project.load(said.replace('[[room]]\ntopic = "garden"', "[rooms]")).plan.rooms, {}).extra_kinds
        == kinds
    )

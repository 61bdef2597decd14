"""interlock drivers list | show | trust | allow | test | update | remove, and interlock skills list | show"""

from typing import TYPE_CHECKING, Annotated

import typer

from interlock.approvals.cli.keys import KeyChoice, require_confirmation
from interlock.catalog.api import LIST_SKILLS
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import EXIT_REFUSED
from interlock.drivers import api
from interlock.drivers.protocol.server_name import server_name
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.cli.client.operator import Answer

TEST_TIMEOUT_S = 600.0  # every example has its contract's time
CHANGE_TIMEOUT_S = 60.0  # a folder with many files takes its time to read

Name = Annotated[str, typer.Argument(metavar="NAME", help="The server's name, or the driver's id, ID@MAJOR or folder.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: I have read what it shows.")]

app = verb_app(
    "Look at the servers declared as files, trust them, remove them.",
    examples="""
    interlock drivers list
    interlock drivers show filesystem
    interlock drivers trust filesystem
    interlock drivers allow github api.github.com
    """,
)


@verb(app, "list")
def list_drivers(invocation: Invocation) -> None:
    """List all drivers with their states.

    Examples:
        interlock drivers list
        interlock drivers list --json | jq -r '.drivers[].segment'
    """
    if (listed := invocation.call_or_print(api.LIST_DRIVERS, offline=True)) is not None:
        from interlock.drivers.cli.driver_lines import draw_list

        draw_list(invocation.out, listed)


@verb(app, "show")
def show(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a driver or of a contract.")],
) -> None:
    """Show what a driver starts, what it may access, and its secrets.

    And what is wrong with it, and what changed since it was trusted. Of a contract: which driver serves it, and why.

    Examples:
        interlock drivers show filesystem
        interlock drivers show filesystem-mcp@2 --json
        interlock drivers show filesystem.read_file
    """
    answer = get_driver(invocation, name)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
        return
    from interlock.drivers.cli.driver_lines import draw, draw_contract

    if "ranked" in answer.value:
        draw_contract(invocation.out, answer.as_(api.ServedContract))
    else:
        draw(invocation.out, answer.as_(api.DriverDetail))


@verb(app, "trust")
def trust(invocation: Invocation, name: Name, yes: Yes = False) -> None:
    """Accept a driver's files as they are now.

    Its server is then installed and started. It shows what the server is, may reach and knows, or what changed, and
    asks first. Where somebody may approve, it is signed with your key. When a file changes, the driver has to be
    trusted again.

    Examples:
        interlock drivers trust filesystem
        interlock drivers trust filesystem --yes --json
    """
    from interlock.drivers.cli.driver_lines import draw

    answer = get_driver(invocation, name)
    driver = answer.as_(api.DriverDetail)
    out = invocation.out
    if driver.trusted:
        if out.as_json:
            out.raw_json(answer.raw)
        else:
            out.line(f"{driver.segment} is trusted as it is")
        return
    if not out.as_json:
        draw(out, driver)
    if not yes:
        _ask(f"Trust {driver.segment}?", f"interlock drivers show {driver.segment}")
    done = accept_files(invocation, driver.key, driver.digest)
    if out.as_json:
        out.raw_json(done.raw)
        return
    now = done.as_(api.DriverSummary)
    if now.state == "stopped":
        out.line(f"{now.segment} is trusted and starts with the node")
    else:
        out.line(f"{now.segment} is trusted, now {now.state}" + (f": {now.reason}" if now.reason else ""))


def accept_files(invocation: Invocation, key: str, digest: str, *, signs: bool = True) -> "Answer":
    """Accept a driver's files through the running node, or directly in its data folder if no node is running.

    If approvers are configured, sign the acceptance with the user's key. Without `signs`, raise Refused instead.
    """
    try:
        body = api.TrustDriver(digest=digest)
        return invocation.call_or_offline(api.TRUST_DRIVER, body=body, timeout=CHANGE_TIMEOUT_S, name=key)
    except Refused as refused:
        if refused.code != "proof_required" or not refused.details.get("approval") or not signs:
            raise
        approval = str(refused.details["approval"])
    invocation.out.remark(f"a running node accepts {server_name(key)} with your signature")
    from interlock.approvals.api import DECIDE_APPROVAL, GET_APPROVAL, Approval, DecideApproval
    from interlock.approvals.cli.signing import prove
    from interlock.approvals.protocol.digests import ACCEPT

    request = invocation.node.call(GET_APPROVAL, id=approval).as_(Approval)
    signed = DecideApproval(decision="approve", proof=prove(request, KeyChoice(), choice=ACCEPT))
    invocation.node.call(DECIDE_APPROVAL, id=approval, body=signed, timeout=CHANGE_TIMEOUT_S)
    return invocation.node.call(api.GET_DRIVER, name=key)


@verb(app, "allow")
def allow(
    invocation: Invocation,
    name: Name,
    host: Annotated[str, typer.Argument(metavar="HOST", help="api.example.com or *.example.com.")],
    revoke: Annotated[bool, option("--revoke", "Take the permission back.")] = False,
) -> None:
    """Let a driver reach a host that its file does not name.

    No file is changed.

    Examples:
        interlock drivers allow github api.github.com
        interlock drivers allow github api.github.com --revoke
    """
    body = api.AllowHost(host=host, revoke=revoke)
    allowed = invocation.call_or_print(api.ALLOW_HOST, body, offline=True, timeout=CHANGE_TIMEOUT_S, name=name)
    if allowed is None:
        return
    hosts = ", ".join(allowed.allowed)
    invocation.out.line(f"{name} may also reach {hosts}" if hosts else f"{name} reaches what its file names")


@verb(app, "test")
def test(
    invocation: Invocation,
    name: Name,
    allow_mutation: Annotated[bool, option("--allow-mutation", "Also run examples that change something.")] = False,
) -> None:
    """Run the examples of a driver's contracts through it.

    Examples:
        interlock drivers test filesystem
        interlock drivers test notes --allow-mutation
    """
    body = api.RunExamples(allow_mutation=allow_mutation)
    examples = invocation.call_and_print(api.RUN_EXAMPLES, body, name=name, timeout=TEST_TIMEOUT_S)
    if not invocation.out.as_json:
        from interlock.drivers.cli.driver_lines import draw_examples

        draw_examples(invocation.out, examples)
    if not examples.ok:
        raise typer.Exit(EXIT_REFUSED)


@verb(app, "update")
def update(invocation: Invocation, name: Name, yes: Yes = False) -> None:
    """Switch to the newest release of a driver's server.

    It is installed beside the one in use and asked for its tools; what differs is shown before anything is switched.

    Examples:
        interlock drivers update filesystem
        interlock drivers update filesystem --yes
    """
    out = invocation.out
    if not out.as_json:
        out.remark("looking at the newest release")
    answer = invocation.node.call(api.UPDATE_DRIVER, name=name, body=api.UpdateDriver(), timeout=TEST_TIMEOUT_S)
    newer = answer.as_(api.DriverUpdate)
    if not out.as_json:
        from interlock.drivers.cli.driver_lines import draw_update

        draw_update(out, newer)
    elif newer.candidate is None:
        out.raw_json(answer.raw)
    if newer.candidate is None:
        return
    if not yes:
        _ask(f"Switch {server_name(newer.key)} to it?", "a look at what differs")
    body = api.UpdateDriver(candidate=newer.candidate)
    done = invocation.node.call(api.UPDATE_DRIVER, name=newer.key, body=body, timeout=CHANGE_TIMEOUT_S)
    if out.as_json:
        out.json({**answer.value, "switched": True})
    else:
        switched = done.as_(api.SwitchedDriver)
        out.line(f"{server_name(switched.key)} now runs {switched.to or 'the newest'}")


@verb(app, "remove")
def remove(
    invocation: Invocation,
    name: Name,
    forget: Annotated[bool, option("--forget")] = False,
    yes: Yes = False,
) -> None:
    """Delete a driver's folder and stop its server.

    Options:
        forget: Also forget what the next version of this driver would be compared with.

    Examples:
        interlock drivers remove filesystem
        interlock drivers remove filesystem --forget --yes
    """
    if not yes:
        try:
            driver = get_driver(invocation, name).as_(api.DriverDetail)
            _ask(f"Delete {driver.folder}?", f"interlock drivers show {driver.segment}")
        except Refused as refused:
            if not (forget and refused.code == "not_found"):
                raise
    arguments = {"name": name, "forget": forget, "timeout": CHANGE_TIMEOUT_S}
    if (done := invocation.call_or_print(api.REMOVE_DRIVER, offline=True, **arguments)) is None:
        return
    if done.removed:
        invocation.out.line(f"removed {done.removed}")
    for key in done.forgotten:
        invocation.out.line(f"forgot {key}")


def get_driver(invocation: Invocation, name: str) -> "Answer":
    """Return a driver or contract from the running node, or from the files if no node is running."""
    return invocation.call_or_offline(api.GET_DRIVER, timeout=CHANGE_TIMEOUT_S, name=name)


def _ask(question: str, otherwise: str) -> None:
    require_confirmation(question, hint=f"run it on a terminal, or with --yes after {otherwise}")


skills_app = verb_app(
    "See the skills that drivers add prompts to.",
    examples="""
    interlock skills list
    interlock skills show author-mcp
    """,
)


@verb(skills_app, "list")
def list_skills(invocation: Invocation) -> None:
    """List the skills of drivers, and those of Interlock.

    Examples:
        interlock skills list
        interlock skills list --json | jq -r '.skills[].name'
    """
    from interlock.cli.terminal.text import count

    answer = invocation.node.call(LIST_SKILLS)
    out = invocation.out
    if out.as_json:
        out.json({**answer.value, "shipped": sorted(shipped_skills())})
        return
    skills = answer.as_(api.Skills).skills
    if not skills:
        out.remark("no driver adds a prompt to a skill (integrate_as: skill_block)")
    rows = [((skill.name, "bold"), count(len(skill.blocks), "block")) for skill in skills]
    rows += [((name, "bold"), "comes with Interlock") for name in sorted(shipped_skills())]
    out.draw_table("", rows, shrink={0: 16})


@verb(skills_app, "show")
def show_skill(
    invocation: Invocation, name: Annotated[str, typer.Argument(metavar="NAME", help="The skill's name.")]
) -> None:
    """Show the prompts that drivers add to a skill.

    A skill that comes with Interlock is printed whole, as its SKILL.md.

    Examples:
        interlock skills show summarize
        interlock skills show summarize --json
    """
    if (text := shipped_skills().get(name)) is not None:
        if invocation.out.as_json:
            invocation.out.json({"name": name, "text": text})
        else:
            invocation.out.document(text.rstrip("\n"))
        return
    answer = invocation.node.call(LIST_SKILLS)
    skills = {skill["name"]: skill for skill in answer.value["skills"]}
    if name not in skills:
        hint = "interlock skills list shows all" if skills else "no driver adds a prompt to a skill"
        raise Refused("not_found", f"there is no skill {name} with blocks", hint=hint)
    out = invocation.out
    if out.as_json:
        out.json(skills[name])
        return
    rows = [
        ((block.block, "bold"), server_name(block.driver), block.server_prompt, (block.description, "dim"))
        for skill in answer.as_(api.Skills).skills
        for block in (skill.blocks if skill.name == name else ())
    ]
    out.draw_table("BLOCK|DRIVER|ITS PROMPT|WHAT IT DOES", rows, shrink={3: 12, 0: 16, 2: 12})


def shipped_skills() -> dict[str, str]:
    """Return the SKILL.md texts of the skills that are shipped with Interlock, by name."""
    from importlib.resources import files

    folders = (files("interlock") / "shipped" / "skills").iterdir()
    return {each.name: (each / "SKILL.md").read_text("utf-8") for each in folders if each.is_dir()}

"""interlock skills list | show"""

from typing import Annotated

import typer

from interlock.catalog.api import LIST_SKILLS
from interlock.cli.command import Invocation, verb, verb_app
from interlock.drivers.api import Skills
from interlock.wire.refusal import Refused

app = verb_app(
    "See the skills that drivers add prompts to.",
    examples="""
    interlock skills list
    interlock skills show author-mcp
    """,
)


@verb(app, "list")
def list_skills(invocation: Invocation) -> None:
    """List skills: those with blocks of drivers, and our own.

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
    skills = answer.as_(Skills).skills
    if not skills:
        out.remark("no driver adds a prompt to a skill (integrate_as: skill_block)")
    rows = [((skill.name, "bold"), count(len(skill.blocks), "block")) for skill in skills]
    rows += [((name, "bold"), "comes with Interlock") for name in sorted(shipped_skills())]
    out.draw_table("", rows, shrink={0: 16})


@verb(app, "show")
def show(
    invocation: Invocation, name: Annotated[str, typer.Argument(metavar="NAME", help="The skill's name.")]
) -> None:
    """Show the blocks of a skill: prompts of drivers, and who serves them.

    A skill that comes with Interlock is printed whole, as its SKILL.md.

    Examples:
        interlock skills show summarize
        interlock skills show summarize --json
    """
    if (text := shipped_skills().get(name)) is not None:
        if invocation.out.as_json:
            invocation.out.json({"name": name, "text": text})
        else:
            invocation.out.line(text.rstrip("\n"))
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
    from interlock.drivers.protocol.server_name import server_name

    rows = [
        ((block.block, "bold"), server_name(block.driver), block.server_prompt, (block.description, "dim"))
        for skill in answer.as_(Skills).skills
        for block in (skill.blocks if skill.name == name else ())
    ]
    out.draw_table("BLOCK|DRIVER|ITS PROMPT|WHAT IT DOES", rows, shrink={3: 12, 0: 16, 2: 12})


def shipped_skills() -> dict[str, str]:
    """Return the SKILL.md texts of the skills that are shipped with Interlock, by name."""
    from importlib.resources import files

    folders = (files("interlock") / "shipped" / "skills").iterdir()
    return {each.name: (each / "SKILL.md").read_text("utf-8") for each in folders if each.is_dir()}

"""interlock audit tail | verify | export"""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec import to_builtins

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.drawing import poll
from interlock.cli.terminal.errors import EXIT_REFUSED, Unreachable
from interlock.cli.terminal.text import count, latency, local_time, repeats
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.cli.client.offline import StoredAudit
    from interlock.cli.client.operator import Answer
    from interlock.store.api import AuditRecord

FOLLOW_S = 0.5
CALL = "tools/call"  # of every other method, its name is shown too
METHOD_WORDS = {"approvals/raise": "approval requested:", "approvals/move": "approval of"}  # as a person reads them
PAGE = 1000
_WHO = {"local": "this machine", "node": "Interlock"}
_DONE = frozenset(("ok", "approved", "enrolled", "kept", "made", "removed", "revoked", "used"))

app = verb_app(
    "Watch, prove and export the record of every call.",
    examples="""
    interlock audit tail --follow
    interlock audit verify
    interlock audit export > audit.jsonl
    """,
)


@verb(app, "tail")
def tail(
    invocation: Invocation,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=PAGE, help="How many of the last records.")] = 20,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing new records until Ctrl-C.")] = False,
) -> None:
    """Show the last records: who called what, and how it ended.

    With --json each record is one line. If no node runs, the log in the data folder is read.

    Examples:
        interlock audit tail
        interlock audit tail -n 5 --follow
        interlock audit tail --json | jq 'select(.outcome != "ok")'
    """
    from interlock.store.api import AuditPage, AuditRecord

    page = _pages(invocation)
    last = page(0, 1).as_(AuditPage[AuditRecord]).last
    answer = page(max(0, last - lines), lines)
    _print(invocation, answer, head=True)
    if not follow:
        return
    seen = answer.as_(AuditPage[AuditRecord]).records
    after = seen[-1].seq if seen else last

    def ask() -> "Answer":
        return page(after, PAGE)

    try:
        for newest in poll(ask, every_s=FOLLOW_S):
            if isinstance(newest, Unreachable):
                continue
            records = newest.as_(AuditPage[AuditRecord]).records
            if records:
                after = records[-1].seq
                _print(invocation, newest, head=False)
    except KeyboardInterrupt:
        pass


def _pages(invocation: Invocation) -> "Callable[[int, int], Answer]":
    """Return a function that reads a page of the audit log: from the running node or, if none runs, from its data
    folder.
    """
    from interlock.store.api import READ_AUDIT

    def from_node(after: int, limit: int) -> "Answer":
        return invocation.node.call(READ_AUDIT, after=after, limit=limit)

    try:
        from_node(0, 1)
    except Unreachable as away:
        has_log = (invocation.data_folder / "audit").is_dir()
        if invocation.remote_url is not None or away.code != "not_running" or not has_log:
            raise
        return _stored_audit(invocation).page
    return from_node


def _print(invocation: Invocation, answer: "Answer", *, head: bool) -> None:
    """Print a page of audit records: as JSON lines, or as a table in which a line that occurs several times in a row is
    shown once with a count.
    """
    out = invocation.out
    if out.as_json:
        for record in answer.value["records"]:
            out.json_line(record)
        return
    from rich.text import Text

    from interlock.store.api import AuditPage, AuditRecord

    records = answer.as_(AuditPage[AuditRecord]).records
    if not records and head:
        out.remark("no records yet")
        return
    rows = []
    for times, record in repeats(records, lambda each: (each.who, *_describe(each))):
        what, outcome = _describe(record)
        what += f" (×{times})" if times > 1 else ""
        good = record.outcome in _DONE
        took = latency(record.ms) if record.ms is not None else ""
        who, done = Text(_WHO.get(record.who, record.who)), Text(outcome, style="green" if good else "red")
        at = local_time(record.at, "%H:%M:%S")
        rows.append(((at, "dim"), who, Text(what, style="bold"), done, (took, "dim")))
    heads = "TIME|WHO|WHAT|OUTCOME|TOOK" if head else ""
    out.draw_table(heads, rows, {3: 12, 1: 10, 2: 20}, right=frozenset((4,)))
    sys.stdout.flush()


@verb(app, "verify")
def verify(invocation: Invocation) -> None:
    """Prove that no record was changed, removed or moved.

    Reads the data folder itself, whether a node runs or not. The log of the registry of names is checked with it.

    Examples:
        interlock audit verify
        interlock audit verify --data /srv/interlock --json
    """
    stored = _stored_audit(invocation)
    verdict, names = stored.verify(), stored.verify_names()
    broken, names_broken = verdict.broken, names.broken if names is not None else None
    out = invocation.out
    if out.as_json:
        head = {"sequence": verdict.last.sequence, "hash": verdict.last.hash.hex()}
        start = {"sequence": verdict.start.sequence, "hash": verdict.start.hash.hex()}
        report = {"intact": verdict.intact, "records": verdict.records, "start": start, "last": head}
        report["broken"] = to_builtins(broken)
        if names is not None:
            report["names"] = {"intact": names.intact, "records": names.records, "broken": to_builtins(names_broken)}
        out.json(report)
    elif broken is None:
        out.line(f"intact: {count(verdict.records, 'record')}, the last is {verdict.last.sequence}")
        out.line(f"head    {verdict.last.hash.hex()}")
        if verdict.start.sequence:
            out.line(f"start   {verdict.start.hash.hex()}, of record {verdict.start.sequence}: all to it were given up")
    else:
        out.line(f"BROKEN at record {broken.sequence} ({broken.flaw}): {broken.reason}")
        out.line(f"the {verdict.records} records before it are intact")
    if names_broken is not None and not out.as_json:  # REG-5-15
        place = f"record {names_broken.sequence} ({names_broken.flaw})"
        out.line(f"the log of the registry of names is BROKEN at {place}: {names_broken.reason}")
    if broken is not None or names_broken is not None:
        raise typer.Exit(EXIT_REFUSED)


@verb(app, "export")
def export(
    invocation: Invocation,
    form: Annotated[Literal["jsonl"], typer.Option("--format", help="One JSON object per line.")] = "jsonl",
    after: Annotated[int, typer.Option("--after", min=0, metavar="SEQ", help="Only records after this one.")] = 0,
) -> None:
    """Write every record with its place in the chain.

    Oldest first, to stdout. Reads the data folder itself, whether a node runs or not.

    Examples:
        interlock audit export > audit.jsonl
        interlock audit export --after 1000 --format jsonl
    """
    del form  # there is one so far

    _stored_audit(invocation).export(after, invocation.out.document)


def _describe(record: "AuditRecord") -> tuple[str, str]:
    """Return two texts about an audit record: what happened, with the tool, token, secret or participant, and the
    outcome.
    """
    method = METHOD_WORDS.get(record.method, record.method)
    words: list[str | None] = [record.tool] if record.tool and record.method == CALL else [method, record.tool]
    if record.token_name is not None:
        words += [record.token_name, f"for {record.token_for}"]
        words += (
            [f"{record.room} as {record.participant}, {record.privilege or 'as the room decides'}"]
            if record.room
            else []
        )
    else:
        words += [record.secret_name, record.participant]
    what = " ".join(word for word in words if word)
    remarks = [f"signed with key {record.anchor}"] if record.anchor else []
    remarks += [record.reason] if record.reason else []
    return what, f"{record.outcome} ({'; '.join(remarks)})" if remarks else record.outcome


def _stored_audit(invocation: Invocation) -> "StoredAudit":
    from interlock.cli.client.offline import StoredAudit

    if invocation.remote_url is not None:
        raise Refused(
            "only_local",
            "this command reads the data folder, which another node keeps to itself",
            hint="run it on the node's machine, or use interlock audit tail",
        )
    return StoredAudit(invocation.loaded.plan, invocation.data_folder)

"""`interlock check --aql`: the live conformance suite, as lines or as the report, with its evidence as files."""

from pathlib import Path

import typer

from interlock.aql.cli.live_check import check_live, write_evidence
from interlock.cli.command import Invocation
from interlock.cli.config import load_configuration
from interlock.cli.terminal.errors import EXIT_REFUSED, BadUsage, Refused
from interlock.cli.terminal.text import count, one_line

WORDS = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}


def check_aql(invocation: Invocation, evidence: str | None) -> None:
    folder = None if evidence is None else Path(evidence).expanduser()
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadUsage("usage", f"{evidence} is not an empty folder", hint="name one that is empty or not there yet")
    plan = load_configuration(invocation, starting=False).plan
    report, exchanges = check_live(plan)
    out = invocation.out
    files = 0
    if folder is not None:
        try:
            files = write_evidence(folder, report, exchanges)
        except OSError as error:
            raise Refused("not_written", f"{folder} cannot be written: {error.strerror or error}") from None
    if out.as_json:
        out.json(report.shown())
    else:
        for section in report.sections:
            for test in section.tests:
                said = f": {one_line(test.message)}" if test.message else ""
                out.line(f"{WORDS[test.result]}  level {section.level}, {section.name} ({test.name}){said}")
        counts = report.counts()
        out.line(f"{report.claim()}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        if folder is not None:
            out.line(f"{folder}: {count(files, 'file')}")
    if not report.is_held:
        raise typer.Exit(EXIT_REFUSED)

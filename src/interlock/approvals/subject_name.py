"""The name of what an approval is about, as people see it everywhere else.

`Approval.tool` is the subject that is signed, and stays what it is: `drivers.filesystem-mcp@1` for the server that is
called `filesystem`, `approvers.ada` for ada. Of a tool it is the name already.
"""

from interlock.approvals.protocol.approval import Approval, Kind, Source
from interlock.drivers.protocol.server_name import server_name


def subject_name(approval: Approval) -> str:
    if approval.source is Source.DRIVERS:
        return server_name(approval.tool.removeprefix("drivers."))
    if approval.kind is Kind.ENROLMENT:
        return approval.tool.removeprefix("approvers.")
    return approval.tool.removeprefix("names.") if approval.source is Source.NAMES else approval.tool

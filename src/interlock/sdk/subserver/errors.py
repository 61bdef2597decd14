"""What a leaf can raise.

SubserverInvalid        what the Subserver was given cannot work; raised before anything is dialled
  ToolInvalid           a function cannot be offered as a tool
ToolFailed              raised by a tool: its message is what the caller is told
RegistrationRefused     the aggregator that started this program does not want it; elsewhere another try follows
"""


class SubserverInvalid(ValueError):
    pass


class ToolInvalid(SubserverInvalid):
    pass


class RegistrationRefused(Exception):
    pass


class ToolFailed(Exception):
    """A failure the caller may know about. Any other exception reaches it as a reference into this leaf's log only."""

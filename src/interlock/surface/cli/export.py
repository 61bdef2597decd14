"""interlock export"""

from interlock.surface.cli.command import verb_app

app = verb_app("Point other clients at this node.")

"""python -m tests.support.shown_modules: prints whether it is a copy of the preloaded process or a new interpreter."""

import sys

print("preloaded" if "interlock.node.node" in sys.modules else "new")

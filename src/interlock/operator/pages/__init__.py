"""The console: one small web application for operators, made of plain files that need no build and no network.

`frame` is what every page has around it, and reads the files under `static`. Each page is a document of its own whose
script uses the operator API and nothing else; which pages there are, the operator endpoint says.
"""

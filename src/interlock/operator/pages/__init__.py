"""The console: one small web application for operators, made of plain files that need no build and no network.

`frame` builds the parts that every page shares, and reads the files under `static`. Each page is a separate document,
and its script uses only the operator API. The operator endpoint determines which pages exist.
"""

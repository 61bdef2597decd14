"""The command line: one file per verb, each a thin face of the operator endpoint, the store or the configuration.

A verb gets an `Invocation` and its own arguments, says what it has to say through `Output`, and ends by returning or by
raising a `Refused`. Verbs import what is heavy inside their functions, so that starting costs only typer.
"""

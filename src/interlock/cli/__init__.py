"""The command line: one file per verb, each a thin layer over the operator endpoint, the store or the configuration.

A verb receives an `Invocation` and its arguments, writes its output through `Output`, and ends by returning or by
raising `Refused`. Verbs import large modules inside their functions, so that the program starts quickly.
"""

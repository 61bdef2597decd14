"""What an operator can ask of a running node, one module for each noun: values that JSON can hold, and a few commands.

Each class is constructed with just the parts it needs. The operator endpoint turns this into HTTP and adds nothing.
Methods without `async` answer from memory and do not block. Nothing here authenticates.
"""

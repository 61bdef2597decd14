"""Output of commands: results, errors and exit codes, and text that is safe to print."""

"""What every verb writes with: its output, its errors and exit codes, text that is safe to print."""

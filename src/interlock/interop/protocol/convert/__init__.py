"""Entries of other programs turned into drafts of driver folders, with secrets taken out and merges kept."""

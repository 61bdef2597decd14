"""The metrics of the registry of names, as text that monitoring programs read."""

from interlock.names.reminders import DueNames


def exposition(due: DueNames) -> str:
    entries = [f'interlock_names_entries{{status="{status}"}} {count}' for status, count in due.statuses.items()]
    lines = [
        *_head("interlock_names_entries", "Entries of the registry of names, by status."),
        *entries,
        *_head("interlock_names_reviews_overdue", "Provisional entries whose review is late."),
        f"interlock_names_reviews_overdue {due.overdue}",
        *_head("interlock_names_public_unconfirmed", "Public entries that were not confirmed for 90 days."),
        f"interlock_names_public_unconfirmed {due.unconfirmed}",
    ]
    return "\n".join(lines) + "\n"


def _head(metric: str, told: str) -> tuple[str, str]:
    return f"# HELP {metric} {told}", f"# TYPE {metric} gauge"

"""The metrics of the registry of names."""

from collections.abc import Callable

from interlock.core.metrics import Metrics, Sample
from interlock.names.reminders import DueNames


def define_name_metrics(metrics: Metrics, due: Callable[[], DueNames]) -> None:
    metrics.gauge(
        "interlock_names_entries",
        "Entries of the registry of names, by status.",
        lambda: [Sample(count, {"status": status}) for status, count in due().statuses.items()],
    )
    metrics.gauge(
        "interlock_names_reviews_overdue",
        "Provisional entries whose review is late.",
        lambda: [Sample(due().overdue)],
    )
    metrics.gauge(
        "interlock_names_public_unconfirmed",
        "Public entries that were not confirmed for 90 days.",
        lambda: [Sample(due().unconfirmed)],
    )

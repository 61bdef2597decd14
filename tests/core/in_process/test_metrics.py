"""The registry of metrics: what is defined beside the code that counts is printed for monitoring programs."""

import pytest

from interlock.core.metrics import Metrics, Sample


def test_metrics_are_printed_with_their_help_type_and_labels() -> None:
    metrics = Metrics()
    retries = metrics.counter("retries_total", "Calls that were sent again, by server.")
    metrics.gauge("sessions", "Sessions of clients.", lambda: [Sample(3)])
    metrics.histogram(
        "wait_seconds",
        "How long calls waited.",
        lambda: [Sample(1, {"le": "0.5"}, "_bucket"), Sample(0.25, suffix="_sum"), Sample(1, suffix="_count")],
    )
    retries.add(server="files")
    retries.add(2, server="files")
    retries.add(server="mail")
    assert metrics.text().splitlines() == [
        "# HELP retries_total Calls that were sent again, by server.",
        "# TYPE retries_total counter",
        'retries_total{server="files"} 3',
        'retries_total{server="mail"} 1',
        "# HELP sessions Sessions of clients.",
        "# TYPE sessions gauge",
        "sessions 3",
        "# HELP wait_seconds How long calls waited.",
        "# TYPE wait_seconds histogram",
        'wait_seconds_bucket{le="0.5"} 1',
        "wait_seconds_sum 0.25",
        "wait_seconds_count 1",
    ]


def test_a_label_cannot_break_out_of_its_line() -> None:
    metrics = Metrics()
    metrics.counter("refusals_total", "Refusals.").add(code='a"b\\c\nd')
    assert metrics.text().splitlines()[-1] == r'refusals_total{code="a\"b\\c\nd"} 1'


def test_a_name_is_defined_once() -> None:
    metrics = Metrics()
    metrics.counter("calls_total", "Calls.")
    with pytest.raises(ValueError, match="calls_total is defined twice"):
        metrics.gauge("calls_total", "Calls.", list)

"""The metrics of a node, and the text in which `/metrics` prints them (Prometheus 0.0.4).

A metric is defined once, beside the code that knows its value. Code that counts events owns a `Counter`:

    self._retries = metrics.counter("interlock_retries_total", "Calls that were sent again, by server.")
    self._retries.add(server=segment)

A value that exists anyway is read when somebody asks for it:

    metrics.gauge("interlock_sessions", "Sessions of clients.", lambda: [Sample(len(sessions))])
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Sample(msgspec.Struct, frozen=True):
    """A value of a metric. A histogram has several samples for each set of labels, distinguished by their suffix."""

    value: float
    labels: dict[str, str] = {}
    suffix: Literal["", "_bucket", "_sum", "_count"] = ""


Read = Callable[[], Iterable[Sample]]


class Counter:
    """A count of events since the start of the node, for each combination of labels."""

    def __init__(self) -> None:
        self._counts: dict[tuple[tuple[str, str], ...], int] = {}

    def add(self, amount: int = 1, **labels: str) -> None:
        key = tuple(labels.items())
        self._counts[key] = self._counts.get(key, 0) + amount

    def samples(self) -> list[Sample]:
        return [Sample(count, dict(labels)) for labels, count in self._counts.items()]


class Metrics:
    """The registry of a node's metrics. Each name can be registered only once."""

    def __init__(self) -> None:
        self._metrics: dict[str, tuple[str, str, Read]] = {}  # name -> type, help, how its values are read

    def counter(self, name: str, help: str) -> Counter:
        """Register a counter and return it. The code that sees the events increments it."""
        counter = Counter()
        self.read_counter(name, help, counter.samples)
        return counter

    def read_counter(self, name: str, help: str, read: Read) -> None:
        """Register a counter whose value another object keeps. `read` returns the value when metrics are requested."""
        self._define(name, "counter", help, read)

    def gauge(self, name: str, help: str, read: Read) -> None:
        """Register a gauge, a value that goes up and down. `read` returns it when metrics are requested."""
        self._define(name, "gauge", help, read)

    def histogram(self, name: str, help: str, read: Read) -> None:
        """Register a histogram. `read` returns cumulative buckets with the label `le`, a sum and a count."""
        self._define(name, "histogram", help, read)

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        lines: list[str] = []
        for name, (kind, help, read) in self._metrics.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            lines += [_line(name, sample) for sample in read()]
        return "".join(f"{line}\n" for line in lines)

    def _define(self, name: str, kind: str, help: str, read: Read) -> None:
        if name in self._metrics:
            raise ValueError(f"the metric {name} is defined twice")
        self._metrics[name] = (kind, help, read)


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in sample.labels.items())
    value = str(sample.value) if isinstance(sample.value, int) else f"{sample.value:g}"
    return f"{name}{sample.suffix}{{{labels}}} {value}" if labels else f"{name}{sample.suffix} {value}"

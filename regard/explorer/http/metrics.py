"""Counters and histograms in the text format that Prometheus reads.

>>> metrics = ServiceMetrics()
>>> metrics.count("requests", route="health", status="200")
>>> metrics.observe("seconds", 0.02, [0.01, 0.1])
>>> print(metrics.text(), end="")
# TYPE regard_requests_total counter
regard_requests_total{route="health",status="200"} 1
# TYPE regard_seconds histogram
regard_seconds_bucket{le="0.01"} 0
regard_seconds_bucket{le="0.1"} 1
regard_seconds_bucket{le="+Inf"} 1
regard_seconds_sum 0.02
regard_seconds_count 1
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32)

MetricLabels = tuple[tuple[str, str], ...]


class ServiceMetrics:
    """What happened so far. Called from the event loop only; label values are the service's own, never a client's."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[MetricLabels, int]] = {}
        self._histograms: dict[str, dict[MetricLabels, _Histogram]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def count(self, name: str, **labels: str) -> None:
        """One more."""
        family, key = self._counters.setdefault(name, {}), tuple(labels.items())
        family[key] = family.get(key, 0) + 1

    def observe(self, name: str, value: float, bounds: Sequence[float], **labels: str) -> None:
        """One more of this size."""
        family, key = self._histograms.setdefault(name, {}), tuple(labels.items())
        family.setdefault(key, _Histogram(bounds)).add(value)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """A number that is read when it is asked for."""
        self._gauges[name] = read

    def text(self) -> str:
        """All of it."""
        lines: list[str] = []
        for name, read in self._gauges.items():
            lines += [f"# TYPE regard_{name} gauge", f"regard_{name} {read():g}"]
        for name, counts in self._counters.items():
            lines.append(f"# TYPE regard_{name}_total counter")
            lines += [f"regard_{name}_total{_braces(key)} {count}" for key, count in counts.items()]
        for name, histograms in self._histograms.items():
            lines.append(f"# TYPE regard_{name} histogram")
            for key, histogram in histograms.items():
                lines += histogram.lines(f"regard_{name}", key)
        return "\n".join(lines) + "\n"


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = list(bounds), [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: MetricLabels) -> list[str]:
        lines, total = [], 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            lines.append(f"{name}_bucket{_braces((*labels, ('le', bound)))} {total}")
        return [*lines, f"{name}_sum{_braces(labels)} {self.sum:g}", f"{name}_count{_braces(labels)} {total}"]


def _braces(labels: MetricLabels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""

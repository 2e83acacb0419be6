"""The numbers of a server, for Prometheus.

In: the scheduler, and what happens to requests. Out: a registry of its own and its text. Names carry base units
(prometheus.io, "Metric and label naming"); what the scheduler counts itself is read when Prometheus asks.

>>> numbers = ServeMetrics("qwen3", lambda: None, lambda: "starting")
>>> "msparallel_serve_ready 0.0" in numbers.text()
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from msparallel.serve.requests import Span
from msparallel.serve.scheduler import Scheduler

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_ENDS = ("finished", "cancelled", "expired", "refused", "failed")


class ServeMetrics:
    """Args:
    model: its name, a label of msparallel_serve_info.
    scheduler: the scheduler of now, None before there is one.
    state: of the server.

    Attributes:
        errors: requests that were answered with an error, by status.
    """

    def __init__(self, model: str, scheduler: Callable[[], Scheduler | None], state: Callable[[], str]):
        self._model, self._scheduler, self._state = model, scheduler, state
        self._registry = CollectorRegistry(auto_describe=False)

        def histogram(name: str, told: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"msparallel_serve_{name}_seconds", told, buckets=buckets, registry=self._registry)

        self._spans: dict[Span, Histogram] = {
            "first_token": histogram("time_to_first_token", "From the request to the first token.", _SLOW),
            "between_tokens": histogram("time_between_tokens", "From a token to the next of the same answer.", _FAST),
            "request": histogram("request", "From the request to the end of its answer.", _SLOW),
            "queue": histogram("queue", "From the request to its place in the batch.", _SLOW),
        }
        self.errors = Counter("msparallel_serve_errors", "Requests answered with an error.", ["status"],
                              registry=self._registry)  # fmt: skip
        self._registry.register(self)  # type: ignore[arg-type]

    def took(self, span: Span, seconds: float) -> None:
        """One more observation: the scheduler's `on_time`."""
        self._spans[span].observe(seconds)

    def text(self) -> str:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def describe(self) -> Iterable[Metric]:
        """Nothing before there is a scheduler."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Gauges and counters of this moment."""
        state = self._state()
        yield _gauge("ready", "1 where requests are taken.", float(state == "ready"))
        info = GaugeMetricFamily("msparallel_serve_info", "Labels: the model and the server's state.",
                                 labels=["model", "state"])  # fmt: skip
        info.add_metric([self._model, state], 1)
        yield info
        scheduler = self._scheduler()
        if scheduler is None:
            return
        counts = scheduler.counts
        yield _gauge("requests_running", "Requests in the batch.", scheduler.running)
        yield _gauge("requests_waiting", "Requests that wait for a place.", scheduler.waiting)
        yield _gauge("cache_used_ratio", "Keys and values of running requests, of what there is room for.",
                     scheduler.cached_tokens / scheduler.room_tokens)  # fmt: skip
        ended = CounterMetricFamily("msparallel_serve_requests", "Requests by how they ended; refused: the queue was "
                                    "full.", labels=["end"])  # fmt: skip
        for end in _ENDS:
            ended.add_metric([end], getattr(counts, end))
        yield ended
        tokens = CounterMetricFamily("msparallel_serve_tokens", "prompt: read. reused: of prompts, still held from an "
                                     "earlier request. answer: chosen.", labels=["kind"])  # fmt: skip
        for kind in ("prompt", "reused", "answer"):
            tokens.add_metric([kind], getattr(counts, f"{kind}_tokens"))
        yield tokens
        yield CounterMetricFamily("msparallel_serve_steps", "Steps of decoding.", value=counts.steps)
        yield CounterMetricFamily("msparallel_serve_stepped", "Requests, added up over steps of decoding.",
                                  value=counts.stepped)  # fmt: skip


def _gauge(name: str, told: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"msparallel_serve_{name}", told, value=value)

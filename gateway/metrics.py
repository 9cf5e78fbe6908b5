"""What `/metrics` shows: counters and histograms of this app alone, and the numbers that backends report."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.types import BackendHealth, Chunk, GenerateRequest, Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.08, 0.15, 0.3, 0.5, 1, 2.5, 5, 10, 30, 60)
LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class Metrics:
    """The front's own numbers. Labels are bounded: lanes and models come from the config, never from a client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.clock = clock
        self.requests = Counter(
            "inference_requests",
            "Requests to the generating routes, by HTTP status; 499 means that the client left.",
            ("model", "route", "status"),
            registry=self.registry,
        )
        self.latency = self._histogram(
            "inference_latency_seconds", "Arrival to the end of the answer.", ("model", "route"), LATENCY_BUCKETS
        )
        self.ttft = self._histogram(
            "laneway_ttft_seconds", "Arrival to the first token, queue wait included.", ("lane",), WAIT_BUCKETS
        )
        self.itl = self._histogram(
            "laneway_itl_seconds", "Gap between two pieces of one answer.", ("lane",), GAP_BUCKETS
        )
        self.queue_wait = self._histogram(
            "laneway_queue_wait_seconds", "Arrival to the moment work began.", ("lane",), WAIT_BUCKETS
        )
        self.tokens = Counter(
            "laneway_tokens", "Tokens, also of answers that were cut off.", ("kind",), registry=self.registry
        )
        self.unknown_fields = Counter(
            "laneway_unknown_fields", "Fields of request bodies that nothing here knows.", registry=self.registry
        )
        self.batch_lines = Counter(
            "laneway_batch_lines",
            "Lines of batches that are done, by how they ended.",
            ("outcome",),
            registry=self.registry,
        )
        self.batch_lines_waiting = Gauge(
            "laneway_batch_lines_waiting", "Lines of batches that wait to be tried.", registry=self.registry
        )
        self.lag = self._histogram(
            "laneway_loop_lag_seconds", "How late the event loop is at its own timers.", (), LAG_BUCKETS
        )
        self.loop_lag = LoopLag(self.lag.observe)
        self.requests_done = 0
        self.tokens_done = {"prompt": 0, "completion": 0, "cached": 0}

    def meter(self, request: GenerateRequest) -> Meter:
        """Begin to observe one request."""
        return Meter(self, request.lane)

    def finish(self, model: str, route: str, status: int, seconds: float) -> None:
        """Count a request that is over. `model` must be one that is served, or a fixed word."""
        self.requests_done += 1
        self.requests.labels(model, route, str(status)).inc()
        self.latency.labels(model, route).observe(seconds)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)


class LoopLag:
    """Measures, while it runs, how much later than asked for the event loop wakes a sleeper."""

    EVERY_S = 0.1
    REMEMBERED = 100

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._recent: deque[float] = deque(maxlen=self.REMEMBERED)

    @property
    def worst_s(self) -> float:
        """Of the last ten seconds."""
        return max(self._recent, default=0.0)

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_at = loop.time() + self.EVERY_S
            await asyncio.sleep(self.EVERY_S)
            lag_s = max(0.0, loop.time() - due_at)
            self._recent.append(lag_s)
            self._observe(lag_s)


class Meter:
    """Observes one request from its arrival to its end."""

    def __init__(self, metrics: Metrics, lane: str) -> None:
        self._metrics = metrics
        self._gaps = metrics.itl.labels(lane)
        self._lane = lane
        self._arrived_at = metrics.clock()
        self._last_at: float | None = None
        self._usage = Usage()

    def begin(self) -> None:
        """The request waits no longer."""
        self._metrics.queue_wait.labels(self._lane).observe(self._metrics.clock() - self._arrived_at)

    def observe(self, chunk: Chunk) -> None:
        """One more chunk."""
        self._usage = chunk.usage
        if not chunk.is_visible or chunk.vector is not None:  # a vector is no token, and nobody sees it alone
            return
        now = self._metrics.clock()
        if self._last_at is None:
            self._metrics.ttft.labels(self._lane).observe(now - self._arrived_at)
        else:
            self._gaps.observe(now - self._last_at)
        self._last_at = now

    @property
    def num_tokens(self) -> int:
        """Tokens read and made so far."""
        return self._usage.prompt_tokens + self._usage.completion_tokens

    def end(self) -> None:
        """Count what was made, whatever the way it ended. Never awaits."""
        usage = self._usage
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("completion", usage.completion_tokens),
            ("cached", usage.cached_tokens),
        ):
            if count:
                self._metrics.tokens_done[kind] += count
                self._metrics.tokens.labels(kind).inc(count)


class LaneGauges(Collector):
    """`laneway_running` and `laneway_waiting`, read when scraped. The counts are per lane."""

    def __init__(self, running: Callable[[], Mapping[str, int]], waiting: Callable[[], Mapping[str, int]]) -> None:
        self._counts = {"running": running, "waiting": waiting}

    def collect(self) -> Iterator[Metric]:
        for word, read in self._counts.items():
            family = GaugeMetricFamily(f"laneway_{word}", f"Requests {word} now.", labels=("lane",))
            for lane, count in read().items():
                family.add_metric((lane,), count)
            yield family


class BackendGauges(Collector):
    """What backends say of themselves: `laneway_backend_*`, and `laneway_<name>` for each metric they report.

    A name that the front uses itself gets `reported_` before it.
    """

    def __init__(self, health: Callable[[], Mapping[str, BackendHealth]], front: CollectorRegistry) -> None:
        self._health = health
        own = ("laneway_backend_ready", "laneway_backend_running", "laneway_backend_waiting")
        self._taken = {*own, *(family.name for family in front.collect())}

    def collect(self) -> Iterator[Metric]:
        health = self._health()
        yield _gauge("ready", "1 while answers flow.", {name: float(state.ready) for name, state in health.items()})
        yield _gauge("running", "Requests it computes.", {name: state.running for name, state in health.items()})
        yield _gauge("waiting", "Requests in its queue.", {name: state.waiting for name, state in health.items()})
        yield from self._reported(health)

    def _reported(self, health: Mapping[str, BackendHealth]) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for backend, state in health.items():
            for metric in state.metrics:
                is_taken = f"laneway_{metric.name.removesuffix('_total')}" in self._taken
                name = f"laneway_reported_{metric.name}" if is_taken else f"laneway_{metric.name}"
                made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = families.setdefault(name, made(name, metric.help, labels=("backend",)))
                family.add_metric((backend,), metric.value)
        yield from families.values()


def _gauge(word: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"laneway_backend_{word}", text, labels=("backend",))
    for backend, value in values.items():
        family.add_metric((backend,), value)
    return family

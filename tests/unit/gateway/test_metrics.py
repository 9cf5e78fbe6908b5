"""What `/metrics` shows."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from backends.types import BackendHealth, Chunk, FinishReason, GenerateRequest, Metric, Usage
from gateway.metrics import BackendGauges, LaneGauges, Metrics
from tests.conftest import FakeClock

REQUEST = GenerateRequest(request_id="r", route="chat", model="m", lane="batch")


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name and labels."""
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_a_meter_observes_wait_first_token_gaps_and_tokens(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    meter = metrics.meter(REQUEST)
    clock.advance(0.5)
    meter.begin()
    meter.observe(Chunk(usage=Usage(prompt_tokens=7)))
    clock.advance(0.25)
    meter.observe(Chunk(usage=Usage(prompt_tokens=7, completion_tokens=1), text="a"))
    clock.advance(0.1)
    meter.observe(
        Chunk(usage=Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=3), finish_reason=FinishReason.STOP)
    )
    meter.end()

    seen = values(metrics)

    assert seen["laneway_queue_wait_seconds_sum lane=batch"] == 0.5
    assert seen["laneway_ttft_seconds_sum lane=batch"] == 0.75
    assert round(seen["laneway_itl_seconds_sum lane=batch"], 6) == 0.1
    assert seen["laneway_tokens_total kind=prompt"] == 7
    assert seen["laneway_tokens_total kind=completion"] == 2
    assert seen["laneway_tokens_total kind=cached"] == 3
    assert meter.num_tokens == 9


def test_an_answer_cut_off_counts_the_tokens_it_made(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    meter = metrics.meter(REQUEST)
    meter.observe(Chunk(usage=Usage(prompt_tokens=7, completion_tokens=1), text="a"))
    meter.end()

    assert values(metrics)["laneway_tokens_total kind=completion"] == 1


def test_vectors_are_neither_a_first_token_nor_gaps_between_tokens(clock: FakeClock) -> None:
    metrics = Metrics(clock)
    meter = metrics.meter(REQUEST)
    for index in range(3):
        clock.advance(0.1)
        usage = Usage(prompt_tokens=index + 1)
        meter.observe(Chunk(usage=usage, index=index, vector=b"\0" * 4, finish_reason=FinishReason.STOP))
    meter.end()

    seen = values(metrics)

    assert (seen.get("laneway_ttft_seconds_count lane=batch", 0), seen["laneway_itl_seconds_count lane=batch"]) == (
        0,
        0,
    )
    assert seen["laneway_tokens_total kind=prompt"] == 3


def test_each_app_has_its_own_numbers() -> None:
    one, two = Metrics(), Metrics()
    one.finish("m", "chat", 200, 0.1)

    assert "inference_requests_total model=m route=chat status=200" in values(one)
    assert "inference_requests_total model=m route=chat status=200" not in values(two)


def test_backends_report_beside_the_front_and_never_over_it() -> None:
    reported = (
        Metric(name="kv_blocks_used", kind="gauge", help="h", value=5),
        Metric(name="steps_total", kind="counter", help="h", value=9),
        Metric(name="running", kind="gauge", help="h", value=3),
        Metric(name="backend_ready", kind="gauge", help="h", value=0),
        Metric(name="tokens_total", kind="counter", help="h", value=4),
    )
    health = {
        "a": BackendHealth(ready=True, running=1, waiting=2, metrics=reported),
        "b\n": BackendHealth(ready=False, metrics=reported[:1]),
    }
    metrics = Metrics()
    metrics.registry.register(LaneGauges(lambda: {"batch": 8}, lambda: {"batch": 9}))
    metrics.registry.register(BackendGauges(lambda: health, metrics.registry))

    seen = values(metrics)

    assert seen["laneway_kv_blocks_used backend=a"] == 5
    assert seen["laneway_kv_blocks_used backend=b\n"] == 5
    assert seen["laneway_steps_total backend=a"] == 9
    assert seen["laneway_running lane=batch"] == 8
    assert seen["laneway_waiting lane=batch"] == 9
    assert seen["laneway_reported_tokens_total backend=a"] == 4
    assert seen["laneway_backend_ready backend=a"] == 1
    assert seen["laneway_backend_ready backend=b\n"] == 0
    names = [family.name for family in text_string_to_metric_families(metrics.render().decode())]
    assert len(names) == len(set(names))

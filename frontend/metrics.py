"""Prometheus metrics, read off the service at each scrape."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from frontend.service import Service
from ipc.messages import EngineStatus, WorkerStatus

_WORKER_COUNTERS = {
    "opened": "Streams opened.",
    "stale": "Messages dropped because their stream had ended or moved.",
    "not_owned": "Messages dropped because they came from another than the owner.",
    "rejected": "Messages that were none.",
}
_ENGINE_COUNTERS = {
    "steps": "Engine steps.",
    "generated_tokens": "Tokens generated.",
    "prompt_tokens": "Prompt tokens computed.",
    "preemptions": "Sequences preempted for want of blocks, or of another tenant's share.",
    "prefix_queried_tokens": "Prompt tokens looked up in the prefix cache.",
    "prefix_hit_tokens": "Prompt tokens found in the prefix cache.",
    "evicted_blocks": "Blocks evicted from the prefix cache.",
    "errors": "Sequences ended by an error.",
    "rejected": "Messages that were none.",
}
_ENGINE_GAUGES = {
    "running": "Sequences running.",
    "waiting": "Sequences waiting.",
    "kept": "Ended sequences whose streams have not.",
    "free_blocks": "Free KV cache blocks, those included that are kept for their prefix.",
    "cached_blocks": "KV cache blocks that are kept for their prefix alone.",
    "total_blocks": "KV cache blocks.",
}


class ServiceCollector(Collector):
    """What the frontend knows of its streams, its workers and its engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._frontend()
        yield from self._workers()
        if self._service.engine.status is not None:
            yield from _engine(self._service.engine.status)

    def _frontend(self) -> Iterator[Metric]:
        streams = self._service.streams
        yield GaugeMetricFamily(
            "antiphon_frontend_streams_live", "Streams with a client.", streams.live
        )
        ended = CounterMetricFamily(
            "antiphon_frontend_streams_ended", "Streams by how they ended.", labels=["reason"]
        )
        for reason, count in streams.ended.items():
            ended.add_metric([reason], count)
        yield ended
        yield CounterMetricFamily(
            "antiphon_frontend_streams_moved",
            "Streams opened again on another worker.",
            streams.moved,
        )
        yield CounterMetricFamily(
            "antiphon_frontend_stale_outputs",
            "Outputs for streams that had ended.",
            streams.stale_outputs,
        )
        yield GaugeMetricFamily(
            "antiphon_responses_in_background",
            "Responses that run without a client.",
            self._service.responses.in_background,
        )
        yield CounterMetricFamily(
            "antiphon_store_errors",
            "Responses not stored, and other failures of the store.",
            self._service.responses.errors,
        )
        up = GaugeMetricFamily("antiphon_up", "Whether a process is connected.", labels=["process"])
        up.add_metric(["engine"], float(self._service.engine.info is not None))
        for worker in self._service.pool.load:
            up.add_metric([f"worker {worker}"], float(worker in self._service.pool.up))
        yield up

    def _workers(self) -> Iterator[Metric]:
        known = [(str(w), s) for w, s in self._service.pool.status.items() if s is not None]
        live = GaugeMetricFamily(
            "antiphon_worker_streams_live", "Streams whose state is held.", labels=["worker"]
        )
        for worker, status in known:
            live.add_metric([worker], status.live)
        yield live
        for field, text in _WORKER_COUNTERS.items():
            name = "streams_opened" if field == "opened" else f"messages_{field}"
            counter = CounterMetricFamily(f"antiphon_worker_{name}", text, labels=["worker"])
            for worker, status in known:
                counter.add_metric([worker], getattr(status, field))
            yield counter
        yield _by_kind("streams_released", "Streams released.", "reason", known)
        yield _by_kind("markup_recovered", "Malformed markup mended.", "kind", known)


def _by_kind(
    name: str, text: str, label: str, known: list[tuple[str, WorkerStatus]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"antiphon_worker_{name}", text, labels=["worker", label])
    for worker, status in known:
        counts = status.released if label == "reason" else status.recovered
        for kind, count in counts.items():
            family.add_metric([worker, kind], count)
    return family


def _engine(status: EngineStatus) -> Iterator[Metric]:
    for field, text in _ENGINE_GAUGES.items():
        yield GaugeMetricFamily(f"antiphon_engine_{field}", text, getattr(status, field))
    for field, text in _ENGINE_COUNTERS.items():
        yield CounterMetricFamily(f"antiphon_engine_{field}", text, getattr(status, field))


def registry_of(service: Service) -> CollectorRegistry:
    """A registry with nothing but this service's metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service))
    return registry

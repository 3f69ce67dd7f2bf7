"""What a Prometheus reads: docs/metrics.md explains it line by line. Nothing in it is anybody's: no owner, id or name."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

import sessionstore
from sessionstore.measures import Histogram, Measured
from sessionstore_api.calls import Call
from sessionstore_api.observed import Tally
from sessionstore_api.replies import Reply
from sessionstore_api.requests import NoQuery

PROCESS = ProcessCollector(registry=None)


async def metrics(call: Call[None, NoQuery]) -> Response:
    """How this server is doing, for Prometheus to read. Needs a key with the right `admin`, where keys are wanted."""
    measured = await call.store.measured()
    found = Found(measured, call.app_state.tally, call.store.followers)
    # What the process uses is read from files.
    written = await call.store.run(lambda: generate_latest(found), reading=True)
    return Reply(200, written, CONTENT_TYPE_LATEST.encode(), [])


class Found(Collector):
    """All of it, as of one moment."""

    def __init__(self, measured: Measured, tally: Tally, followers: int) -> None:
        self._measured, self._tally, self._followers = measured, tally, followers

    def collect(self) -> Iterator[Metric]:
        """Each family."""
        yield InfoMetricFamily(
            "sessionstore", "Which version this is, and what it runs on",
            {"version": sessionstore.__version__, "engine": self._measured.engine.name},
        )  # fmt: skip
        yield from self._requests()
        yield from self._writes()
        yield from self._leases()
        yield from PROCESS.collect()

    def _requests(self) -> Iterator[Metric]:
        tally = self._tally
        ended = CounterMetricFamily("sessionstore_requests", "Requests that are over", labels=("method", "route", "status"))
        for (method, route, status), count in tuple(tally.requests.items()):
            ended.add_metric((method, route, str(status)), count)
        yield ended
        seconds = HistogramMetricFamily("sessionstore_request_seconds", "How long they took; no streams", labels=("route",))
        for route, histogram in tuple(tally.seconds.items()):
            _add(seconds, histogram, route)
        yield seconds
        problems = CounterMetricFamily("sessionstore_problems", "Requests that were refused, by their code", labels=("code",))
        for code, count in tuple(tally.problems.items()):
            problems.add_metric((code,), count)
        yield problems
        yield _gauge("sessionstore_requests_under_way", "Requests and streams that are not over", tally.under_way)
        yield _gauge("sessionstore_event_subscribers", "Streams of events that are followed", self._followers)

    def _writes(self) -> Iterator[Metric]:
        measured, measures = self._measured, self._measured.measures
        yield _gauge("sessionstore_write_queue", "Calls that wait for their turn to write", measured.waiting)
        for name, about, histogram in (
            ("sessionstore_write_wait_seconds", "How long calls that stood in line waited", measures.waits),
            ("sessionstore_commit_seconds", "How long a COMMIT took, with the disk", measures.commits),
            ("sessionstore_group_size", "How many calls shared a COMMIT", measures.groups),
        ):
            family = HistogramMetricFamily(name, about, labels=())
            _add(family, histogram)
            yield family
        if measured.engine.log_bytes is not None:
            yield _gauge("sessionstore_log_bytes", "The size of the write-ahead log", measured.engine.log_bytes)
        yield _gauge("sessionstore_oldest_read_seconds", "How long the longest read has been going on", measured.oldest_read)

    def _leases(self) -> Iterator[Metric]:
        measured, measures = self._measured, self._measured.measures
        leases = GaugeMetricFamily(
            "sessionstore_leases", "Turns that go on, and those whose holder is silent", labels=("state",)
        )
        leases.add_metric(("live",), measured.live)
        leases.add_metric(("expired",), measured.expired)
        yield leases
        yield CounterMetricFamily("sessionstore_takeovers", "Expired leases that others have ended", measures.takeovers)
        yield CounterMetricFamily("sessionstore_lost_leases", "Calls whose token held no lease", measures.lost_leases)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value)


def _add(family: HistogramMetricFamily, histogram: Histogram, *labels: str) -> None:
    counts = histogram.read()
    buckets: list[Any] = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in counts.up_to]
    family.add_metric(labels, buckets, counts.sum)

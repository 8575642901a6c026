"""Counters of a server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from gradwire.errors import ConfigError
from gradwire.kvstore.server.core import ServerCore

__all__ = ["serve"]


class ServerCollector(Collector):
    """A collector that reads a server's counters when it is scraped."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core

    def collect(self) -> Iterator[Metric]:
        counters = self.core.counters
        pushes = CounterMetricFamily("gradwire_pushes", "Pushes taken in", labels=["compressor"])
        received = CounterMetricFamily("gradwire_received_bytes", "Bytes of pushes", labels=["compressor"])
        for name in list(counters.pushes):
            pushes.add_metric([name], counters.pushes[name])
            received.add_metric([name], counters.bytes_in[name])
        sent = CounterMetricFamily("gradwire_sent_bytes", "Bytes of values handed out", labels=["compressor"])
        for name in list(counters.bytes_out):
            sent.add_metric([name], counters.bytes_out[name])
        yield from (pushes, received, sent)
        yield CounterMetricFamily("gradwire_pulls", "Values handed out", value=counters.pulls)
        yield CounterMetricFamily("gradwire_repeated_pushes", "Pushes that came again", value=counters.repeated)
        yield CounterMetricFamily("gradwire_refused", "Messages answered with an error", value=counters.refused)
        yield SummaryMetricFamily(
            "gradwire_step_seconds",
            "From the first push of a step of a key to its update",
            counters.steps,
            counters.waited,
        )
        yield GaugeMetricFamily("gradwire_waiting", "Requests that wait", value=len(self.core.pending))
        yield GaugeMetricFamily("gradwire_dead_workers", "Workers that are silent", value=len(self.core.members.dead))


def serve(core: ServerCore, port: int) -> int:
    """Serve scrapes at ``http://127.0.0.1:port/metrics`` from a thread of its own.

    Args:
        core: core whose counters are served.
        port: 0 takes a free one.

    Returns:
        The port.

    Raises:
        ConfigError: the port is taken, or this user may not have it.
    """
    registry = CollectorRegistry()
    registry.register(ServerCollector(core))
    try:
        server, _ = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise ConfigError(f"--metrics-port must be a free port, or 0 for any free one, got {port}: {error}") from None
    return int(server.server_port)

"""The metrics of client quotas, one sample for each limit that somebody has used lately."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.network.client_quotas import ClientQuotas
from broker.observability import metric_definitions as metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def quota_metrics(quotas: ClientQuotas) -> Iterator[Metric]:
    """All of them. The other of user and client id is empty where only one has the quota."""
    now_ms = quotas.now_s() * 1000
    for usages, of_rate, of_time in (
        (quotas.produce, metric.PRODUCE_RATE, metric.PRODUCE_THROTTLE),
        (quotas.fetch, metric.FETCH_RATE, metric.FETCH_THROTTLE),
        (quotas.request, metric.REQUEST_RATE, metric.REQUEST_THROTTLE),
        (quotas.mutations, metric.MUTATION_RATE, metric.MUTATION_THROTTLE),
    ):
        rates, times = of_rate.family(), of_time.family()
        for sharers, usage in usages:
            rates.add_metric(sharers, usage.rate.measure(now_ms))
            times.add_metric(sharers, usage.mean_throttle_time_ms(now_ms))
        yield from (rates, times)
    tokens = metric.MUTATION_TOKENS.family()
    for sharers, usage in quotas.mutations:
        tokens.add_metric(sharers, usage.bucket.tokens(usage.limit, now_ms))
    yield tokens
    accepted = metric.ACCEPT_RATE.family()
    for (address, _), usage in quotas.connections:
        accepted.add_metric([address], usage.rate.measure(now_ms))
    yield accepted

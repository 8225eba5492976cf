"""Our metrics once more under others' names, made when they are scraped. What this process has never noted has no alias either."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ..core.aliases import ALIASES, Alias, constant_labels


class Aliases(Collector):
    def __init__(self, metrics: Mapping[str, Any], noted: Callable[[str], bool], model: str) -> None:
        self._metrics = metrics
        self._noted = noted
        self._model = model

    def collect(self) -> Iterator[Metric]:
        for name, alias in ALIASES.items():
            if self._noted(alias.source):
                yield self._read(name, alias)

    def _read(self, name: str, alias: Alias) -> Metric:
        [source] = self._metrics[alias.source].collect()
        metric = Metric(name.removesuffix("_total"), f"{source.documentation} ({alias.source})", source.type)
        for (suffix, labels), value in self._summed(alias, source).items():
            if alias.free_of:
                total = sum(sample.value for sample in self._metrics[alias.free_of].collect()[0].samples)
                value = 1 - value / total if total else 0.0
            metric.add_sample(f"{metric.name}{suffix}", constant_labels(name, self._model) | dict(labels), value)
        return metric

    def _summed(self, alias: Alias, source: Metric) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """By the sample's suffix (_bucket, _sum, ...) and the labels that stay."""
        found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        kept = {"le": "le", **alias.renamed}
        for sample in source.samples:
            suffix = sample.name.removeprefix(source.name)
            if suffix == "_created" or any(sample.labels[label] not in values for label, values in alias.only.items()):
                continue
            labels = tuple((kept[label], value) for label, value in sample.labels.items() if label in kept)
            found[suffix, labels] += sample.value
        return found

"""What a tickscribe server counted between two looks at its /metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_POSITION_S = 0.02  # of audio in one encoder position


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine did.

    Attributes:
        audio_s: received.
        encoded_s: encoded, counted as often as it was.
        windows: that went through the encoder.
        retries: windows that were decoded again with full context, because their text looked wrong.
        encoder_batch, decoder_batch: upper bound of the bucket -> ticks in it.
        errors: conversations that the server ended.
    """

    audio_s: float
    encoded_s: float
    windows: int
    retries: int
    tokens: int
    encoder_s: float
    decoder_s: float
    encoder_batch: dict[str, int]
    decoder_batch: dict[str, int]
    errors: int

    @property
    def waste(self) -> float:
        """How often each second of audio went through the encoder."""
        return self.encoded_s / self.audio_s if self.audio_s else 0.0

    @property
    def fallback_rate(self) -> float:
        """Share of the windows that were decoded again with full context."""
        return self.retries / self.windows if self.windows else 0.0


Samples = Mapping[tuple[str, str], float]  # (name, bucket or label) -> value


def fetch(url: str) -> Samples:
    """Read /metrics; labels other than a bucket's bound are summed up."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return parse(answer.read().decode())


def parse(text: str) -> Samples:
    """Read Prometheus' text format."""
    values: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("le", ""))
            values[key] = values.get(key, 0.0) + sample.value
    return values


def work_between(before: Samples, after: Samples) -> Work:
    """The difference of two looks."""

    def gain(name: str) -> float:
        key = (f"tickscribe_{name}", "")
        return after.get(key, 0.0) - before.get(key, 0.0)

    return Work(
        audio_s=gain("audio_received_seconds_total"),
        encoded_s=gain("encoder_positions_total") * _POSITION_S,
        windows=int(gain("encoder_batch_size_sum")),
        retries=int(gain("retries_total")),
        tokens=int(gain("decoder_tokens_total")),
        encoder_s=gain("encoder_duration_seconds_sum"),
        decoder_s=gain("decoder_duration_seconds_sum"),
        encoder_batch=_buckets("tickscribe_encoder_batch_size_bucket", before, after),
        decoder_batch=_buckets("tickscribe_decoder_batch_size_bucket", before, after),
        errors=int(gain("errors_total")),
    )


def _buckets(name: str, before: Samples, after: Samples) -> dict[str, int]:
    """Undo the accumulation of a histogram; empty buckets are left out."""
    bounds = sorted((bound for found, bound in after if found == name), key=float)
    counts, below = {}, 0
    for bound in bounds:
        so_far = int(after[name, bound] - before.get((name, bound), 0.0))
        if so_far > below:
            counts[bound.removesuffix(".0")] = so_far - below
        below = so_far
    return counts

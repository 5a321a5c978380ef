"""Whether a card holds the job, and how it does there, by what ``failover fit`` measured (``job.fit``)."""

from __future__ import annotations

from provisioner import catalog, fitting


def choice(measured: fitting.Measured, gpu: str, vram_gb: float = 0.0) -> fitting.Choice:
    """Return how the job would train on a card. ``vram_gb``: GiB as it is sold; 0: those of the catalog."""
    return fitting.choose(measured, _card(gpu, vram_gb))


def speedup(measured: fitting.Measured, on: str, gpu: str) -> float | None:
    """Return how many times as fast a step is as on the card ``on``; None where nobody can tell."""
    here, there = choice(measured, on).seconds, choice(measured, gpu).seconds
    return here / there if here and there else None


def _card(gpu: str, vram_gb: float) -> fitting.Card:
    known = catalog.card(gpu)
    if known is None:
        return fitting.Card(gpu, catalog.found_gib(gpu, vram_gb) * fitting.GIB)
    memory = catalog.found_gib(known.name, vram_gb or known.vram_gb) * fitting.GIB
    major, _, minor = known.compute.partition(".")
    capability = (int(major), int(minor)) if minor else None
    tflops = known.fp16_tflops / 2 if capability == (6, 0) else known.fp16_tflops  # a P100 has half of it at float32
    return fitting.Card(known.name, memory, capability, tflops, known.bandwidth_gbs)

"""Fused against plain, as engines: which is faster, by how much, and whether that can be believed."""

from graphfuse.bench.bench import Bench, RegionBench, bench, decided, engine_opener
from graphfuse.bench.paired import Paired, compare, measure_pairs

__all__ = ["Bench", "Paired", "RegionBench", "bench", "compare", "decided", "engine_opener", "measure_pairs"]

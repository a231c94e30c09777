"""Tables of what was measured on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from graphfuse.report.render import table

if TYPE_CHECKING:
    from graphfuse.tune.calibrate import Calibration
    from graphfuse.tune.model import TunedRegion


def calibration_table(found: Calibration) -> Table:
    """The rate of each mix of reads and writes, and how it was reached."""
    made = table(f"{found.gpu} ({found.arch}), L2 {found.l2_bytes >> 20} MB", "reads : writes", "TB/s", "best copy", right=("TB/s",))
    for rate in found.rates:
        shape = rate.shape
        how = f"{shape.each} x 16 bytes of each array a thread, {shape.threads} threads{', streaming' if shape.streaming else ''}"
        made.add_row(f"{rate.reads} : {rate.writes}", f"{rate.tb_s:.2f}", how)
    made.add_row("no work at all", "", f"{found.launch_us:.2f} us from one launch to the next in a CUDA graph")
    return made


def tuning_table(found: Sequence[TunedRegion]) -> Table:
    """A row for each kernel: by rule, at its best, and what was chosen."""
    made = table(
        "Tuned kernels",
        "kernel",
        "tried",
        "by rule, us",
        "best, us",
        "gain",
        "kept",
        right=("tried", "by rule, us", "best, us", "gain"),
        wide=("kernel",),
    )
    for region in found:
        best = region.tuned
        made.add_row(
            escape(region.name), f"{best.tried}", f"{best.default_us:.2f}", f"{best.us:.2f}", f"{best.default_us / best.us:.3f}",
            Text(str(best.config), style="green" if best.kept else ""),
        )  # fmt: skip
    return made

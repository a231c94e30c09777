"""Running sums and products: each element folds those before it, chosen from its whole line by place.

That is as many operations as the line is long, squared, all of them parallel; long lines want a scan in shared memory and are
refused.
"""

from __future__ import annotations

from collections.abc import Callable

from graphfuse.ir.builder import Val
from graphfuse.ir.errors import Refused
from graphfuse.ops.call import OpCall, normal_axis
from graphfuse.ops.table import register

MAX_LINE = 256


def _scan(fn: str) -> Callable[[OpCall], Val]:
    def lower(call: OpCall) -> Val:
        x, axes = call.arg(0), call.fixed(1, "the axis of a running fold")
        if axes is None or len(axes) != 1:
            raise Refused("unknown-value", "a running fold wants one axis")
        axis = normal_axis(axes[0], x.rank)
        size = x.shape[axis]
        if not isinstance(size, int) or size > MAX_LINE:
            raise Refused("long-scan", f"a running fold along {size} elements; up to {MAX_LINE} are computed without a scan")
        return _folded(call, fn, x, axis)

    return lower


def _folded(call: OpCall, fn: str, x: Val, axis: int) -> Val:
    """``x`` is laid out once for each place along ``axis``, with the identity where the place does not reach."""
    b = call.b
    size = x.shape[axis]
    lines = [*x.shape[: axis + 1], size, *x.shape[axis + 1 :]]
    spread = b.broadcast(b.reshape(x, [*x.shape[:axis], 1, *x.shape[axis:]]), lines)
    place, source = b.iota(lines, axis), b.iota(lines, axis + 1)
    reaches = {(0, 0): "le", (0, 1): "lt", (1, 0): "ge", (1, 1): "gt"}
    test = reaches[int(call.integer("reverse", 0) != 0), int(call.integer("exclusive", 0) != 0)]
    taken = b.map("where", b.map(test, source, place), spread, {"sum": 0, "prod": 1}[fn])
    return b.reduce(fn, taken, [axis + 1])


register("CumSum", "reduction", _scan("sum"), known=(1,))
register("CumProd", "reduction", _scan("prod"), known=(1,))

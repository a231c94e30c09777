"""Which threads share a row: by how long rows are, how many there are, and how their elements lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphfuse.codegen.config import WARP, Config
from graphfuse.codegen.passes import MAX_UNROLLED, Walk
from graphfuse.ir import expr
from graphfuse.ir.expr import Dim, Expr
from graphfuse.ir.program import Program
from graphfuse.schedule.kernel import Rows, nominal, reachable
from graphfuse.schedule.rows import COLUMN, ROW
from graphfuse.schedule.scalar import Node, Puller, linear

THREADS = 256
PROCESSORS = 132  # of a large device
MANY_ROWS = 256  # enough to fill one with a block each
CLUSTER = 8  # blocks, as many as every device that has clusters can run together
# Rows that are read across and written along: teams of 4 read 8 rows and write 4 columns at a time, a sector of memory and half a one
# of float32. On an H200 a layer norm of 128 channels to channels last takes 30 us so, and 119 with a thread a row.
SECTOR = 4
ONE_BLOCK = 96 << 10  # bytes of a row that a block may hold in registers


@dataclass(frozen=True)
class Team:
    """Threads that share a row: 1 (a thread), up to 32 (part of a warp), the whole block, or the blocks of a cluster."""

    threads: int
    block: int

    @property
    def rows(self) -> int:
        """Rows of a block, or of a cluster."""
        return max(1, self.block // self.threads)

    @property
    def cluster(self) -> int:
        """Blocks that share a row."""
        return max(1, self.threads // self.block)

    @property
    def scratch(self) -> int:
        """8-byte words of shared memory that a fold needs: an element of up to 16 bytes for each warp, a cluster's barrier."""
        return 2 * max(1, self.threads // WARP) + (self.cluster > 1)


def longest_walk(walked: Walk) -> Dim:
    """The columns of the longest pass."""
    return max((p.columns for p in walked.passes), key=nominal)


def _folds(walked: Walk) -> int:
    return sum(bool(p.reductions) for p in walked.passes)


def choose_team(puller: Puller, program: Program, rows: Rows, lanes: int, walked: Walk) -> Team:
    """Threads for each row: by its length, and by whether neighbours in a row are neighbours in memory."""
    longest = longest_walk(walked)
    if isinstance(longest, Expr):
        return Team(WARP, THREADS)
    if longest <= 1024 and not _along_columns(puller, walked.roots):
        return Team(SECTOR if _stored_along(program, rows) else 1, 128)
    vectors = -(-longest // lanes)
    if longest > 1024 or vectors > 2 * WARP:
        return _block_team(longest, lanes, nominal(rows.rows), _folds(walked))
    if vectors & (vectors - 1) == 0:
        return Team(min(vectors, WARP), THREADS)
    # A team of the next power of 2 has idle threads. On an H200 a softmax of 21 classes takes 36 us with 32 threads, and 18 with 8.
    return Team(min(1 << max(vectors // 2, 1).bit_length() - 1, WARP), 128)


def _block_team(longest: int, lanes: int, count: int, folds: int) -> Team:
    """A block for each row. Few rows want short chains of work, many rows want other blocks at work during a fold: 2 or 4 vectors a thread.

    Measured on an H200: 512 threads beat 256 by 9% on 8 rows of 4096 float32; on 8192 rows of 8192 float16 and one fold they win by
    1.5%, on 16384 rows of 4096 float32 and two folds they lose by 8%. 1024 threads, which leave a processor one block, never win.
    """
    vectors = 2 if count < MANY_ROWS or longest <= 1024 or folds == 1 else 4
    threads = 64
    while threads < 512 and longest > threads * max(lanes, 4) * vectors:
        threads *= 2
    if longest > threads * MAX_UNROLLED:
        threads = 1024
    return Team(threads, threads)


def wished_team(team: Team, config: Config) -> Team:
    """The team that an autotuner wishes, else the one by rule."""
    threads = config.team or team.threads
    return Team(threads, threads if threads > WARP else config.threads or team.block)


def _along_columns(puller: Puller, roots: Sequence[Sequence[Node]]) -> bool:
    """Whether a row's elements mostly lie next to each other; otherwise neighbouring rows do."""
    along = across = 0
    for nodes in roots:
        for node in reachable(puller, nodes):
            if node.kind == "load":
                address = node.payload[1]
                units = [v for v in node.vars if v.name != ROW]
                close = any(expr.coefficient(address, v) in (1, 2, 4, 8) for v in units)
                if units and any(v.name == ROW for v in node.vars):
                    along, across = along + close, across + (not close)
    return along >= across


def _stored_along(program: Program, rows: Rows) -> bool:
    """Whether an output has a row's elements next to each other."""
    for output in rows.outputs:
        address = linear(output.index, program.body[program.results[output.result]].shape)
        own = [v for v in expr.variables(address) if v.name == COLUMN]
        if output.columns != 1 and any(expr.coefficient(address, v) == 1 for v in own):
            return True
    return False


def choose_cluster(program: Program, rows: Rows, lanes: int, walked: Walk, team: Team, config: Config) -> Team | None:
    """A cluster for each row, where a block for each leaves much of the device idle or cannot hold it; None where it does not."""
    longest = longest_walk(walked)
    if team.threads <= WARP or isinstance(longest, Expr) or isinstance(rows.rows, Expr):
        return None
    if config.cluster or config.team:
        return Team(team.block * config.cluster, team.block) if config.cluster not in (None, 1) else None
    size = max((t.size for t, _ in program.params), default=1)
    if longest * size <= ONE_BLOCK and not _few(rows.rows, -(-longest // lanes), _folds(walked)):
        return None
    each, threads = 16 if rows.rows * CLUSTER <= PROCESSORS else 32, 128
    while threads < 1024 and longest > threads * CLUSTER * each:
        threads *= 2
    return Team(threads * CLUSTER, threads)


def _few(count: int, vectors: int, folds: int) -> bool:
    """Whether so many rows of so many vectors gain more by the other processors than a fold over a cluster costs.

    Measured on an H200, rows of float32: 8 of 4096 with two folds take 2.0 us instead of 2.7, with four folds 2.8 in either way; 64 of
    16384 take 6.4 instead of 7.1, 128 as long as with a block each.
    """
    return vectors >= (1024 if count <= 16 and folds <= 2 else 2048 if count <= 32 else 4096) and count <= 64

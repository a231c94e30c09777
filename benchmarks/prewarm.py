"""Fills torch's compile caches from several processes, so that the measuring process compiles little.

Only code is cached: which of the tuned variants is the fastest is found out in the measuring process, while the GPU is quiet.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import torch

MODES = ("default", "max-autotune")


def no_stored_choices() -> None:
    """Makes torch time its variants itself, in this process."""
    import torch._inductor.config as inductor

    if hasattr(inductor, "autotune_local_cache"):
        inductor.autotune_local_cache = False


def start(names: Sequence[str], modes: Sequence[str], processes: int) -> list[subprocess.Popen[bytes]]:
    """Processes that compile the chains; wait for them with ``finish``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.curdir for p in sys.path), "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    jobs = [f"{name}:{mode}" for name in names for mode in modes]
    shares = [jobs[k::processes] for k in range(min(processes, len(jobs)))]
    command = [sys.executable, "-m", "benchmarks.prewarm"]
    return [subprocess.Popen([*command, *share], env=environment, stderr=subprocess.DEVNULL) for share in shares]


def finish(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Waits so long at most; what is not compiled by then will be compiled later."""
    import time

    end = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    from benchmarks import chains, sweeps
    from benchmarks.peers import compiled

    no_stored_choices()
    for job in sys.argv[1:]:
        name, _, mode = job.partition(":")
        chain = sweeps.CHAINS.get(name) or chains.CHAINS[name]
        try:
            compiled(chain, [chain.inputs("cuda", 0)], mode)
        except Exception as error:  # the measuring process will meet it again, and report it
            print(f"prewarm {job}: {type(error).__name__}", file=sys.stderr)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""Writers of the cache that are killed at any moment: what is found afterwards is whole, or is not there.

GRAPHFUSE_KILL_WRITERS is the number of writers (default 40; the full test is 200).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphfuse.jit.cache import Cache
from tests.conftest import ROOT

WRITERS = int(os.environ.get("GRAPHFUSE_KILL_WRITERS", "40"))
LIMIT = 1 << 20  # small, so that writers also evict while others write

# One process imports, forks the writers, kills each at a random moment, and reads all the while.
HERD = """
import os, random, signal, sys, time
from pathlib import Path
from graphfuse.jit.cache import Cache, key

folder, count, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
names = [key("test", str(i), "sm_80", (), "1") for i in range(60)]

def content(name):
    random_bytes = random.Random(name)
    return random_bytes.randbytes(1000 + int(name[:4], 16) % 60000)

wanted = {name: content(name) for name in names}

def write():
    cache = Cache(folder, limit_bytes=limit)
    while True:
        name = random.choice(names)
        cache.put(name, wanted[name])

alive, killed, hits = {}, 0, 0
chance = random.Random(1)
while killed < count:
    while len(alive) < 12 and killed + len(alive) < count:
        pid = os.fork()
        if not pid:
            try:
                write()
            finally:
                os._exit(1)  # a writer never ends by itself
        alive[pid] = time.monotonic() + chance.uniform(0, 0.2)
    reader = Cache(folder, limit_bytes=limit)
    for name in chance.sample(names, 10):
        found = reader.get(name)
        assert found is None or found == wanted[name], "a bad entry"
        hits += found is not None
    for pid, when in list(alive.items()):
        if time.monotonic() > when:
            os.kill(pid, signal.SIGKILL)
            assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
            del alive[pid]
            killed += 1
last = Cache(folder, limit_bytes=limit)
present = [last.get(name) for name in names]
assert all(found in (None, wanted[name]) for name, found in zip(names, present))
print(killed, hits, sum(found is not None for found in present))
"""


@pytest.mark.timeout(600)
def test_no_bad_entry_is_ever_found(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    command = [sys.executable, "-c", HERD, str(tmp_path), str(WRITERS), str(LIMIT)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580)
    assert found.returncode == 0, found.stderr[-2000:]
    killed, hits, present = map(int, found.stdout.split())
    assert killed == WRITERS
    assert hits > 0  # the readers did meet entries
    assert present > 0
    left = sorted(tmp_path.rglob("new-*.tmp"))
    for path in left:  # what killed writers left goes when it is an hour old
        os.utime(path, (time.time() - 7200,) * 2)
    cache = Cache(tmp_path, limit_bytes=LIMIT)
    cache.put("0" * 64, b"x" * (LIMIT // 8))
    assert not list(tmp_path.rglob("new-*.tmp"))
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.bin")) <= LIMIT

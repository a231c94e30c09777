"""Models made from public bug reports, rewritten and run in NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import shared_cases
from tests.reports import check_case


@pytest.mark.parametrize("policy", ["auto", "aggressive"])
@pytest.mark.parametrize("path", shared_cases())
def test_case(path: Path, policy: str) -> None:
    check_case(path, policy, "numpy")

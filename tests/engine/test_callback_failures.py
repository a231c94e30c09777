"""Every way in which a callback of a plugin can fail inside a real build, and what comes out of the build for it.

Left alone, TensorRT answers some of these with a crash, and some with an engine that lacks its kernels.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

import graphfuse_plugin
from graphfuse.engine import build_engine
from graphfuse_plugin.creator import FusedRegionCreator
from graphfuse_plugin.plugin import FusedRegionPlugin
from tests import regions
from tests.regions import lone

CALLBACKS = {
    "create_plugin": FusedRegionCreator, **dict.fromkeys([
        "get_output_data_types", "get_output_shapes", "supports_format_combination", "configure_plugin", "get_workspace_size",
        "get_valid_tactics", "get_fields_to_serialize", "get_capability_interface",
    ], FusedRegionPlugin),
}  # fmt: skip


def build() -> Any:
    return build_engine(lone(regions.scale((4, 8)), (4, 8)), targets=["sm_89"])


@pytest.fixture
def inject():
    """Puts a function in the place of a callback's innermost body, under all that is wrapped around it."""
    undo: list[Callable[[], None]] = []

    def put(callback: str, fault: Callable[..., Any]) -> None:
        outer = getattr(CALLBACKS[callback], callback)
        while hasattr(outer.__wrapped__, "__wrapped__"):
            outer = outer.__wrapped__
        cell = dict(zip(outer.__code__.co_freevars, outer.__closure__, strict=True))["method"]
        original = cell.cell_contents
        fault.__name__ = original.__name__
        undo.append(lambda: setattr(cell, "cell_contents", original))
        cell.cell_contents = fault

    yield put
    for step in undo:
        step()
    assert build().plugin_layers == ["region"]  # nothing is left of the failure


@pytest.mark.parametrize("error", [ZeroDivisionError("in a callback"), KeyboardInterrupt(), SystemExit(3)], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("callback", CALLBACKS)
def test_what_a_callback_raises_comes_out_of_the_build_with_its_traceback(inject, callback, error, capfd) -> None:
    def fault_of_this_test(*args: Any) -> Any:
        raise error

    inject(callback, fault_of_this_test)
    with pytest.raises(type(error)) as caught:
        build()
    assert caught.value is error
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "raise error"
    error.__traceback__ = None


WRONG = [
    ("create_plugin", None), ("create_plugin", "a plugin"),
    ("get_output_data_types", None), ("get_output_data_types", []), ("get_output_data_types", [None]),
    ("get_output_shapes", None), ("get_output_shapes", []), ("get_output_shapes", [None]),
    ("supports_format_combination", None), ("supports_format_combination", "yes"), ("supports_format_combination", 1),
    ("get_workspace_size", -1), ("get_workspace_size", None), ("get_workspace_size", 0.5),
    ("get_valid_tactics", None), ("get_valid_tactics", [0]), ("get_fields_to_serialize", None), ("get_fields_to_serialize", []),
]  # fmt: skip


@pytest.mark.parametrize(("callback", "value"), WRONG, ids=lambda v: repr(v) if not isinstance(v, str) else v)
def test_a_wrong_value_is_an_error_that_names_the_callback(inject, callback, value, capfd) -> None:
    inject(callback, lambda *args: value)
    with pytest.raises(TypeError, match=f"^{callback} of a fused region returned .* instead of ") as caught:
        build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [MemoryError("once"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_failing_clone_does_not_crash(monkeypatch, failing, error) -> None:
    """TensorRT crashes on a clone that raises; whichever of the build's copies fails, the error must come out of the build."""
    original = FusedRegionPlugin.__init__
    made: list[None] = []

    def sometimes(self: Any, *args: Any) -> None:
        made.append(None)
        if len(made) == failing:
            raise error
        original(self, *args)

    monkeypatch.setattr(FusedRegionPlugin, "__init__", sometimes)
    with pytest.raises(type(error)) as caught:
        build()
    assert caught.value is error
    assert "sometimes" in "".join(traceback.format_tb(caught.value.__traceback__))
    error.__traceback__ = None


def test_several_failures_the_first_is_raised_and_none_is_left(inject) -> None:
    def first(*args: Any) -> Any:
        raise LookupError("the cause")

    def second(*args: Any) -> Any:
        raise ValueError("a consequence")

    inject("get_workspace_size", first)
    inject("get_fields_to_serialize", second)
    with pytest.raises(LookupError, match="the cause"):
        build()
    graphfuse_plugin.reraise()

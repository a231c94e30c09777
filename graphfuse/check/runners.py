"""The two sides of a check as Polygraphy runners, and Polygraphy's own comparison of their outputs."""

from __future__ import annotations

import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
from polygraphy.backend.base import BaseRunner
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.common import TensorMetadata
from polygraphy.comparator import Comparator, IterationResult, RunResults, SimpleCompareFunc
from polygraphy.datatype import DataType
from polygraphy.logger import G_LOGGER

from graphfuse.check.tolerance import is_float
from graphfuse.check.verdict import OutputVerdict
from graphfuse.graph.evaluate import RUN_IR_VERSION
from graphfuse.ir.errors import GraphfuseError
from graphfuse.session import Session
from graphfuse.session.interface import Port
from graphfuse.session.ort_stage import first_line, session_options
from graphfuse.session.session import Model
from graphfuse.session.values import numpy_type


class SessionRunner(BaseRunner):  # type: ignore[misc]
    """A ``graphfuse.Session`` under Polygraphy. ``fed`` are the inputs that will be given; others keep their defaults."""

    def __init__(self, session: Session, fed: Collection[str]) -> None:
        super().__init__(name="fused")
        self._session = session
        self._fed = fed

    def get_input_metadata_impl(self) -> Any:
        """Names, dtypes and shapes of the inputs; dynamic dimensions are None."""
        return _metadata(p for p in self._session.inputs if p.name in self._fed)

    def infer_impl(self, feed_dict: Mapping[str, np.ndarray]) -> OrderedDict[str, np.ndarray]:
        """The outputs by name."""
        start = time.perf_counter()
        outputs = self._session.run(feed_dict)
        self.inference_time = time.perf_counter() - start
        return OrderedDict(outputs)


class ReferenceRunner(OnnxrtRunner):  # type: ignore[misc]
    """Polygraphy's ONNX Runtime runner on the model as it is, with graph optimisation off, which its own loader leaves on.

    It also feeds initializers that are inputs, which Polygraphy takes for no inputs and would drop.
    """

    def __init__(self, model: Model, fed: Collection[str]) -> None:
        super().__init__(lambda: _open_reference(model), name="original")
        self._fed = fed

    def get_input_metadata_impl(self) -> Any:
        """Names, dtypes and shapes of the inputs."""
        found = super().get_input_metadata_impl()
        for value in self.sess.get_overridable_initializers():
            if value.name in self._fed:
                found.add(value.name, dtype=DataType.from_dtype(value.type, "onnxruntime"), shape=value.shape)
        return found


def _metadata(ports: Iterable[Port]) -> Any:
    found = TensorMetadata()
    for p in ports:
        shape = None if p.shape is None else tuple(d if isinstance(d, int) else None for d in p.shape)
        found.add(p.name, dtype=DataType.from_dtype(numpy_type(p.dtype)), shape=shape)
    return found


def _open_reference(model: Model) -> Any:
    """The model as it is; its IR version is lowered where this ONNX Runtime refuses it for that alone."""
    import onnxruntime as ort

    if isinstance(model, onnx_ir.Model):
        model = onnx_ir.to_proto(model)
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else os.fspath(model)
    options = session_options()
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a class of its own for each status code
        if "IR version" not in str(error):
            raise
    if not isinstance(source, bytes):
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(Path(source).parent))
        source = Path(source).read_bytes()
    older = onnx.ModelProto(ir_version=RUN_IR_VERSION).SerializeToString()  # the last one stated counts
    return ort.InferenceSession(source + older, options, providers=["CPUExecutionProvider"])


def run_both(runners: list[BaseRunner], feeds: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The outputs of each runner on these inputs. Raises GraphfuseError when one fails."""
    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):
            results = Comparator.run(runners, data_loader=[OrderedDict(feeds)])
    except GraphfuseError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise GraphfuseError(f"the model cannot be run on these inputs: {first_line(error)}") from error
    return [dict(iterations[0]) for _, iterations in results.items()]


def polygraphy_verdicts(want: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], verdicts: list[OutputVerdict]) -> dict[str, bool]:
    """What Polygraphy says of each output, at the same tolerances.

    NaN in the same places is 0 on both sides for it, as it takes NaN for unequal to itself; small floats are float32.
    """
    rows = {v.name: v for v in verdicts if v.name in want and v.name in got and want[v.name].shape == got[v.name].shape}
    if not rows:
        return {}
    left, right = {}, {}
    for name in rows:
        left[name], right[name] = _without_nans(got[name], want[name])
    runs = RunResults(
        [("fused", [IterationResult(left, runner_name="fused")]), ("original", [IterationResult(right, runner_name="original")])]
    )
    compare = SimpleCompareFunc(
        rtol={n: v.rtol for n, v in rows.items()}, atol={n: v.atol for n, v in rows.items()}, infinities_compare_equal=True
    )
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # its statistics subtract infinities
        (found,) = Comparator.compare_accuracy(runs, compare_func=compare)
    return {name: bool(result) for name, result in next(iter(found.values()))[0].items()}


def _without_nans(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not is_float(want.dtype):
        return got, want
    if want.dtype.name not in ("float64", "float32"):
        got, want = got.astype(np.float32), want.astype(np.float32)
    both = np.isnan(got) & np.isnan(want)
    return (np.where(both, 0, got), np.where(both, 0, want)) if both.any() else (got, want)

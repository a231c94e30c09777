"""A fused model as a TensorRT engine under Polygraphy."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from graphfuse.engine.build import build_engine
from graphfuse.engine.run import LoadedEngine, runnable_flavour
from graphfuse.ir.errors import GraphfuseError


class EngineRunner(BaseRunner):  # type: ignore[misc]
    """Builds an engine of a model in portable form for the shapes of ``feeds`` and runs it.

    Raises GraphfuseError where no engine can run: without a GPU, or on one that the flavour does not know.
    """

    def __init__(self, model: onnx_ir.Model, feeds: Mapping[str, np.ndarray], *, flavour: str | None = None) -> None:
        super().__init__(name="engine")
        self._flavour = runnable_flavour(flavour).name  # before the build, which takes its time
        self._model = model
        self._feeds = feeds
        self._engine: LoadedEngine | None = None

    def activate_impl(self) -> None:
        """Build and load."""
        from graphfuse.match import export_plugin

        shapes = {name: (array.shape,) * 3 for name, array in self._feeds.items()}
        built = build_engine(export_plugin(self._model).proto, flavour=self._flavour, shapes=shapes)
        self._engine = LoadedEngine(built.bytes, flavour=self._flavour)

    def deactivate_impl(self) -> None:
        """Free the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def get_input_metadata_impl(self) -> Any:
        """Names, dtypes and shapes: those of the feeds, for which the engine was built."""
        found = TensorMetadata()
        for name, array in self._feeds.items():
            found.add(name, dtype=array.dtype, shape=array.shape)
        return found

    def infer_impl(self, feed_dict: Mapping[str, np.ndarray]) -> OrderedDict[str, np.ndarray]:
        """The outputs by name."""
        if self._engine is None:
            raise GraphfuseError("the engine is not loaded: use the runner as a context manager")
        start = time.perf_counter()
        outputs = self._engine.run(feed_dict)
        self.inference_time = time.perf_counter() - start
        return OrderedDict(outputs)

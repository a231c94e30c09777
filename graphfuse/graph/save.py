"""Saves a model: all of it or nothing, the same bytes for the same model, large weights in one file beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from graphfuse.graph.checks import one_line
from graphfuse.graph.encode import pieces, placeholder
from graphfuse.ir.errors import GraphfuseError

EMBEDDED_LIMIT = 1800 << 20  # bytes of weights in the .onnx file; protobuf ends at 2 GiB
SMALL = 1024  # bytes; constants up to here stay in the .onnx file, where every reader finds shapes and axes
_ALIGN = 4096  # offsets in the weight file, so that it can be mapped into memory


def save_model(model: ir.Model, path: str | os.PathLike[str], *, external_threshold: int = EMBEDDED_LIMIT) -> list[Path]:
    """Writes ``model`` and returns the files: the model and, if there is one, ``<file name>.data`` beside it.

    Weights go into the second file if the model had such a file already, or if they are more than ``external_threshold``
    bytes. Both files are written under other names and renamed at the end; when that fails nothing has changed. The model is
    not changed. Raises GraphfuseError if the files cannot be written, or would replace the weights that the model still reads.
    """
    target = Path(path)
    _check_target(target)
    data = target.with_name(target.name + ".data")
    outside = _outside_tensors(model, external_threshold)
    _check_not_read(model, data if outside else target)
    try:
        with _Pair() as files:
            replaced = _write_data(files.make(data), data.name, outside) if outside else []
            with files.make(target).open("wb") as stream:
                stream.writelines(_encoded(model, outside, replaced, target))
            files.commit()
            return files.targets[::-1]
    except OSError as error:
        raise GraphfuseError(f"{target}: cannot be written: {error.strerror or one_line(error)}") from error


def _check_target(target: Path) -> None:
    if target.is_dir():
        raise GraphfuseError(f"{target}: is a directory; name the file to write")
    if not target.absolute().parent.is_dir():
        raise GraphfuseError(f"{target}: there is no folder {target.parent}; create it first")


def _check_not_read(model: ir.Model, written: Path) -> None:
    for value in _initialized(model):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and Path(tensor.path).exists() and written.exists() and written.samefile(tensor.path):
            raise GraphfuseError(f"{written}: holds the weights of the model being saved; choose another output name")


def _initialized(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from (v for v in graph.initializers.values() if v.const_value is not None)


def _outside_tensors(model: ir.Model, threshold: int) -> list[ir.Value]:
    """The initializers whose weights go into the second file; none if all fit into the first."""
    values = list(_initialized(model))
    had_file = any(isinstance(v.const_value, ir.ExternalTensor) for v in values)
    total = sum(v.const_value.nbytes for v in values if v.const_value is not None and v.const_value.dtype != ir.DataType.STRING)
    if not had_file and total <= threshold:
        return []
    return [v for v in values if v.const_value is not None and v.const_value.dtype != ir.DataType.STRING and _is_large(v.const_value)]


def _is_large(tensor: ir.TensorProtocol) -> bool:
    return tensor.nbytes > SMALL


def _write_data(file: Path, location: str, values: Sequence[ir.Value]) -> list[ir.TensorProtocol]:
    """Writes the weights of ``values`` one after another; returns tensors that point to them."""
    made: list[ir.TensorProtocol] = []
    with file.open("wb") as stream:
        for value in values:
            tensor = value.const_value
            assert tensor is not None
            start = -(-stream.tell() // _ALIGN) * _ALIGN
            stream.write(b"\0" * (start - stream.tell()))
            if isinstance(tensor, ir.ExternalTensor):
                tensor.tofile(stream)
            else:
                stream.write(tensor.tobytes())
            made.append(
                ir.ExternalTensor(
                    location, start, stream.tell() - start, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
                )
            )
    return made


def _encoded(model: ir.Model, outside: Sequence[ir.Value], replaced: Sequence[ir.TensorProtocol], target: Path) -> Iterator[bytes]:
    """The model's bytes with the weights of ``outside`` as ``replaced``, and those in other files read in."""
    kept = [(v, v.const_value) for v in _initialized(model)]
    stands_for = dict(zip(outside, replaced, strict=True))
    heavy = {v.name or "": v.const_value for v in model.graph.initializers.values() if v.const_value is not None and v not in stands_for}
    heavy = {name: tensor for name, tensor in heavy.items() if tensor.dtype != ir.DataType.STRING and _is_large(tensor)}
    try:
        for value, tensor in kept:
            aside = heavy.get(value.name or "") is tensor and tensor is not None
            value.const_value = stands_for.get(value) or (placeholder(tensor) if aside else _in_memory(tensor))  # type: ignore[arg-type]
        proto = ir.to_proto(model)
        yield from pieces(proto, {name: _in_memory(tensor) or tensor for name, tensor in heavy.items()})
    except OSError:
        raise
    except Exception as error:  # protobuf's EncodeError, onnx_ir's wrapped errors
        raise GraphfuseError(f"{target}: the model cannot be encoded: {one_line(error)}") from error
    finally:
        for value, tensor in kept:
            value.const_value = tensor


def _in_memory(tensor: ir.TensorProtocol | None) -> ir.TensorProtocol | None:
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)


class _Pair:
    """Files written under other names; ``commit`` renames all of them or none. What is left over is removed on exit."""

    def __init__(self) -> None:
        self.targets: list[Path] = []
        self._made: list[Path] = []
        self._saved: list[tuple[Path, Path]] = []

    def __enter__(self) -> _Pair:
        return self

    def make(self, target: Path) -> Path:
        """An empty file beside ``target`` that will become it."""
        file = target.with_name(f".{target.name}.{os.getpid()}.new")
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        self.targets.append(target)
        self._made.append(file)
        return file

    def commit(self) -> None:
        """Puts the files in place, the weights first; if a later one fails, the earlier ones are put back."""
        done: list[Path] = []
        try:
            for file, target in zip(self._made, self.targets, strict=True):
                if len(self.targets) > 1 and target.exists():
                    old = target.with_name(f".{target.name}.{os.getpid()}.old")
                    target.rename(old)
                    self._saved.append((old, target))
                file.replace(target)
                done.append(target)
        except OSError:
            for target in done:
                target.unlink(missing_ok=True)
            for old, target in self._saved:
                old.replace(target)
            raise

    def __exit__(self, *details: object) -> None:
        for file in [*self._made, *(old for old, _ in self._saved)]:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

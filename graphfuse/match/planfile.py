"""The plan: what would be fused and why, as a file that a person may edit before it is applied.

YAML, or JSON by extension. The file is not trusted: its size is capped, it is read into typed records, and YAML aliases
(which make small files huge) are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir

from graphfuse.graph.facts import constant_tensor
from graphfuse.ir.errors import GraphfuseError
from graphfuse.ir.files import write_text
from graphfuse.match.flow import Flow, node_ids, read_values

VERSION = 1
MAX_PLAN_BYTES = 16 << 20
MAX_HASHED = 4096  # elements; of larger constants only type and shape count, so new weights keep their plan
APART = "their regions stay apart: "


@dataclass
class PlannedRegion:
    """A region of the plan. ``nodes`` are ids as in ``flow.node_ids``; ``enabled`` is there to be edited."""

    name: str
    nodes: list[str]
    enabled: bool = True
    op_types: list[str] = field(default_factory=list)
    reason: str = ""
    launches_before: int = 0
    launches_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass
class Refusal:
    """Why nodes were left alone: a value, never an exception. ``nodes`` are ids."""

    rule: str
    nodes: list[str]
    reason: str

    @property
    def is_between(self) -> bool:
        """Whether it says why the regions of two nodes are not one, not why nodes are in none."""
        return self.reason.startswith(APART)


@dataclass
class Plan:
    """What is to be fused in the graph with this ``fingerprint``, in graph order, and what is not."""

    version: int
    fingerprint: str
    policy: str
    regions: list[PlannedRegion] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def fingerprint(graph: onnx_ir.Graph, flow: Flow) -> str:
    """SHA-256 of a graph's content: nodes and their ids, attributes, edges, small constants; not of the file's bytes."""
    digest = hashlib.sha256()
    for line in _content(graph, flow):
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _content(graph: onnx_ir.Graph, flow: Flow) -> Iterator[str]:
    numbers: dict[onnx_ir.Value, int] = {}
    for value in graph.inputs:
        numbers[value] = len(numbers)
        yield f"input {value.name!r} {value.type} {value.shape}"
    for name, node in zip(node_ids(flow.nodes), flow.nodes, strict=True):
        for value in read_values(node):
            tensor = None if value in numbers else constant_tensor(value)
            if tensor is not None:
                numbers[value] = len(numbers)
                yield f"constant {_tensor(tensor)}"
        inputs = [None if v is None else numbers.get(v, v.name) for v in node.inputs]
        attributes = sorted((a.name, str(a.type), _attribute(a)) for a in node.attributes.values())
        yield f"node {name!r} {node.domain} {node.op_type} {node.overload} {inputs} {attributes}"
        for value in node.outputs:
            numbers[value] = len(numbers)
    yield f"outputs {[(v.name, numbers.get(v)) for v in graph.outputs]}"


def _attribute(attribute: onnx_ir.Attr) -> str:
    if attribute.type == onnx_ir.AttributeType.TENSOR and not attribute.is_ref():
        return _tensor(attribute.as_tensor())
    if attribute.type in (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS) and not attribute.is_ref():
        graphs = attribute.as_graphs() if attribute.type == onnx_ir.AttributeType.GRAPHS else [attribute.as_graph()]
        nodes = " ".join(f"{n.domain}.{n.op_type}({[v.name if v else None for v in n.inputs]})" for g in graphs for n in g.all_nodes())
        return f"{nodes} {[[v.name for v in g.inputs] for g in graphs]} {[[v.name if v else None for v in g.outputs] for g in graphs]}"
    return repr(attribute.value)


def _tensor(tensor: onnx_ir.TensorProtocol) -> str:
    content = hashlib.sha256(tensor.tobytes()).hexdigest() if tensor.size <= MAX_HASHED else "large"
    return f"{tensor.dtype} {tuple(tensor.shape)} {content}"


# --- files ------------------------------------------------------------------------------------------------------------


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes the plan: JSON if the name ends in .json, else YAML. Raises GraphfuseError if it cannot be written."""
    target = Path(path)
    write_text(target, plan_text(plan, as_json=target.suffix.lower() == ".json"))


def plan_text(plan: Plan, *, as_json: bool = False) -> str:
    """The plan as text."""
    import msgspec
    import yaml

    document = msgspec.to_builtins(plan)
    if as_json:
        return json.dumps(document, indent=1) + "\n"
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, width=140))


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan. Raises GraphfuseError with one line for anything that is not one."""
    source = Path(path)
    try:
        if source.stat().st_size > MAX_PLAN_BYTES:
            raise GraphfuseError(f"{path}: a plan of {source.stat().st_size} bytes is over the limit of {MAX_PLAN_BYTES}")
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise GraphfuseError(f"{path}: {error.strerror or error}; check the path") from error
    except UnicodeDecodeError as error:
        raise GraphfuseError(f"{path}: not a plan: it is no UTF-8 text; make one with `graphfuse plan`") from error
    return parse_plan(text, str(path), as_json=source.suffix.lower() == ".json")


def parse_plan(text: str, name: str = "plan", *, as_json: bool = False) -> Plan:
    """The plan in ``text``; ``name`` stands in front of error messages."""
    import msgspec

    try:
        document = json.loads(text) if as_json else _yaml(text)
        plan = msgspec.convert(document, Plan)
    except (ValueError, RecursionError) as error:  # msgspec's and JSON's errors are ValueErrors
        first = next(iter(str(error).splitlines()), "")
        raise GraphfuseError(f"{name}: not a plan: {first[:160]}; make one with `graphfuse plan`") from error
    if plan.version != VERSION:
        raise GraphfuseError(f"{name}: plan version {plan.version} is not {VERSION}; make a new one with `graphfuse plan`")
    return plan


def _yaml(text: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=loader)):
            raise ValueError("YAML aliases are not allowed")
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error

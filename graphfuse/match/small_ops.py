"""What each node of a graph is to fusion: a constant, shape arithmetic, a small op, or one that brings its own kernel.

Small ops are elementwise ops, comparisons, selects, casts, quantise/dequantise, data movement, reductions, softmax and
normalisations that work on data. Those that the op table can build are candidates for regions; for the others
the reason why not is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import onnx_ir

from graphfuse.graph.facts import Depends, Facts
from graphfuse.graph.structure import Memo
from graphfuse.lower import NodeRefused, lower_region
from graphfuse.match.flow import Flow
from graphfuse.ops.table import lookup


class Kind(Enum):
    """``BIG`` ops (matrix products, convolutions, recurrent nets) are the walls between regions; ``OTHER`` is neither."""

    CONSTANT = "constant"
    SHAPE = "shape"
    SMALL = "small"
    BIG = "big"
    OTHER = "other"


BIG_OPS = frozenset({
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "FusedConv", "FusedMatMul", "GRU", "Gemm", "LSTM",
    "MatMul", "MatMulInteger", "MultiHeadAttention", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul", "RNN",
})  # fmt: skip
FREE_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})  # the same bytes under another shape
_SMALL_ELSEWHERE = frozenset({
    "ArgMax", "ArgMin", "BatchNormalization", "CumProd", "CumSum", "DepthToSpace", "Dropout", "DynamicQuantizeLinear", "EyeLike",
    "Gather", "GatherElements", "GatherND", "GroupNormalization", "Hardmax", "Hardswish", "InstanceNormalization",
    "LayerNormalization", "LogSoftmax", "LpNormalization", "LRN", "MeanVarianceNormalization", "OneHot", "RMSNormalization",
    "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Softmax", "SpaceToDepth", "Split", "TensorScatter", "Tile", "Trilu",
    "Range", "ConstantOfShape", "Shrink", "ThresholdedRelu", "RotaryEmbedding", "Swish", "Mod", "BitShift", "Expand",
})  # fmt: skip
_REFUSALS: Memo[tuple[str, str] | None] = Memo()
_SOFT = frozenset({"unbound-size"})  # may be fine once other nodes bring the size in


@dataclass(frozen=True)
class NodeClass:
    """The kind of one node; for small ops that cannot be in any region, ``refused`` says why."""

    kind: Kind
    refused: NodeRefused | None = None

    @property
    def fusable(self) -> bool:
        """Whether the node may be part of a region."""
        return self.kind is Kind.SMALL and self.refused is None


def classify(flow: Flow, facts: Facts) -> list[NodeClass]:
    """The class of every node of ``flow``, in order."""
    return [_classify(node, facts) for node in flow.nodes]


def _classify(node: onnx_ir.Node, facts: Facts) -> NodeClass:
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        return NodeClass(Kind.CONSTANT)
    if all(facts.depends(v) is not Depends.DATA for v in node.outputs):
        return NodeClass(Kind.SHAPE)  # of shapes and constants only; what folding left of the latter is no work on data either
    if node.op_type in BIG_OPS:
        return NodeClass(Kind.BIG)
    if lookup(node.domain, node.op_type) is not None:
        return NodeClass(Kind.SMALL, _why_not(node, facts))
    if node.domain in ("", "ai.onnx") and node.op_type in _SMALL_ELSEWHERE:
        return NodeClass(Kind.SMALL, NodeRefused("unknown-op", f"{node.op_type} is not in the op table", node))
    return NodeClass(Kind.OTHER)


def _why_not(node: onnx_ir.Node, facts: Facts) -> NodeRefused | None:
    structure, reads = facts.structure(node), facts.large_reads
    key = structure and (structure, tuple(node.inputs.index(v) for v in node.inputs), tuple(bool(v.name) for v in node.outputs))
    refused = _REFUSALS.get(key, lambda: _refusal(node, facts), lambda: facts.large_reads == reads)
    return refused and NodeRefused(*refused, node)


def _refusal(node: onnx_ir.Node, facts: Facts) -> tuple[str, str] | None:
    """Rule and reason: they speak of types, shapes and attributes, of nothing that structure leaves out."""
    try:
        lower_region([node], facts, [v for v in node.outputs if v.name])
    except NodeRefused as refused:
        return None if refused.rule in _SOFT else (refused.rule, refused.reason)
    return None


def costs_a_kernel(node: onnx_ir.Node) -> bool:
    """Whether an engine launches a kernel for this node by itself; pure views cost none."""
    return not (node.op_type in FREE_VIEWS and node.domain in ("", "ai.onnx"))


def longest_chain(flow: Flow, classes: list[NodeClass]) -> int:
    """The most small ops on one path with no other op between them."""
    depth = [0] * len(flow.nodes)
    for i, own in enumerate(classes):
        if own.kind is Kind.SMALL:
            depth[i] = 1 + max((depth[p] for p in flow.preds[i]), default=0)
    return max(depth, default=0)

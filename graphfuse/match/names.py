"""Names of fused ops. Nothing in them comes from the model but the types of the ops in the table."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from functools import cache

import onnx_ir

from graphfuse.graph.bodies import nested
from graphfuse.graph.checks import DOMAIN, PLUGIN_OP
from graphfuse.graph.programs import SPEC_KEY

PLUGIN_VERSION = "1"
PARAMS_KEY = "graphfuse.params"  # on a function: which of its inputs are the program's parameters, as a JSON list
ORIGIN_KEY = "graphfuse.origin"  # on a call: names and places of the nodes that it replaced
PORTABLE_KEY = "graphfuse.portable"  # on a model in plugin form: the portable one
DIGEST_KEY = "graphfuse.digest"  # on a model in plugin form: of its graph
IR_VERSION_KEY = "graphfuse.ir_version"  # on the model: what it was before functions were added

__all__ = [
    "DIGEST_KEY", "DOMAIN", "IR_VERSION_KEY", "ORIGIN_KEY", "PARAMS_KEY", "PLUGIN_OP", "PLUGIN_VERSION", "PORTABLE_KEY", "SPEC_KEY",
    "fused_name", "onnx_op_names", "own_names", "unused_name", "value_names",
]  # fmt: skip

_SHORT = {
    "layernormalization": "layernorm", "instancenormalization": "instancenorm", "batchnormalization": "batchnorm",
    "groupnormalization": "groupnorm", "simplifiedlayernormalization": "rmsnorm", "rmsnormalization": "rmsnorm",
    "skiplayernormalization": "layernorm", "skipsimplifiedlayernormalization": "rmsnorm", "logsoftmax": "logsoftmax",
    "quantizelinear": "quant", "dequantizelinear": "dequant", "reducemean": "mean", "reducesum": "sum", "reducemax": "rmax",
    "reducemin": "rmin", "transpose": "transpose", "greaterorequal": "ge", "lessorequal": "le", "greater": "gt", "less": "lt",
}  # fmt: skip
_DULL = frozenset({"reshape", "squeeze", "unsqueeze", "flatten", "identity", "cast", "expand", "constant"})
_WORDS, _LETTERS = 4, 40


def fused_name(op_types: Sequence[str], content: bytes, taken: Collection[str] = ()) -> str:
    """``gf_<words>_<hash>`` of the op types and of ``content``; unique among ``taken`` and the ops of ONNX."""
    digest = hashlib.sha256(content).hexdigest()[:10]
    base = name = f"gf_{_words(op_types)}_{digest}"
    count = 1
    while name in taken or name in onnx_op_names():
        count += 1
        name = f"{base}_{count}"
    return name


def _words(op_types: Sequence[str]) -> str:
    plain = [re.sub(r"[^a-z0-9]", "", t.lower()) for t in op_types]
    telling = [t for t in plain if t and t not in _DULL] or [t for t in plain if t] or ["region"]
    words = list(dict.fromkeys(_SHORT.get(t, t) for t in telling))
    return "_".join(words[:_WORDS])[:_LETTERS].strip("_")


@cache
def onnx_op_names() -> frozenset[str]:
    """The op types of every domain that ONNX defines; parsers take a function of such a name for the op itself."""
    import onnx

    return frozenset(s.name for s in onnx.defs.get_all_schemas_with_history())


def unused_name(wanted: str, taken: Collection[str]) -> str:
    """``wanted``, or ``wanted_2``, ``wanted_3``... if that is taken."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def value_names(graph: onnx_ir.Graph) -> set[str]:
    """Every name of a value in the graph and in the bodies in it."""
    return set().union(*(own_names(g) for g in nested(graph)))


def own_names(graph: onnx_ir.Graph) -> set[str]:
    """The names of the values of this graph alone."""
    made = {v.name or "" for n in graph for v in n.outputs}
    return made | {v.name or "" for v in graph.inputs} | set(graph.initializers)

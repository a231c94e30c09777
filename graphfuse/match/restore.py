"""Back to the plain model: every fused node becomes the nodes it was made from, with their names, in their places."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import onnx_ir

from graphfuse.graph.bodies import bodies
from graphfuse.graph.checks import all_nodes
from graphfuse.graph.facts import constant_tensor
from graphfuse.ir.errors import GraphfuseError
from graphfuse.match.names import DOMAIN, IR_VERSION_KEY, ORIGIN_KEY, PLUGIN_OP, PORTABLE_KEY, SPEC_KEY, own_names, unused_name, value_names

Wanted = Callable[[onnx_ir.Node, onnx_ir.Function], bool]


@dataclass(frozen=True)
class Origin:
    """Names and places of the nodes that a call replaced; empty where the metadata are missing or do not fit."""

    at: list[int] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)


def is_fused(model: onnx_ir.Model) -> bool:
    """Whether the model is in portable or plugin form."""
    return any(_is_ours(f) for f in model.functions.values()) or _has_plugins(model)


def _has_plugins(model: onnx_ir.Model) -> bool:
    return PORTABLE_KEY in model.metadata_props or any(n.domain == DOMAIN and n.op_type == PLUGIN_OP for n in model.graph.all_nodes())


def _is_ours(function: onnx_ir.Function) -> bool:
    return function.domain == DOMAIN and SPEC_KEY in function.metadata_props


def restore_model(model: onnx_ir.Model) -> onnx_ir.Model:
    """A plain copy of a model in portable or plugin form; ``model`` is not changed.

    Raises GraphfuseError if it is in plugin form but does not hold what it was made from, or was changed since.
    """
    from graphfuse.match.plugin_form import portable_of

    own = portable_of(model) if _has_plugins(model) else model.clone()
    inline(own, lambda node, function: True)
    drop_functions(own)
    if not any(n.domain == DOMAIN for n in own.graph.all_nodes()):
        own.opset_imports.pop(DOMAIN, None)
    version = own.metadata_props.pop(IR_VERSION_KEY, "")
    if version.isdigit() and 3 <= int(version) <= own.ir_version and not own.functions:
        own.ir_version = int(version)
    return own


def drop_functions(model: onnx_ir.Model) -> None:
    """Removes the functions of fused nodes that nothing calls any more."""
    called = {n.op_identifier() for n in all_nodes(model)}
    for identifier in [i for i, f in model.functions.items() if _is_ours(f) and i not in called]:
        del model.functions[identifier]


def inline(model: onnx_ir.Model, wanted: Wanted) -> None:
    """Puts the bodies of the fused nodes that ``wanted`` picks in their places, in the model itself."""
    _inline_graph(model.graph, _Scope(model.graph, value_names(model.graph)), model, wanted)


def _inline_graph(graph: onnx_ir.Graph, scope: _Scope, model: onnx_ir.Model, wanted: Wanted) -> None:
    """Opens calls in ``graph``, then in the bodies in it."""
    inliner = _Inliner(scope, {n.name or "" for n in graph})
    pieces: list[tuple[list[onnx_ir.Node], list[int]]] = []
    found = False
    for node in list(graph):
        function = model.functions.get(node.op_identifier())
        if function is None or not _is_ours(function) or not wanted(node, function):
            pieces.append(([node], []))
        else:
            origin = read_origin(node, function)
            pieces.append((inliner.expand(node, function, origin), origin.at))
            found = True
    if found:
        graph.remove(list(graph))
        graph.extend(_in_place(pieces))
    for node in list(graph):
        for _, body in bodies(node):
            _inline_graph(body, scope.enter(graph, body), model, wanted)


@dataclass
class _Scope:
    """What a graph sees. ``names`` are taken in it; ``constants`` are those of the bodies around it and its own."""

    main: onnx_ir.Graph
    names: set[str]
    outer: set[str] = field(default_factory=set)
    constants: dict[str, onnx_ir.Value] = field(default_factory=dict)

    def enter(self, graph: onnx_ir.Graph, body: onnx_ir.Graph) -> _Scope:
        """That of ``body``, which hangs on a node of ``graph``. Bodies side by side may use the same names."""
        outer = self.outer | own_names(graph)
        made = (n.outputs[0] for n in body if n.op_type == "Constant" and n.domain == "")
        constants = {v.name or "": v for v in (*body.initializers.values(), *made)}
        return _Scope(self.main, outer | value_names(body), outer, {**self.constants, **constants})

    def constant(self, name: str) -> onnx_ir.Value | None:
        """The constant of this name, if there is one."""
        return self.constants.get(name) or self.main.initializers.get(name)

    def add_constant(self, name: str, tensor: onnx_ir.TensorProtocol) -> onnx_ir.Value:
        """A new initializer of the main graph, which every body sees."""
        fresh = unused_name(name, self.names | value_names(self.main) if self.outer else self.names)
        self.names.add(fresh)
        shape = onnx_ir.Shape(tensor.shape.numpy())
        own = onnx_ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=shape, name=fresh)
        value = onnx_ir.Value(name=fresh, type=onnx_ir.TensorType(tensor.dtype), shape=shape, const_value=own)
        self.main.register_initializer(value)
        return value


def read_origin(call: onnx_ir.Node, function: onnx_ir.Function) -> Origin:
    """The call's metadata if they fit the function, else an empty Origin: they are a comfort, never trusted."""
    try:
        found = json.loads(call.metadata_props.get(ORIGIN_KEY, ""))
        origin = Origin(*(list(found[key]) for key in ("at", "nodes", "values", "constants")))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Origin()
    constants = sum(n.op_type == "Constant" for n in function)
    outputs = set(function.outputs)
    inner = sum(bool(v.name) and v not in outputs for n in function if n.op_type != "Constant" for v in n.outputs)
    fits = len(origin.at) == len(origin.nodes) == len(function) - constants
    fits = fits and (len(origin.values), len(origin.constants)) == (inner, constants)
    texts = all(isinstance(t, str) for t in (*origin.nodes, *origin.values, *origin.constants))
    return origin if fits and texts and all(type(i) is int and i >= 0 for i in origin.at) else Origin()


def _in_place(pieces: Sequence[tuple[list[onnx_ir.Node], list[int]]]) -> list[onnx_ir.Node]:
    """The nodes in their original order where all places are known and give one that works, else as they come."""
    plain = [node for nodes, _ in pieces for node in nodes]
    places: dict[int, onnx_ir.Node] = {}
    for nodes, at in pieces:
        places.update(zip(at, nodes, strict=False))
    fixed = set(places.values())
    complete = all(at or len(nodes) == 1 for nodes, at in pieces) and sum(len(at) for _, at in pieces) == len(places)
    if not complete or any(i >= len(plain) for i in places):
        return plain
    rest = (node for node in plain if node not in fixed)
    ordered = [places.get(i) or next(rest) for i in range(len(plain))]
    return ordered if _is_topological(ordered, set(plain)) else plain


def _is_topological(nodes: Sequence[onnx_ir.Node], members: set[onnx_ir.Node]) -> bool:
    from graphfuse.match.flow import read_values

    done: set[onnx_ir.Node] = set()
    for node in nodes:
        producers = (v.producer() for v in read_values(node))
        if any(p in members and p not in done for p in producers if p is not None and p is not node):
            return False
        done.add(node)
    return True


class _Inliner:
    def __init__(self, scope: _Scope, node_names: set[str]) -> None:
        self.scope = scope
        self.value_names = scope.names
        self.node_names = node_names

    def expand(self, call: onnx_ir.Node, function: onnx_ir.Function, origin: Origin) -> list[onnx_ir.Node]:
        """The function's nodes, wired up in place of ``call``."""
        if function.attributes or not all(_is_plain(n) for n in function):
            raise GraphfuseError(f"function {function.name!r} was not made by graphfuse; rewrite the original model again")
        given: list[onnx_ir.Value | None] = [*call.inputs, *[None] * len(function.inputs)]
        inside: dict[onnx_ir.Value, onnx_ir.Value | None] = dict(zip(function.inputs, given, strict=False))
        results = dict(zip(function.outputs, call.outputs, strict=False))
        self.node_names.discard(call.name or "")
        names, values, constants = iter(origin.nodes), iter(origin.values), iter(origin.constants)
        made: list[onnx_ir.Node] = []
        for node in function:
            if node.op_type == "Constant":
                inside[node.outputs[0]] = self._constant(node, next(constants, f"{call.name}_{node.outputs[0].name}"))
                continue
            outputs = [self._output(v, results, lambda v: next(values, f"{call.name}_{v.name}")) for v in node.outputs]
            inputs = [None if v is None else self._read(v, inside, function) for v in node.inputs]
            inside.update(zip(node.outputs, outputs, strict=True))
            name = self._node_name(next(names, f"{call.name}_{node.name}"))
            made.append(onnx_ir.Node(node.domain, node.op_type, inputs, list(node.attributes.values()), outputs=outputs, name=name))
        self._reconnect(call, function, inside)
        return made

    def _read(
        self, value: onnx_ir.Value, inside: dict[onnx_ir.Value, onnx_ir.Value | None], function: onnx_ir.Function
    ) -> onnx_ir.Value | None:
        if value not in inside:
            raise GraphfuseError(f"function {function.name!r} reads a value that it does not make; rewrite the original model again")
        return inside[value]

    def _reconnect(self, call: onnx_ir.Node, function: onnx_ir.Function, inside: dict[onnx_ir.Value, onnx_ir.Value | None]) -> None:
        fresh = [inside.get(v) for v in function.outputs]
        if len(fresh) != len(call.outputs) or any(v is None or v.producer() is None for v in fresh):
            raise GraphfuseError(f"call {call.name!r} does not fit its function {function.name!r}; rewrite the original model again")
        onnx_ir.convenience.replace_all_uses_with(call.outputs, [v for v in fresh if v is not None], replace_graph_outputs=True)
        for i in range(len(call.inputs)):
            call.replace_input_with(i, None)

    def _output(
        self, value: onnx_ir.Value, results: dict[onnx_ir.Value, onnx_ir.Value], name: Callable[[onnx_ir.Value], str]
    ) -> onnx_ir.Value:
        if not value.name:
            return onnx_ir.Value(name="")
        old = results.get(value)
        if old is not None:
            return onnx_ir.Value(name=old.name, type=old.type, shape=old.shape, metadata_props=old.metadata_props)
        fresh = unused_name(name(value), self.value_names)
        self.value_names.add(fresh)
        return onnx_ir.Value(name=fresh)

    def _node_name(self, wanted: str) -> str | None:
        name = unused_name(wanted, self.node_names) if wanted else wanted
        self.node_names.add(name)
        return name

    def _constant(self, node: onnx_ir.Node, name: str) -> onnx_ir.Value:
        """The constant that the function's was made from, made again if it is gone."""
        tensor = node.attributes["value"].as_tensor()
        present = self.scope.constant(name)
        if present is not None and _same(constant_tensor(present), tensor):
            return present
        return self.scope.add_constant(name, tensor)


def _is_plain(node: onnx_ir.Node) -> bool:
    """What nodes in our functions are: no calls of other fused nodes, no bodies, no attributes to be filled in."""
    kinds = (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
    simple = not any(a.is_ref() or a.type in kinds for a in node.attributes.values())
    constant = node.attributes.get("value") if node.op_type == "Constant" else None
    whole = node.op_type != "Constant" or (constant is not None and constant.type == onnx_ir.AttributeType.TENSOR)
    return simple and whole and node.domain != DOMAIN


def _same(first: onnx_ir.TensorProtocol | None, second: onnx_ir.TensorProtocol) -> bool:
    if first is None or first.dtype != second.dtype or tuple(first.shape) != tuple(second.shape):
        return False
    return first.tobytes() == second.tobytes()

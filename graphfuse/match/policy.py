"""What to fuse of all that could be: rules with names, each of which can be switched off.

``auto`` keeps its hands off what an engine does better by itself, and wants a predicted gain of every region;
``aggressive`` takes all that is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphfuse.graph.facts import Facts
from graphfuse.ir.errors import GraphfuseError
from graphfuse.match.attention import attention_core
from graphfuse.match.cost import fused_cost, own_sizes, unfused_cost
from graphfuse.match.epilogue import CONVOLUTIONS, PRODUCTS, epilogue
from graphfuse.match.flow import Flow
from graphfuse.match.grow import Region
from graphfuse.match.legal import Legality
from graphfuse.match.small_ops import FREE_VIEWS, Kind, NodeClass, costs_a_kernel

POLICIES = ("auto", "aggressive")


@dataclass(frozen=True)
class Context:
    """A graph under decision. ``sizes`` are run-time sizes to predict costs at."""

    flow: Flow
    facts: Facts
    classes: list[NodeClass]
    legality: Legality
    sizes: Mapping[str, int]


NodeRule = Callable[[Context], Iterator[tuple[int, str]]]
RegionRule = Callable[[Context, Region], "str | None"]


# --- rules about nodes: positions to leave out before regions grow, with reasons ---------------------------------------


def _conv_epilogue(context: Context) -> Iterator[tuple[int, str]]:
    yield from _epilogues(context, CONVOLUTIONS, "convolution")


def _matmul_epilogue(context: Context) -> Iterator[tuple[int, str]]:
    yield from _epilogues(context, PRODUCTS, "matrix product")


def _epilogues(context: Context, op_types: frozenset[str], what: str) -> Iterator[tuple[int, str]]:
    for start, node in enumerate(context.flow.nodes):
        if node.op_type in op_types and context.classes[start].kind is Kind.BIG:
            for i in epilogue(start, context.flow, context.facts, context.classes):
                yield i, f"the engine computes it at the end of the {what} before it"


def _attention_core(context: Context) -> Iterator[tuple[int, str]]:
    for i, node in enumerate(context.flow.nodes):
        if node.op_type == "Softmax" and context.classes[i].kind is Kind.SMALL:
            for member in attention_core(i, context.flow, context.facts):
                yield member, "the engine computes it together with the products around it, as attention"


def _quantised_operand(context: Context) -> Iterator[tuple[int, str]]:
    for i, node in enumerate(context.flow.nodes):
        if node.op_type == "DequantizeLinear" and any(context.classes[s].kind is Kind.BIG for s in context.flow.succs[i]):
            yield i, "the engine needs it beside the convolution or product to compute that in int8"


# --- rules about regions: the reason to leave one alone, or None --------------------------------------------------------


def _single_op(context: Context, region: Region) -> str | None:
    costly = [context.flow.nodes[i] for i in region.members if costs_a_kernel(context.flow.nodes[i])]
    if len(costly) > 1:
        return None
    return f"only {costly[0].op_type} costs a kernel; one kernel for one kernel gains nothing" if costly else "views cost no kernel"


def _matmul_views(context: Context, region: Region) -> str | None:
    flow = context.flow
    if any(flow.nodes[i].op_type not in FREE_VIEWS | {"Transpose"} for i in region.members):
        return None
    around = {s for i in region.members for s in (*flow.succs[i], *flow.preds[i]) if s not in region.members}
    if any(context.classes[s].kind is Kind.BIG for s in around):
        return "transposes and reshapes beside a matrix product or convolution, which the engine folds into it"
    return None


def _no_gain(context: Context, region: Region) -> str | None:
    before = unfused_cost((context.flow.nodes[i] for i in region.members), context.facts, context.sizes)
    after = fused_cost(region.lowered.program, own_sizes(region.lowered.sizes, context.sizes))
    if after.launches < before.launches and after.microseconds < before.microseconds:
        return None
    return f"predicted {before.launches} kernels and {before.bytes} bytes before, {after.launches} and {after.bytes} after"


@dataclass(frozen=True)
class Rule:
    """A rule of ``auto``. Exactly one of ``nodes``, ``region`` and ``trims`` is set."""

    name: str
    summary: str
    nodes: NodeRule | None = None
    region: RegionRule | None = None
    trims: bool = False


RULES: tuple[Rule, ...] = (
    Rule("conv-epilogue", "normalisation, bias, one activation and quantisation after a convolution", nodes=_conv_epilogue),
    Rule("matmul-epilogue", "bias and one activation after a matrix product", nodes=_matmul_epilogue),
    Rule("attention-core", "scale, mask and softmax between two products of 16-bit floats", nodes=_attention_core),
    Rule("quantised-operand", "DequantizeLinear in front of a convolution or product", nodes=_quantised_operand),
    Rule("doubled-output", "views that would write a result of the region a second time", trims=True),
    Rule("single-op", "regions in which fewer than two nodes cost a kernel", region=_single_op),
    Rule("matmul-views", "transposes and reshapes alone beside a matrix product or convolution", region=_matmul_views),
    Rule("no-gain", "regions whose kernel is not predicted to be faster", region=_no_gain),
)


class Policy:
    """The rules in force. ``skip`` may name ``patterns``, too. Raises GraphfuseError for an unknown policy or name."""

    def __init__(self, name: str = "auto", skip: Iterable[str] = (), patterns: Collection[str] = ()) -> None:
        if name not in POLICIES:
            raise GraphfuseError(f"policy {name!r} is unknown; take one of {', '.join(POLICIES)}")
        skipped = {skip} if isinstance(skip, str) else set(skip)
        unknown = sorted(skipped - {r.name for r in RULES} - set(patterns))
        if unknown:
            also = f", the patterns {', '.join(patterns)}" if patterns else ""
            raise GraphfuseError(f"rule {unknown[0]!r} is unknown; the rules are {', '.join(r.name for r in RULES)}{also}")
        self.name = name
        self.rules = tuple(r for r in RULES if name == "auto" and r.name not in skipped)

    def left_out(self, context: Context) -> dict[int, tuple[str, str]]:
        """Nodes (positions) that take no part in growing: the rule and the reason."""
        found: dict[int, tuple[str, str]] = {}
        for rule in self.rules:
            for i, reason in rule.nodes(context) if rule.nodes else ():
                found.setdefault(i, (rule.name, reason))
        return found

    def trim(self, context: Context, region: Region) -> tuple[Region, list[int]]:
        """The region without views that only write one of its results again; the nodes that went."""
        gone: list[int] = []
        while any(r.trims for r in self.rules):
            extra = next((i for i in reversed(region.members) if _doubles_output(context, region, i)), None)
            smaller = None if extra is None else _without(context, region, extra)
            if extra is None or smaller is None:
                break
            region = smaller
            gone.append(extra)
        return region, gone

    def veto(self, context: Context, region: Region) -> tuple[str, str] | None:
        """The first rule that leaves the region alone, and why."""
        for rule in self.rules:
            reason = rule.region(context, region) if rule.region else None
            if reason:
                return rule.name, reason
        return None


def _doubles_output(context: Context, region: Region, index: int) -> bool:
    """Whether the node is a view that nothing inside reads, of something that is in memory without it."""
    flow = context.flow
    if any(s in region.members for s in flow.succs[index]):
        return False
    members, place = set(region.members), index
    while flow.nodes[place].op_type in FREE_VIEWS:
        source = flow.nodes[place].inputs[0]
        producer = None if source is None else flow.place.get(source.producer())  # type: ignore[arg-type]
        if source is None or producer not in members or flow.escapes(source, members):
            return True
        place = producer
    return False


def _without(context: Context, region: Region, index: int) -> Region | None:
    members = tuple(i for i in region.members if i != index)
    answer = context.legality.check(members)
    return None if isinstance(answer, Exception) else Region(members, answer)

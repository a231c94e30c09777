"""``explain``: for each node of a model, where it went, or why it was left alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from graphfuse.graph.load import load_model
from graphfuse.match.explain import Explanation, PatternReport, explain_model, explain_patterns
from graphfuse.match.rewrite import rewrite_model
from graphfuse.patterns.load import Source, user_patterns
from graphfuse.session.session import Model


@dataclass(frozen=True)
class Explained:
    """What became of the nodes asked for, in graph order; ``names`` are those of the regions that they went into.

    ``patterns`` has a report on each pattern where the whole model was asked for.
    """

    nodes: tuple[Explanation, ...]
    names: dict[int, str]
    patterns: tuple[PatternReport, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; ``region`` is a region's name, or empty."""
        nodes = [{**asdict(n), "region": self.names.get(n.region, "")} for n in self.nodes]
        return {"nodes": nodes, "patterns": [asdict(p) for p in self.patterns]}


def explain(
    model: Model, node: str | None = None, *, policy: str = "auto", skip: Iterable[str] = (), patterns: Iterable[Source] = ()
) -> Explained:
    """Explains every node of a model, or the one called ``node`` (by its name, or by a value that it makes).

    Names are those of the model after constant folding. Raises GraphfuseError for a node that the model does not have.
    """
    loaded = load_model(model)
    skip, patterns = (skip,) if isinstance(skip, str) else tuple(skip), user_patterns(patterns)
    found = explain_model(loaded, node, policy=policy, skip=skip, patterns=patterns)
    homes = {
        name: region.name for region in rewrite_model(loaded, policy=policy, skip=skip, patterns=patterns).regions for name in region.nodes
    }
    reports = explain_patterns(loaded, skip=skip, patterns=patterns) if node is None else []
    return Explained(tuple(found), {n.region: homes[n.node] for n in found if n.node in homes}, tuple(reports))

"""Reports as tables for people. Colour means something: green gained or passed, red failed, dim is there for completeness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from graphfuse.check.verdict import CheckResult, OutputVerdict, RegionVerdict
    from graphfuse.match.explain import Explanation, PatternReport
    from graphfuse.report.doctor import Doctor
    from graphfuse.report.explain import Explained
    from graphfuse.report.scan import Scan
    from graphfuse.report.show import ShownRegion

MANY = 12  # rows, above which a table shows what matters most


def table(title: str, *columns: str, right: Iterable[str] = (), wide: Iterable[str] = ()) -> Table:
    """An empty table; columns in ``right`` hold numbers, those in ``wide`` may break over lines."""
    made = Table(title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name not in wide, overflow="fold")
    return made


def size(count: float) -> str:
    """Bytes for people: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def plural(number: int, what: str) -> str:
    """``1 region``, ``2 regions``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def counted(names: Iterable[str]) -> str:
    """``Mul x3, Add`` for a list of op types, in order of first appearance."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counts.items())


def saved(before: float, after: float) -> str:
    """How much less, in percent."""
    return "" if before <= 0 else f"{(after - before) / before:+.0%}"


# --- scan, plan, rewrite ----------------------------------------------------------------------------------------------


def scan_tables(found: Scan) -> list[RenderableType]:
    """The figures of a model, its regions, and what was left alone."""
    figures = table(found.model, "", "before", "after", "", right=("before", "after"))
    left = found.small_ops - found.small_ops_fused
    figures.add_row("nodes", f"{found.nodes}", f"{found.nodes_after}", Text(f"{found.shape_nodes} of them shape arithmetic", style="dim"))
    figures.add_row("small ops on their own", f"{found.small_ops}", f"{left}", Text(f"longest chain {found.longest_chain}", style="dim"))
    figures.add_row(
        "kernel launches, predicted",
        f"{found.launches_before}",
        f"{found.launches_after}",
        _gain(found.launches_before, found.launches_after),
    )
    figures.add_row(
        "memory traffic, predicted", size(found.bytes_before), size(found.bytes_after), _gain(found.bytes_before, found.bytes_after)
    )
    sizes = ", ".join(f"{name}={value}" for name, value in found.sizes.items())
    note = [Text(f"predicted at {sizes}; --size NAME=N chooses others", style="dim")] if sizes else []
    return [figures, *note, *region_tables(found.regions), *_refused(found.refused)]


def _gain(before: float, after: float) -> Text:
    return Text(saved(before, after), style="green" if after < before else "")


def region_tables(regions: Sequence[Any]) -> list[RenderableType]:
    """A row for each kernel, with the regions that share it: what goes in, and what becomes of it."""
    if not regions:
        return [Text("No region: nothing here is worth fusing, or may be.", style="yellow")]
    first = "kernel, and the ops in it"
    made = table("Regions", first, "ops", "launches", "bytes", right=("ops", "launches", "bytes"), wide=(first,))
    for name, group in _by_function(regions).items():
        launches = f"{sum(r.launches_before for r in group)} -> {sum(r.kernels for r in group)}"
        traffic = f"{size(sum(r.bytes_before for r in group))} -> {size(sum(r.bytes_after for r in group))}"
        times = f" x{len(group)}" if len(group) > 1 else ""
        cell = Text.assemble(name, times, "\n", ("  " + counted(group[0].op_types), "dim"))
        made.add_row(cell, f"{sum(len(r.nodes) for r in group)}", launches, traffic)
    return [made]


def _by_function(regions: Sequence[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for region in regions:
        groups.setdefault(region.function, []).append(region)
    return groups


def _refused(counts: dict[str, int]) -> list[RenderableType]:
    if not counts:
        return []
    made = table("Left alone", "rule", "nodes", right=("nodes",))
    for rule, number in counts.items():
        made.add_row(rule, f"{number}")
    return [made, Text("graphfuse explain MODEL NODE says why.", style="dim")]


def rewrite_tables(report: dict[str, Any], regions: Sequence[Any]) -> list[RenderableType]:
    """What ``rewrite`` did."""
    line = Text.assemble(
        (f"{report['nodes_before']} nodes became {report['nodes_after']}", "bold"),
        f": {report['small_ops_fused']} of {report['small_ops']} small ops are in {plural(len(regions), 'region')}",
    )
    return [line, *region_tables(regions)]


# --- check ------------------------------------------------------------------------------------------------------------


def check_tables(found: CheckResult) -> list[RenderableType]:
    """Every output, every region that is not plainly right, and the finding."""
    outputs = table(
        f"Outputs, fused nodes on {found.device}", "output", "type", "max abs", "max rel", "allowed", "verdict", "reason",
        right=("max abs", "max rel", "allowed"), wide=("reason", "output"),
    )  # fmt: skip
    for row in found.outputs:
        outputs.add_row(escape(row.name), _type(row), *_errors(row), _verdict(row.verdict), escape(row.reason))
    parts: list[RenderableType] = [outputs]
    if found.regions:
        parts.append(_regions(found))
    parts += [Text(f"note: {note}", style="yellow") for note in found.notes]
    parts.append(Text("passed", style="bold green") if found.passed else Text("FAILED", style="bold red"))
    return parts


def _regions(found: CheckResult) -> Table:
    """The regions: of many, those that are not right, and the few that use most of their tolerance."""
    shown = list(found.regions)
    title = "Regions, each fed with the original's values"
    if len(shown) > MANY:
        worst = sorted(shown, key=_used, reverse=True)[: MANY // 2]
        shown = [r for r in shown if r.verdict != "pass" or r in worst]
        title += f" ({len(shown)} of {len(found.regions)}; the others use less of their tolerance)"
    made = table(title, "region", "max abs", "allowed", "verdict", "reason", right=("max abs",), wide=("region", "reason"))
    for region in shown:
        top = max(region.outputs, key=lambda o: o.used, default=None)
        figures = ("", "") if top is None else (f"{top.max_abs:.1e}", _share(top))
        made.add_row(escape(region.name), *figures, _verdict(region.verdict), escape(region.reason))
    return made


def _used(region: RegionVerdict) -> float:
    return max((o.used for o in region.outputs), default=0.0)


def _type(row: OutputVerdict) -> str:
    return f"{row.dtype}{escape(str(list(row.shape)))}"


def _errors(row: OutputVerdict) -> tuple[str, str, str]:
    return (f"{row.max_abs:.1e}", f"{row.max_rel:.1e}", _share(row)) if row.rtol else (f"{row.max_abs:g}", "", "exact")


def _share(row: OutputVerdict) -> str:
    """How much of the tolerance was used."""
    return f"{row.used:.1%} used" if row.rtol else "exact"


def _verdict(text: str) -> Text:
    return Text(text, style={"pass": "green", "FAIL": "bold red"}.get(text, "yellow"))


# --- run, build, show, doctor -----------------------------------------------------------------------------------------


def run_table(rows: Iterable[Sequence[str]], device: str) -> Table:
    """Outputs of a run: name, dtype, shape, mean of the absolute values."""
    made = table(f"Outputs, fused nodes on {device}", "output", "dtype", "shape", "mean |x|", right=("mean |x|",), wide=("output",))
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


def region_list(regions: Sequence[ShownRegion]) -> Table:
    """A row for each fused node of a model."""
    made = table("Fused regions", "name", "instructions", "inputs", "outputs", right=("instructions",), wide=("inputs", "outputs"))
    for region in regions:
        body = sum(i.op != "param" for i in region.program.body)
        made.add_row(escape(region.name), f"{body}", _ports(region.program.params), _ports(region.program.outputs))
    return made


def _ports(ports: Iterable[Any]) -> str:
    texts = [f"{dtype}[{', '.join(str(d) for d in shape)}]" for dtype, shape in ports]
    more = f" and {len(texts) - 4} more" if len(texts) > 5 else ""
    return escape(", ".join(texts[:4] if more else texts) + more)


def region_parts(region: ShownRegion, parts: Sequence[str]) -> list[RenderableType]:
    """The named parts of a region: program and cuda as text that can be copied, resources as a table."""
    made: list[RenderableType] = []
    for part in parts:
        if part == "resources":
            made.append(_resources(region))
        else:
            made.append(Text(region.text + "\n" if part == "program" else f"// region {region.name}\n{region.cuda}"))
    return made


def _resources(region: ShownRegion) -> Table:
    columns = ("arch", "entry", "registers", "shared", "spilled", "stack")
    made = table(f"{region.name}: registers a thread, bytes of memory", *columns, right=columns[2:])
    for arch, entries in region.resources.items():
        for entry, used in entries.items():
            spills = used["spill_stores"] + used["spill_loads"]
            cells = (f"{used['registers']}", f"{used['shared_bytes']}", f"{spills}", f"{used['stack_bytes']}")
            made.add_row(arch, escape(entry), *cells, style="red" if spills else "")
    return made


_STATES = {"ok": "green", "missing": "yellow", "broken": "bold red"}


def doctor_table(found: Doctor) -> Table:
    """A row for each thing, and how to mend it."""
    made = table("graphfuse doctor", "what", "state", "found", "for", wide=("found", "for"))
    for row in found.findings:
        style = "bold red" if row.needed and row.state != "ok" else _STATES[row.state]
        made.add_row(row.name, Text(row.state, style=style), escape(row.detail), row.purpose)
        if row.state != "ok" and row.mend:
            made.add_row("", "", Text(f"mend: {row.mend}", style="cyan"), "")
    return made


# --- explain ----------------------------------------------------------------------------------------------------------


def explain_tables(found: Explained) -> list[RenderableType]:
    """A row for each node; of one alone, all that there is to say."""
    if len(found.nodes) == 1:
        return [_one_node(found.nodes[0], found.names)]
    made = table("Nodes", "node", "op", "rule", "where or why", wide=("node", "where or why"))
    for node in found.nodes:
        made.add_row(
            escape(node.node), node.op_type, Text(node.rule, style=_rule_style(node)), escape(found.names.get(node.region, node.reason))
        )
    return [made, _pattern_table(found.patterns)]


def _pattern_table(patterns: Sequence[PatternReport]) -> Table:
    """For each pattern how often it is there, else the nearest miss with the offending node."""
    made = table("Patterns", "pattern", "there", "nearest miss: node", "why not", wide=("nearest miss: node", "why not"))
    for found in patterns:
        there = ", ".join(f"{n} {what}" for n, what in ((found.rewritten, "rewritten"), (found.recognised, "as it is")) if n)
        made.add_row(found.name, Text(there, style="green"), escape(found.node), escape(_why(found)))
    return made


def _why(found: PatternReport) -> str:
    return f"{found.reason} ({found.matched} nodes before it fit, up to {found.near})" if found.node else found.reason


def _rule_style(node: Explanation) -> str:
    walls = ("constant", "shape-arithmetic", "big-op", "not-small")
    return "green" if node.region else "dim" if node.rule in walls else "yellow"


def _one_node(node: Explanation, names: dict[int, str]) -> Table:
    made = table(f"{node.node} ({node.op_type})", "", "", wide=("",))
    made.show_header = False
    rows: list[tuple[str, str | Text]] = [
        ("rule", Text(node.rule, style=_rule_style(node))),
        ("reason", node.reason),
        ("region", names.get(node.region, "")),
        ("pattern", node.pattern),
        ("with", ", ".join(node.together)),
        ("reads from", ", ".join(node.producers)),
        ("read by", ", ".join(node.readers)),
    ]
    rows += [(f"apart: {r.rule}", f"{' and '.join(r.nodes)}: {r.reason}") for r in node.apart]
    for name, what in rows:
        if what:
            made.add_row(name, what if isinstance(what, Text) else escape(what))
    return made

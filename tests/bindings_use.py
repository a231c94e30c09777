"""What our sources use of TensorRT, read from the sources; and what a bindings module has, read from the module.

``uses`` finds every name below a TensorRT module, every method and attribute of objects that TensorRT made, with the arguments of
each call. ``faults`` holds them against a module. It is run where the module can be imported, so it imports nothing else of ours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODULES = ("trt", "module", "self.trt", "flavour.module", "self.flavour.module", "chosen.module", "self.module")
# Names of our variables that hold TensorRT's objects, wherever they stand in the engine room and the plugin.
OBJECTS = {
    "timings": "ITimingCache", "inspector": "EngineInspector",
    "builder": "Builder", "network": "INetworkDefinition", "parser": "OnnxParser", "config": "IBuilderConfig", "profile": "IOptimizationProfile",
    "self.engine": "ICudaEngine", "self.context": "IExecutionContext", "self.runtime": "Runtime", "error": "ParserError",
}  # fmt: skip
OURS = {"error": {"strerror", "filename", "name"}}  # of Python's exceptions, under the same variable


@dataclass(frozen=True)
class Use:
    """A name of TensorRT, dotted, and how it is called: the number of positional arguments and the keywords; None if it is not."""

    name: str
    where: str
    call: tuple[int, tuple[str, ...]] | None = None


def uses(files: list[Path]) -> Iterator[Use]:
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                name = _below(node)
                if name:
                    call = None if node.attr == "__init__" else calls.get(id(node))  # a base class's, with our object
                    shape = (len(call.args), tuple(k.arg or "**" for k in call.keywords)) if call else None
                    yield Use(name, f"{file.name}:{node.lineno}", shape)


def _below(node: ast.Attribute) -> str | None:
    """``DataType.FLOAT`` for ``self.trt.DataType.FLOAT``, ``Builder.create_network`` for ``builder.create_network``."""
    text = ast.unparse(node)
    for prefix in sorted(MODULES, key=len, reverse=True):
        if text.startswith(prefix + "."):
            return (
                text[len(prefix) + 1 :]
                .replace("get_plugin_registry().", "IPluginRegistry.")
                .removesuffix(".__members__")
                .removesuffix(".__init__")
            )
    head, _, member = text.rpartition(".")
    if head in OBJECTS and not member.startswith("__") and member not in OURS.get(head, ()):
        return f"{OBJECTS[head]}.{member}"
    return None


def faults(found: list[Use], trt: Any, absent: set[str]) -> list[str]:
    """Lines that say what is not there or is not called like that. ``absent`` names are guarded in our sources, and must be missing."""
    lines = [f"{name} exists after all" for name in absent if _resolve(trt, name) is not None]
    for use in found:
        if any(use.name == a or use.name.startswith(a + ".") for a in absent):
            continue
        thing = _resolve(trt, use.name)
        if thing is None:
            lines.append(f"{use.where}: no {use.name}")
        elif use.call is not None:
            forms = signatures(thing.__init__ if isinstance(thing, type) else thing)
            if forms and not any(_accepts(form, *use.call) for form in forms):
                lines.append(f"{use.where}: {use.name} is not called with {use.call}: {forms}")
    return lines


def _resolve(thing: Any, name: str) -> Any:
    for part in name.split("."):
        thing = getattr(thing, part, None)
    return thing


Form = list[tuple[str, bool]]  # parameters without self: name, and whether it may be left out


def signatures(function: Any) -> list[Form]:
    """The forms in which a pybind11 function may be called, from the first lines of its documentation."""
    doc = function.__doc__ or ""
    name = getattr(function, "__name__", "")
    return [_form(match) for match in re.findall(rf"^(?:\d+\. )?{re.escape(name)}\((self: .*)\) ->", doc, re.MULTILINE)]


def _form(text: str) -> Form:
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text + ","):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [(part.partition(":")[0].strip(), "=" in part) for part in parts[1:] if part != "*"]


def _accepts(form: Form, positional: int, keywords: tuple[str, ...]) -> bool:
    if "**" in keywords or positional > len(form):
        return "**" in keywords
    left = form[positional:]
    return set(keywords) <= {n for n, _ in left} and all(optional or n in keywords for n, optional in left)

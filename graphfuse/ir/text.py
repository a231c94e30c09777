"""Programs as canonical JSON (the ``spec``), and as text for people.

The JSON holds only what cannot be derived: loading builds the program anew, instruction by instruction, through
``Builder``, so a spec from a downloaded file is verified before anything is made of it.
"""

from __future__ import annotations

import json
from typing import Any

from graphfuse.ir import dtypes, expr
from graphfuse.ir.builder import Builder, Val, const_text
from graphfuse.ir.errors import ProgramError
from graphfuse.ir.expr import Dim, Shape
from graphfuse.ir.program import Instr, Program

VERSION = 1
MAX_SPEC = 8 << 20  # characters


def dumps(program: Program) -> str:
    """The program as canonical JSON: equal programs give equal text; ASCII only."""
    body = [[i.op, list(i.args), {k: _to_json(k, v) for k, v in i.attrs}, *_stated(i)] for i in program.body if i.op != "param"]
    places = {n: k for k, n in enumerate([n for n, i in enumerate(program.body) if i.op == "param"])}
    others = [n for n, i in enumerate(program.body) if i.op != "param"]
    place = {**places, **{n: len(places) + k for k, n in enumerate(others)}}
    for row in body:
        row[1] = [place[a] for a in row[1]]
    document = {
        "version": VERSION,
        "params": [[t.name, [_dim(d) for d in s]] for t, s in program.params],
        "body": body,
        "results": [place[r] for r in program.results],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def loads(text: str) -> Program:
    """The program of a spec. Raises ProgramError with one line that says what is wrong; nothing in it is trusted."""
    if len(text) > MAX_SPEC:
        raise ProgramError(f"a spec of {len(text)} characters is over the limit of {MAX_SPEC}")
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise ProgramError(f"spec version {document['version']!r} is not {VERSION}; rewrite the model with this graphfuse")
        builder = Builder()
        vals = [builder.param(dtypes.BY_NAME[t], [expr.parse(d) for d in s]) for t, s in document["params"]]
        for row in document["body"]:
            vals.append(_build(builder, vals, row))
        return builder.finish([vals[_index(r, vals)] for r in document["results"]])
    except ProgramError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError, RecursionError, OverflowError) as error:
        raise ProgramError(f"not a graphfuse spec: {type(error).__name__}: {str(error)[:120]}") from error


def _index(number: Any, vals: list[Val]) -> int:
    if type(number) is not int or not 0 <= number < len(vals):
        raise ProgramError(f"value number {number!r} is not defined before its use")
    return number


def _stated(instr: Instr) -> list[Any]:
    """Type and shape where the operands do not imply them."""
    dtype = [instr.dtype.name] if instr.op in ("const", "extent", "iota", "cast") else []
    shape = [[_dim(d) for d in instr.shape]] if instr.op in ("reshape", "broadcast", "slice", "pad", "iota") else []
    return dtype + shape


def _dim(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else expr.render(dim)


def _to_json(key: str, value: Any) -> Any:
    if key == "value":
        return const_text(value)
    if isinstance(value, tuple):
        return [_dim(v) for v in value]
    return _dim(value) if isinstance(value, expr.Expr) else value


def _dims(items: Any) -> list[Dim]:
    return [expr.parse(i) for i in items]


def _ints(items: Any) -> list[int]:
    if any(type(i) is not int for i in items):
        raise ProgramError("a list of integers is wanted")
    return list(items)


def _build(b: Builder, vals: list[Val], row: list[Any]) -> Val:
    op, numbers, attrs, *rest = row
    args = [vals[_index(n, vals)] for n in numbers]
    match op:
        case "const":
            value = attrs["value"]
            return b.const(float.fromhex(value) if isinstance(value, str) else value, dtypes.BY_NAME[rest[0]])
        case "extent":
            return b.extent(expr.parse(attrs["size"]), dtypes.BY_NAME[rest[0]])
        case "iota":
            return b.iota(_dims(rest[1]), attrs["axis"], dtypes.BY_NAME[rest[0]])
        case "map":
            return b.map(attrs["fn"], *args)
        case "cast":
            return b.cast(args[0], dtypes.BY_NAME[rest[0]])
        case "round":
            return b.round(args[0])
        case "transpose":
            return b.transpose(args[0], _ints(attrs["perm"]))
        case "reshape":
            return b.reshape(args[0], _dims(rest[0]))
        case "broadcast":
            return b.broadcast(args[0], _dims(rest[0]))
        case "slice":
            return b.slice(args[0], _dims(attrs["starts"]), _dims(rest[0]), _ints(attrs["steps"]))
        case "pad":
            low = _dims(attrs["low"])
            high = [d - lo - s for d, lo, s in zip(_dims(rest[0]), low, args[0].shape, strict=True)]
            return b.pad(args[0], low, high, args[1])
        case "concat":
            return b.concat(args, attrs["axis"])
        case "gather":
            return b.gather(args[0], args[1], attrs["axis"])
        case "reduce":
            return b.reduce(attrs["fn"], args[0], _ints(attrs["axes"]), last=bool(attrs.get("last", False)))
    raise ProgramError(f"unknown instruction {str(op)[:40]!r}")


# --- for people -------------------------------------------------------------------------------------------------------

_INDEX_NAMES = "ijklmnopqrstuvw"


def pretty(program: Program, name: str = "region") -> str:
    """The program as readable text, one line a value; views are shown as the index they read."""
    names = {n: f"in{i.attr('index')}" if i.op == "param" else f"v{n}" for n, i in enumerate(program.body)}
    lines = [f"program {name}"]
    lines += [f"  in{k} : {t}{_shape(s)}" for k, (t, s) in enumerate(program.params)]
    for number, instr in enumerate(program.body):
        if instr.op != "param":
            lines.append(
                f"  {names[number]}[{_indices(len(instr.shape))}] : {instr.dtype}{_shape(instr.shape)} = {_right(instr, program, names)}"
            )
    lines.append("  return " + ", ".join(names[r] for r in program.results))
    return "\n".join(lines)


def _shape(shape: Shape) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"


def _indices(rank: int) -> str:
    return ", ".join(_INDEX_NAMES[i] if i < len(_INDEX_NAMES) else f"x{i}" for i in range(rank))


def _right(instr: Instr, program: Program, names: dict[int, str]) -> str:
    args = [names[a] for a in instr.args]
    index = _indices(len(instr.shape)).split(", ") if instr.shape else []
    match instr.op:
        case "const":
            return repr(instr.attr("value"))
        case "extent":
            return str(instr.attr("size"))
        case "iota":
            return str(index[instr.attr("axis")])
        case "map":
            return f"{instr.attr('fn')}({', '.join(args)})"
        case "cast" | "round":
            return f"{instr.op}<{instr.dtype}>({args[0]})"
        case "transpose":
            perm = instr.attr("perm")
            return f"{args[0]}[{', '.join(index[perm.index(i)] for i in range(len(perm)))}]"
        case "broadcast":
            source = program.body[instr.args[0]].shape
            own = index[len(index) - len(source) :]
            return f"{args[0]}[{', '.join('0' if d == 1 else i for i, d in zip(own, source, strict=True))}]"
        case "slice":
            parts = zip(index, instr.attr("starts"), instr.attr("steps"), strict=True)
            return f"{args[0]}[{', '.join(_affine(i, start, step) for i, start, step in parts)}]"
        case "reduce":
            return f"{instr.attr('fn')}({args[0]}, axes {list(instr.attr('axes'))})"
        case "pad":
            return f"pad({args[0]}, low {_shape(instr.attr('low'))}, fill {args[1]})"
        case "concat" | "gather":
            return f"{instr.op}({', '.join(args)}, axis {instr.attr('axis')})"
    return f"{instr.op}({', '.join(args)})"


def _affine(index: str, start: Dim, step: int) -> str:
    text = index if step == 1 else f"{step}*{index}"
    return text if start == 0 else f"{text} + {start}"

"""Exact integer expressions: the dimensions of a tensor and the indices into it.

A dimension or index is a plain ``int`` whenever it is known, and an ``Expr`` otherwise: a polynomial with integer
coefficients over *atoms*. Arithmetic normalises as it goes, so two equal polynomials are equal objects by ``==`` and by
hash, and a constant result falls back to ``int``. That is what lets ``(b*S + s) // S`` become ``b``: nothing in this
file knows about kernels, only about integers, yet all index folding of the compiler happens here.

Atoms
    ``Sym``     a dimension known at run time only; at least 0.
    ``Var``     a loop index; at least 0 and below its extent.
    ``Call``    floor division, modulo, maximum or minimum that did not simplify.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Union


@dataclass(frozen=True)
class Sym:
    """A run-time dimension, at least 0."""

    name: str


@dataclass(frozen=True)
class Var:
    """A loop index in ``[0, extent)``."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Call:
    """``fn`` is one of ``//``, ``%``, ``max``, ``min``, applied to two arguments."""

    fn: str
    left: Dim
    right: Dim


Atom = Union[Sym, Var, Call]
Monomial = tuple[Atom, ...]  # a product, factors sorted; () is the constant term


@lru_cache(maxsize=1 << 16)
def _atom_key(atom: Atom) -> tuple[str, ...]:
    return (type(atom).__name__, str(_wrap(atom)))


class Expr:
    """A polynomial that is not a constant. Build one with ``sym``, ``var`` and arithmetic."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms: dict[Monomial, int] = dict(terms)
        self._hash = hash(frozenset(self.terms.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        terms = dict(self.terms)
        for mono, coef in _terms(other).items():
            terms[mono] = terms.get(mono, 0) + coef
        return _normal(terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Expr({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return (-self) + other

    def __mul__(self, other: Dim) -> Dim:
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in _terms(other).items():
                mono = m1 + m2 if not (m1 and m2) else tuple(sorted(m1 + m2, key=_atom_key))
                terms[mono] = terms.get(mono, 0) + c1 * c2
        return _normal(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return modulo(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return modulo(other, self)

    def __str__(self) -> str:
        return render(self)

    __repr__ = __str__


Dim = Union[int, Expr]
Shape = tuple[Dim, ...]


def _wrap(atom: Atom) -> Expr:
    return Expr({(atom,): 1})


def _terms(dim: Dim) -> Mapping[Monomial, int]:
    return dim.terms if isinstance(dim, Expr) else ({(): dim} if dim else {})


def _normal(terms: Mapping[Monomial, int]) -> Dim:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    if len(kept) > 1:
        for mono, coef in kept.items():
            if len(mono) == 1 and isinstance(mono[0], Call) and mono[0].fn == "%":
                whole = _recombine(kept, mono[0], coef)
                if whole is not None:
                    return whole
    return Expr(kept)


def _recombine(terms: Mapping[Monomial, int], rest: Call, coef: int) -> Dim | None:
    """``(x // m) * m + x % m`` is ``x``: undoes a reshape that was reshaped back."""
    quotient = _single_atom(floordiv(rest.left, rest.right))
    if quotient is None:
        return None
    others = {m: c for m, c in terms.items() if m != (rest,)}
    for mono, factor in _terms(rest.right).items():
        key = tuple(sorted((*mono, quotient), key=_atom_key))
        if others.pop(key, None) != coef * factor:
            return None
    return _normal(others) + coef * rest.left


def _single_atom(dim: Dim) -> Atom | None:
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        ((mono, coef),) = dim.terms.items()
        return mono[0] if len(mono) == 1 and coef == 1 else None
    return None


def sym(name: str) -> Expr:
    """The run-time dimension ``name``."""
    return _wrap(Sym(name))


def var(name: str, extent: Dim) -> Dim:
    """A loop index; an extent of 1 leaves only the constant 0."""
    return 0 if extent == 1 else _wrap(Var(name, extent))


def atoms(dim: Dim) -> set[Atom]:
    """Every atom in ``dim``, those inside calls and extents of calls included."""
    found: set[Atom] = set()
    for mono in _terms(dim):
        for atom in mono:
            found.add(atom)
            if isinstance(atom, Call):
                found |= atoms(atom.left) | atoms(atom.right)
    return found


def weight(dim: Dim) -> int:
    """Atoms in ``dim``, those inside calls included, each as often as it is written."""
    return sum(_atom_weight(atom) for mono in _terms(dim) for atom in mono)


@lru_cache(maxsize=1 << 16)
def _atom_weight(atom: Atom) -> int:
    return 1 + weight(atom.left) + weight(atom.right) if isinstance(atom, Call) else 1


def symbols(dim: Dim) -> set[str]:
    """Names of the run-time dimensions in ``dim``."""
    return {a.name for a in atoms(dim) if isinstance(a, Sym)} if isinstance(dim, Expr) else set()


def variables(dim: Dim) -> set[Var]:
    """The loop indices in ``dim``."""
    return {a for a in atoms(dim) if isinstance(a, Var)} if isinstance(dim, Expr) else set()


def coefficient(dim: Dim, index: Atom) -> Dim | None:
    """The factor of ``index`` in ``dim`` if ``dim`` is linear in it (0 if absent), else None."""
    total: Dim = 0
    for mono, coef in _terms(dim).items():
        count = mono.count(index)
        if count > 1 or any(isinstance(a, Call) and a != index and index in atoms(_wrap(a)) for a in mono):
            return None
        if count == 1:
            rest = tuple(a for a in mono if a != index)
            total = total + (_normal({rest: coef}))
    return total


# --- bounds -----------------------------------------------------------------------------------------------------------


def bounds(dim: Dim) -> tuple[Dim | None, Dim | None]:
    """Lower and upper bound (inclusive) free of loop indices; None where none is known."""
    low: Dim | None = 0
    high: Dim | None = 0
    for mono, coef in _terms(dim).items():
        lo, hi = _monomial_bounds(mono)
        if coef < 0:
            lo, hi = hi, lo
        low = None if low is None or lo is None else low + coef * lo
        high = None if high is None or hi is None else high + coef * hi
    return low, high


def _monomial_bounds(mono: Monomial) -> tuple[Dim | None, Dim | None]:
    low: Dim | None = 1
    high: Dim | None = 1
    for atom in mono:
        lo, hi = _atom_bounds(atom)
        if lo is None or not _nonneg_poly(lo):
            return None, None
        low = None if low is None else low * lo
        high = None if high is None or hi is None else high * hi
    return low, high


@lru_cache(maxsize=1 << 16)
def _atom_bounds(atom: Atom) -> tuple[Dim | None, Dim | None]:
    if isinstance(atom, Sym):
        return _wrap(atom), _wrap(atom)
    if isinstance(atom, Var):
        return 0, atom.extent - 1
    llo, lhi = bounds(atom.left)
    rlo, rhi = bounds(atom.right)
    if atom.fn == "%":
        return 0, None if rhi is None else rhi - 1
    if atom.fn == "//":
        exact = atom.left == llo and atom.left == lhi and not variables(atom.right)
        if exact and is_nonneg(atom.left):  # a symbolic quotient stands for itself
            return _wrap(atom), _wrap(atom)
        lo = 0 if llo is not None and _nonneg_poly(llo) else None
        return lo, floordiv(lhi, atom.right) if lhi is not None and not variables(atom.right) and lo == 0 else None
    if not variables(_wrap(atom)):
        known = any(b is not None and _nonneg_poly(b) for b in (llo, rlo))
        both = all(b is not None and _nonneg_poly(b) for b in (llo, rlo))
        return (_wrap(atom), _wrap(atom)) if (known if atom.fn == "max" else both) else (None, None)
    pick = emax if atom.fn == "max" else emin
    return (pick(llo, rlo) if llo is not None and rlo is not None else None), (
        pick(lhi, rhi) if lhi is not None and rhi is not None else None
    )


def _nonneg_poly(dim: Dim) -> bool:
    """Whether ``dim``, free of loop indices, is at least 0 by its coefficients alone (symbols and calls are >= 0)."""
    return all(c >= 0 and all(_atom_nonneg(a) for a in m) for m, c in _terms(dim).items())


@lru_cache(maxsize=1 << 16)
def _atom_nonneg(atom: Atom) -> bool:
    if isinstance(atom, Sym | Var):
        return True
    if atom.fn == "%":
        return True
    left, right = is_nonneg(atom.left), is_nonneg(atom.right)
    return (left or right) if atom.fn == "max" else (left and right)


def is_nonneg(dim: Dim) -> bool:
    """True if ``dim >= 0`` can be proven; False proves nothing."""
    if isinstance(dim, int):
        return dim >= 0
    if _nonneg_poly(dim):
        return True
    low, _ = bounds(dim)
    return (low is not None and _nonneg_poly(low)) or _nonneg_by_cases(dim)


MAX_CASES = 6  # maxima and minima that one proof may split on


@lru_cache(maxsize=1 << 16)
def _nonneg_by_cases(dim: Expr) -> bool:
    """A maximum is one of its arguments, and no less than either: so ``max(a, b) - a`` and ``n - min(n, 4)`` are >= 0.

    Where ``dim`` moves the same way as the call, one argument in its place is enough; else both must do. It does not where the
    extent of a loop index depends on the call: of an extent of 0 anything can be proven.
    """
    calls = [a for a in atoms(dim) if isinstance(a, Call) and a.fn in ("max", "min")]
    if not 0 < len(calls) <= MAX_CASES:
        return False
    call = max(calls, key=lambda a: (len(_atom_key(a)[1]), _atom_key(a)))  # an outermost one
    slope = coefficient(dim, call)
    in_extent = any(isinstance(v.extent, Expr) and call in atoms(v.extent) for v in variables(dim))
    helps = slope is not None and not in_extent and is_nonneg(slope if call.fn == "max" else -slope)
    cases = (_nonneg_with(dim, call, side, impossible=not helps) for side in (call.left, call.right))
    return any(cases) if helps else all(cases)


def _nonneg_with(dim: Expr, call: Call, side: Dim, *, impossible: bool) -> bool:
    """Whether ``dim`` with ``side`` for the call is at least 0; ``impossible`` where something would be divided by 0 then."""
    try:
        return is_nonneg(substitute(dim, {call: side}))
    except ZeroDivisionError:
        return impossible


def is_less(left: Dim, right: Dim) -> bool:
    """True if ``left < right`` can be proven."""
    return is_nonneg(right - left - 1)


def is_equal(left: Dim, right: Dim) -> bool:
    """True if the two are provably equal for every value of their symbols."""
    return left == right


# --- division, maximum, minimum ---------------------------------------------------------------------------------------


def _divide_monomial(mono: Monomial, coef: int, by: Monomial, divisor: int) -> tuple[Monomial, int] | None:
    if coef % divisor:
        return None
    rest = list(mono)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest), coef // divisor


def exact_quotient(dim: Dim, by: Dim) -> Dim | None:
    """``dim / by`` if the polynomial division leaves no remainder, else None."""
    if isinstance(dim, int) and isinstance(by, int):
        return dim // by if by and dim % by == 0 else None
    quotient, rest = _split(dim, by)
    return quotient if rest == 0 else None


@lru_cache(maxsize=1 << 16)
def _split(dim: Dim, by: Dim) -> tuple[Dim, Dim]:
    """``dim == quotient*by + rest`` by polynomial long division; ``rest`` takes what does not divide."""
    divisor = list(_terms(by).items())
    if not divisor:
        return 0, dim
    lead_mono, lead_coef = max(divisor, key=lambda t: (len(t[0]), [_atom_key(a) for a in t[0]]))
    quotient: Dim = 0
    rest: Dim = dim
    for _ in range(64):
        step = None
        for mono, coef in sorted(_terms(rest).items(), key=lambda t: (len(t[0]), [_atom_key(a) for a in t[0]]), reverse=True):
            divided = _divide_monomial(mono, coef, lead_mono, lead_coef)
            if divided is None and not lead_mono and abs(coef) > abs(lead_coef) and len(divisor) == 1 and not mono:
                divided = ((), coef // lead_coef)  # the constant term keeps its remainder
            if divided is not None and divided[1]:
                step = _normal({divided[0]: divided[1]})
                break
        if step is None:
            break
        quotient, rest = quotient + step, rest - step * by
    return quotient, rest


def floordiv(left: Dim, right: Dim) -> Dim:
    """Floor division; ``right`` is taken to be positive where it is symbolic. Raises ZeroDivisionError for a constant 0."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    return _divmod(left, right)[0]


def modulo(left: Dim, right: Dim) -> Dim:
    """The non-negative remainder that belongs to ``floordiv``."""
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    return _divmod(left, right)[1]


@lru_cache(maxsize=1 << 16)
def _divmod(left: Dim, right: Dim) -> tuple[Dim, Dim]:
    if right == 1:
        return left, 0
    if right == 0:
        raise ZeroDivisionError("division of an index by 0")
    if isinstance(right, int) and right < 0:
        return _wrap(Call("//", left, right)), _wrap(Call("%", left, right))
    quotient, rest = _split(left, right)
    if isinstance(right, int) and isinstance(rest, Expr):
        # bring every coefficient of the remainder below the divisor: 5*x // 4 keeps x + (x // 4)
        const = rest.terms.get((), 0)
        if const < 0 or const >= right:
            quotient, rest = quotient + const // right, rest - const + const % right
    if isinstance(rest, int):
        if isinstance(right, int):
            return quotient + rest // right, rest % right
        if 0 <= rest and is_less(rest, right):
            return quotient, rest
        if rest == 0:
            return quotient, 0
    if is_nonneg(rest) and is_less(rest, right):
        return quotient, rest
    inner = _nested_quotient(rest, right) or _common_factor(rest, right)
    if inner is not None:
        return quotient + inner[0], inner[1]
    return quotient + _wrap(Call("//", rest, right)), _wrap(Call("%", rest, right))


def _nested_quotient(rest: Dim, right: Dim) -> tuple[Dim, Dim] | None:
    """``(x // a) // b`` is ``x // (a*b)``."""
    atom = _single_atom(rest)
    if isinstance(atom, Call) and atom.fn == "//" and not (isinstance(atom.right, int) and atom.right < 0):
        return floordiv(atom.left, atom.right * right), _wrap(Call("%", rest, right))
    return None


def _common_factor(rest: Dim, right: Dim) -> tuple[Dim, Dim] | None:
    """``(g*a + b) // (g*d)`` is ``a // d`` when ``0 <= b < g``: what makes a vector of elements share one quotient."""
    if not isinstance(rest, Expr) or not isinstance(right, int):
        return None
    factors = {math.gcd(abs(c), right) for m, c in rest.terms.items() if m} - {1}
    for g in sorted(factors, reverse=True):
        whole = _normal({m: c // g for m, c in rest.terms.items() if c % g == 0 and m})
        small = _normal({m: c for m, c in rest.terms.items() if c % g or not m})
        if isinstance(small, int):
            whole, small = whole + small // g, small % g
        if whole != 0 and is_nonneg(small) and is_less(small, g):
            quotient, remainder = floordiv(whole, right // g), modulo(whole, right // g)
            return quotient, remainder * g + small
    return None


def emax(left: Dim, right: Dim) -> Dim:
    """The larger of the two."""
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    if is_nonneg(left - right):
        return left
    if is_nonneg(right - left):
        return right
    first, second = sorted((left, right), key=str)
    return _wrap(Call("max", first, second))


def emin(left: Dim, right: Dim) -> Dim:
    """The smaller of the two."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    if is_nonneg(left - right):
        return right
    if is_nonneg(right - left):
        return left
    first, second = sorted((left, right), key=str)
    return _wrap(Call("min", first, second))


def ceildiv(left: Dim, right: Dim) -> Dim:
    """Division rounded up."""
    return floordiv(left + right - 1, right)


APPLY: dict[str, Callable[[Dim, Dim], Dim]] = {"//": floordiv, "%": modulo, "max": emax, "min": emin}


# --- substitution, evaluation, text -----------------------------------------------------------------------------------


def substitute(dim: Dim, table: Mapping[Atom, Dim]) -> Dim:
    """``dim`` with atoms replaced; extents of loop indices left in place are rewritten too."""
    if isinstance(dim, int) or not table:
        return dim
    total: Dim = 0
    for mono, coef in dim.terms.items():
        product: Dim = coef
        for atom in mono:
            product = product * _substitute_atom(atom, table)
        total = total + product
    return total


def _substitute_atom(atom: Atom, table: Mapping[Atom, Dim]) -> Dim:
    if atom in table:
        return table[atom]
    if isinstance(atom, Call):
        return APPLY[atom.fn](substitute(atom.left, table), substitute(atom.right, table))
    if isinstance(atom, Var):
        return var(atom.name, substitute(atom.extent, table))
    return _wrap(atom)


def evaluate(dim: Dim, env: Mapping[str, int]) -> int:
    """The value for symbols and loop indices named in ``env``. Raises KeyError for one that is missing."""
    if isinstance(dim, int):
        return dim
    total = 0
    for mono, coef in dim.terms.items():
        product = coef
        for atom in mono:
            product *= _evaluate_atom(atom, env)
        total += product
    return total


def _evaluate_atom(atom: Atom, env: Mapping[str, int]) -> int:
    if isinstance(atom, Call):
        value = APPLY[atom.fn](evaluate(atom.left, env), evaluate(atom.right, env))
        assert isinstance(value, int)
        return value
    return env[atom.name]


def render(dim: Dim) -> str:
    """Text that ``parse`` reads back; also valid Python."""
    if isinstance(dim, int):
        return str(dim)
    parts: list[str] = []
    for mono, coef in sorted(dim.terms.items(), key=lambda t: (not t[0], [_sort_text(a) for a in t[0]])):
        factors = [_render_atom(a) for a in mono]
        if not factors or abs(coef) != 1:
            factors.insert(0, str(abs(coef)))
        text = "*".join(factors)
        sign = "-" if coef < 0 else "+"
        parts.append(f" {sign} {text}" if parts else (f"-{text}" if coef < 0 else text))
    return "".join(parts)


def _sort_text(atom: Atom) -> str:
    return _render_atom(atom)


def _render_atom(atom: Atom) -> str:
    if isinstance(atom, Call):
        if atom.fn in ("max", "min"):
            return f"{atom.fn}({render(atom.left)}, {render(atom.right)})"
        return f"(({render(atom.left)}) {atom.fn} ({render(atom.right)}))"
    return atom.name


def parse(text: str | int, *, limit: int = 4096) -> Dim:
    """Read what ``render`` wrote. Only integers, names, ``+ - * // %``, ``max`` and ``min``; raises ValueError otherwise."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if not isinstance(text, str) or len(text) > limit:
        raise ValueError(f"not a dimension: {str(text)[:60]!r}")
    try:
        return _parse_node(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise ValueError(f"not a dimension: {text[:60]!r}") from error


MAX_PRODUCT = 2048  # terms; ``render`` writes sums of products, none of which is nearly as long


def _times(a: Dim, b: Dim) -> Dim:
    """Hostile text could ask for exponentially many terms: ``(a+1)*(b+1)*...``."""
    if len(_terms(a)) * len(_terms(b)) > MAX_PRODUCT:
        raise ValueError("not a dimension: a product of too many terms")
    return a * b


_BINARY: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: _times,
    ast.FloorDiv: floordiv,
    ast.Mod: modulo,
}


def _parse_node(node: ast.expr) -> Dim:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sym(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_parse_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_parse_node(node.left), _parse_node(node.right))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("max", "min")
        and len(node.args) == 2
        and not node.keywords
    ):
        return APPLY[node.func.id](_parse_node(node.args[0]), _parse_node(node.args[1]))
    raise ValueError(f"not a dimension: {ast.unparse(node)[:60]!r}")


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions, 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total

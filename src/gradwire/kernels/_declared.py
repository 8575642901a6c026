"""Consequences of a reference's annotated signature: the operator's schema, the check of its arguments, the call.

Invariants:
    All of them have the order of the signature. A kernel is called with what ``arguments`` says of each parameter, then
    with the tables that it needs besides, then with the symbols in the order of their definition, ``n`` as the last,
    then with the threads:

        kernels.twobit_add_decoded(codes, stride, out, threshold, scale, steps, steps_stride, ranks, n, threads)

Why:
    The functions are written as source and compiled, as ``dataclasses`` does it, because a loop over descriptions would
    cost more than the rest of a call.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Flats, Names, Rows, Where, refuse, refuse_flat, refuse_none, refuse_rows

__all__ = ["Declaration"]

_SCALARS = {int: "int", float: "float", bool: "bool", str: "str"}
_SEVERAL = Sequence[Tensor]

# How the size of a tensor is asked for, and the name of what ``kernels.read`` read of it.
_ELEMENTS, _RANKS, _LENGTH = (
    "{0}.numel()",
    "{0}.size(0) if {0}.dim() == 2 else 0",
    "{0}.size(1) if {0}.dim() == 2 else 0",
)
_READ = {_ELEMENTS: "{0}_size", _RANKS: "{0}_ranks", _LENGTH: "{0}_length"}


class Declaration:
    """The content of the annotations of one operation.

    Args:
        reference: plain-torch version of the operation; every tensor of it is annotated with ``Flat``, ``Flats`` or
            ``Rows``.
        check: called in each call, too, with the operation's name and with those of its arguments and symbols that it
            names.
        tables: expressions for tensors of which a kernel is given the addresses, too.

    Attributes:
        types: the type of each parameter, without what is said of it.
        marks: marks of those parameters whose annotation has one.
        optional: the tensors that may be None.
        shaped: the names, and the places among the parameters, of the tensors that may have any shape.

    Raises:
        TypeError: an annotation from which nothing follows.
    """

    def __init__(
        self, reference: Callable[..., None], check: Callable[..., None] | None = None, tables: tuple[str, ...] = ()
    ) -> None:
        self.name = reference.__name__
        self._parameters = inspect.signature(reference).parameters
        self._check = check
        self._tables = tables
        self._known: dict[str, Any] = {
            **vars(builtins),
            **reference.__globals__,
            "refuse": refuse,
            "refuse_flat": refuse_flat,
            "refuse_none": refuse_none,
            "refuse_rows": refuse_rows,
            "get_num_threads": torch.get_num_threads,
            "extra_check": check,
        }
        self.marks: dict[str, Any] = {}
        self.types: dict[str, Any] = {}
        self.optional: set[str] = set()
        for name, hint in get_type_hints(reference, include_extras=True).items():
            if name != "return":
                self._read(name, hint)
        self._symbols = dict(self._find_symbols())
        shaped = {name for name, mark in self._tensors() if isinstance(mark, Flat) and mark.shaped}
        self.shaped = frozenset(shaped | {self.parameters.index(name) for name in shaped})

    def _read(self, name: str, hint: Any) -> None:
        marks: tuple[Any, ...] = ()
        if get_origin(hint) is Annotated:
            hint, *rest = get_args(hint)
            marks = tuple(rest)
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        kinds = [kind for kind in parts if kind is not type(None)]
        if len(kinds) != 1 or (kinds[0] not in (Tensor, _SEVERAL) and kinds[0] not in _SCALARS) or len(marks) > 1:
            raise TypeError(f"{self.name}.{name} is annotated with {hint}, from which no operation follows")
        form = Flats if kinds[0] == _SEVERAL else Flat | Rows
        if kinds[0] not in _SCALARS and not (marks and isinstance(marks[0], form)):
            raise TypeError(f"{self.name}.{name} is a tensor of which nothing is said")
        self.types[name] = kinds[0]
        if marks:
            self.marks[name] = marks[0]
        if type(None) in parts:
            self.optional.add(name)

    def _tensors(self) -> Iterator[tuple[str, Flat | Rows]]:
        for name, mark in self.marks.items():
            if isinstance(mark, Flat | Rows):
                yield name, mark

    def _find_symbols(self) -> Iterator[tuple[str, str]]:
        """List (symbol, expression) of the sizes that only a tensor can tell."""
        found: set[str] = set()
        flat = {mark.size for name, mark in self._tensors() if isinstance(mark, Flat) and name not in self.optional}
        for name, mark in self._tensors():
            size = mark.size if isinstance(mark, Flat) else mark.length
            if name in self.optional:
                continue
            if isinstance(mark, Rows) and "ranks" not in found:
                found.add("ranks")
                yield "ranks", _RANKS.format(name)
            rows = isinstance(mark, Rows)
            if rows and size in flat:
                continue
            if size and size.isidentifier() and size not in {*found, *self._known, *self._parameters}:
                found.add(size)
                yield size, (_LENGTH if rows else _ELEMENTS).format(name)

    @property
    def schema(self) -> str:
        """The schema as ``torch.library`` reads it."""
        return f"{self.name}({', '.join(self._schema_parts())}) -> ()"

    @property
    def schema_of_many(self) -> str:
        """The schema of the operation on many pieces, with their table in front."""
        return f"{self.name}_each({', '.join(['Tensor table', *self._schema_parts()])}) -> ()"

    def _schema_parts(self) -> list[str]:
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        parts = []
        for name, parameter in self._parameters.items():
            if self.types[name] is Tensor:
                written = f"({next(letters)}!)" if self.marks[name].written else ""
                kind = f"Tensor{written}{'?' if name in self.optional else ''}"
            elif self.types[name] == _SEVERAL:
                kind = "Tensor[]"
            else:
                kind = _SCALARS[self.types[name]]
            default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
            parts.append(f"{kind} {name}{default}")
        return parts

    def checked(self, call: Callable[..., None]) -> Callable[..., None]:
        """Make a function that checks the arguments and calls ``call`` with them."""
        return self._function(self._guarded([*self._checks(), f"call({', '.join(self._parameters)})"]), call=call)

    def kernel(self, kernels: Any, threads: bool) -> Callable[..., None]:
        """Make a function that checks the arguments and calls the kernel of this name.

        Args:
            kernels: object that has the kernel as an attribute.
            threads: true: the kernel takes the number of threads as its last argument.
        """
        return self._function(self._guarded(self._kernel_lines(threads)), kernels=kernels)

    def _kernel_lines(self, threads: bool) -> list[str]:
        given = [*self._given_to_kernel(), *(["get_num_threads()"] if threads else [])]
        return [*self._checks(), f"kernels.{self.name}({', '.join(given)})"]

    def _given_to_kernel(self) -> list[str]:
        """List what the kernel is given of one tensor, without the threads."""
        return self._completed(argument for name in self._parameters for argument in self._given(name))

    def _completed(self, arguments: Iterable[str]) -> list[str]:
        """Append what a kernel is given after the parameters, without the threads."""
        given = [*arguments, *(f"{self._expression(table)}.data_ptr()" for table in self._tables)]
        symbols = sorted(self._symbols, key=lambda symbol: symbol == "n")
        return [*given, *symbols, *(["n"] if "n" in self._parameters else [])]

    def direct(self, kernels: Any, threads: bool) -> Callable[..., None] | None:
        """Make a method that calls the kernel of this name where torch's dispatcher would do so and nothing else.

        That is so for plain tensors on the CPU which no gradient is asked of, where nobody sees the operators that are
        called. ``kernels.read`` says so and reads all tensors at once, as csrc/tensors.h describes it: to ask torch for
        each of their properties takes longer than the kernel of a small tensor. Everything else is left to
        the method ``call``, also what is wrong: there the error names it.

        Args:
            kernels: object that has the kernel as an attribute, as in ``kernel``.
            threads: true where the kernel takes a number of threads, as in ``kernel``.

        Returns:
            None if a list of tensors is given to the operation.
        """
        tensors = dict(self._tensors())
        if len(tensors) < sum(kind not in _SCALARS for kind in self.types.values()):
            return None
        form = b"".join(self._form(name, mark, kernels.dtype_code) for name, mark in tensors.items())
        numbers = [number for name, mark in tensors.items() for number in self._numbers(name, mark)]
        given = self._completed(argument for name in self._parameters for argument in self._given_of_numbers(name))
        leave = f"return self.call({', '.join(self._parameters)})"
        read = {code.format(name): number.format(name) for code, number in _READ.items() for name in tensors}
        lines = [
            f"if self.is_compiling(): {leave}",
            f"numbers = read({self._constant(form)}, {', '.join(tensors)})",
            f"if numbers is None: {leave}",
            f"{', '.join(numbers)}, = numbers",
            *(f"{symbol} = {read[expression]}" for symbol, expression in self._symbols.items()),
            *(f"if not ({condition}): {leave}" for condition in self._conditions()),
            *self._extra_check(),
            *(f"if {wrong}: {leave}" for name, mark in tensors.items() for wrong in self._wrong_sizes(name, mark)),
            f"kernels.{self.name}({', '.join([*given, *(['get_num_threads()'] if threads else [])])})",
        ]
        return self._function(lines, first="self", kernels=kernels, read=kernels.read)

    def _form(self, name: str, mark: Flat | Rows, code: Callable[[Tensor], bytes]) -> bytes:
        """Say to ``kernels.read`` what a tensor must be."""
        dtypes = mark.dtype if isinstance(mark.dtype, tuple) else (mark.dtype,)
        letter = b"r" if isinstance(mark, Rows) else b"s" if mark.shaped else b"f"
        codes = b"".join(code(torch.empty(0, dtype=dtype, device="cpu")) for dtype in dtypes)
        return (letter.upper() if name in self.optional else letter) + bytes([len(dtypes)]) + codes

    @staticmethod
    def _numbers(name: str, mark: Flat | Rows) -> list[str]:
        """Name the numbers that ``kernels.read`` reads of a tensor, in their order."""
        kinds = ("at", "ranks", "length", "stride") if isinstance(mark, Rows) else ("at", "size")
        return [f"{name}_{kind}" for kind in (*kinds, *(("type",) if isinstance(mark.dtype, tuple) else ()))]

    def _given_of_numbers(self, name: str) -> list[str]:
        """List what a kernel is given of a parameter whose numbers were read."""
        mark = self.marks.get(name)
        if not isinstance(mark, Flat | Rows):
            return list(self._given(name))
        sizes = {f"{name}_{kind}" for kind in ("size", "ranks", "length")}
        return [number for number in self._numbers(name, mark) if number not in sizes]

    def _wrong_sizes(self, name: str, mark: Flat | Rows) -> Iterator[str]:
        """Yield conditions under which a tensor, whose numbers were read, has not the size that it must have."""
        some = f"{name} is not None and " if name in self.optional else ""
        if isinstance(mark, Rows):
            yield f"{some}({name}_ranks != ranks or {name}_length != {self._expression(mark.length)})"
        elif mark.size is not None and self._symbols.get(mark.size) != _ELEMENTS.format(name):
            yield f"{some}{name}_size != {self._expression(mark.size)}"

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters, in order."""
        return tuple(self._parameters)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The values of parameters that are not given."""
        return {name: p.default for name, p in self._parameters.items() if p.default is not p.empty}

    @cached_property
    def neutral(self) -> dict[str, Any]:
        """The neutral value of each number for calls in which every piece has a number of its own."""
        return {name: kind() for name, kind in self.types.items() if kind in (int, float, bool)}

    @cached_property
    def decisive(self) -> frozenset[str]:
        """The numbers and words that determine the form of a table: sizes, and checks that need a tensor."""
        scalars = {name for name, kind in self.types.items() if kind in _SCALARS}
        written = [*self._tables, *self._symbols.values()]
        for name, mark in self.marks.items():
            if isinstance(mark, Flat | Rows):
                written.append((mark.size if isinstance(mark, Flat) else mark.length) or "0")
            elif isinstance(mark, Where) and not self._of_numbers(mark):
                written.append(mark.condition)
            elif isinstance(mark, Names):
                written.append(name)
        named = set(inspect.signature(self._check).parameters) if self._check is not None else set()
        for expression in written:
            named |= {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}
        return frozenset(named & scalars)

    def _of_numbers(self, mark: Where) -> bool:
        """Return whether a condition concerns only the numbers of a call."""
        names = {node.id for node in ast.walk(ast.parse(mark.condition)) if isinstance(node, ast.Name)}
        return all(self.types.get(name) in (int, float, bool) for name in names if name not in self._known)

    def row(self) -> Callable[..., tuple[int, ...]]:
        """Make a function that checks the arguments of one piece and returns the kernel's arguments, without the
        threads.
        """
        return self._function(self._guarded([*self._checks(), f"return ({', '.join(self._given_to_kernel())},)"]))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The parameter to which each number of a row belongs; "" for tables and symbols, which come last."""
        owned = [name for name in self._parameters for _ in self._given(name)]
        rest = len(self._tables) + len(self._symbols)
        return (*owned, *[""] * rest, *(["n"] if "n" in self._parameters else []))

    def kernel_of_many(self, kernels: Any, threads: bool) -> Callable[..., None] | None:
        """Make a function of a table and the arguments that all rows share, which calls the kernel for many pieces."""
        if getattr(kernels, f"{self.name}_each", None) is None:
            return None
        given = [argument for name in self._parameters for argument in self._given(name)]
        given += ["0"] * (len(self._tables) + len(self._symbols))
        given += [*(["n"] if "n" in self._parameters else []), *(["1"] if threads else [])]
        call = f"kernels.{self.name}_each(each_row.data_ptr(), each_row.size(0), get_num_threads(), {', '.join(given)})"
        return self._function([call], first="each_row", kernels=kernels)

    def number_checks(self) -> dict[str, Callable[..., None]]:
        """Make a check for each number with a condition on numbers alone, a function of all arguments."""
        return {
            name: self._function([f"if not ({mark.condition}): refuse({self._label(name)}, f{mark.allowed!r}, {name})"])
            for name, mark in self.marks.items()
            if isinstance(mark, Where) and self._of_numbers(mark)
        }

    def _given(self, name: str) -> Iterator[str]:
        mark = self.marks.get(name)
        if isinstance(mark, Names):
            yield f"{mark.known!r}.index({name})"
        elif isinstance(mark, Flats):
            yield f"[each.data_ptr() for each in {name}]"
            if mark.sizes:
                yield f"[each.numel() for each in {name}]"
        elif not isinstance(mark, Flat | Rows):
            if name != "n":
                yield name
        else:
            some = f"0 if {name} is None else " if name in self.optional else ""
            yield f"{some}{name}.data_ptr()"
            if isinstance(mark, Rows):
                yield f"{some}{name}.stride(0) * {name}.element_size()"
            if isinstance(mark.dtype, tuple):
                yield f"{self._constant(mark.dtype)}.index({name}.dtype)"

    def _checks(self) -> Iterator[str]:
        yield from (f"{symbol} = {expression}" for symbol, expression in self._symbols.items())
        for name, mark in self.marks.items():
            if isinstance(mark, Where):
                yield f"if not ({mark.condition}): refuse({self._label(name)}, f{mark.allowed!r}, {name})"
            elif isinstance(mark, Names):
                allowed = " or ".join(map(repr, mark.known))
                yield f"if {name} not in {mark.known!r}: refuse({self._label(name)}, {allowed!r}, {name})"
        yield from self._extra_check()
        tensors = dict(self._tensors())
        like = next((name for name, mark in tensors.items() if isinstance(mark, Flat) and mark.size == "n"), None)
        like = like or next(iter(tensors))
        for name in sorted(tensors, key=lambda each: each != like):
            yield self._tensor_check(name, tensors[name], like)
        for name, mark in self.marks.items():
            if isinstance(mark, Flats):
                one = self._tensor_check("each", Flat(mark.dtype), like, self._label(name))
                yield f"for each in {name}:\n        {one}"

    def _conditions(self) -> Iterator[str]:
        """Yield what must be true of the numbers and words."""
        for name, mark in self.marks.items():
            if isinstance(mark, Where):
                yield mark.condition
            elif isinstance(mark, Names):
                yield f"{name} in {mark.known!r}"

    def _extra_check(self) -> Iterator[str]:
        if self._check is not None:
            named = list(inspect.signature(self._check).parameters)[1:]
            yield f"extra_check({self.name!r}, {', '.join(named)})"

    def _guarded(self, lines: list[str]) -> list[str]:
        """Yield lines that name a tensor that is None when they fail; they cost other calls nothing."""
        needed = [f"{self._label(name)}: {name}" for name, _ in self._tensors() if name not in self.optional]
        body = [f"    {line}".replace("\n", "\n    ") for line in lines]
        return ["try:", *body, "except AttributeError:", f"    refuse_none({{{', '.join(needed)}}})", "    raise"]

    def _tensor_check(self, name: str, mark: Flat | Rows, like: str, label: str = "") -> str:
        label = label or self._label(name)
        dtypes = mark.dtype if isinstance(mark.dtype, tuple) else (mark.dtype,)
        listed = self._constant(dtypes)
        one = f"{name}.dtype is not {self._constant(mark.dtype)}"
        wrong = [f"{name}.dtype not in {listed}" if isinstance(mark.dtype, tuple) else one]
        if name != like:
            wrong.append(f"{name}.device != {like}.device")
        if isinstance(mark, Flat):
            wrong += [f"{name}.dim() != 1", f"not {name}.is_contiguous()"]
            if mark.size is not None and self._symbols.get(mark.size) != _ELEMENTS.format(name):
                wrong.append(f"{name}.numel() != {self._expression(mark.size)}")
            free = mark.size is None or (mark.size in self._symbols and mark.size != "n")
            error = f"refuse_flat({label}, {name}, {listed}, {None if free else mark.size}, {like})"
        else:
            length = self._expression(mark.length)
            wrong += [
                f"{name}.dim() != 2",
                f"{name}.size(0) != ranks",
                f"{name}.size(1) != {length}",
                f"({name}.size(1) > 1 and {name}.stride(1) != 1)",
            ]
            error = f"refuse_rows({label}, {name}, {listed}, ranks, {length}, {like})"
        some = f"{name} is not None and " if name in self.optional else ""
        return f"if {some}({' or '.join(wrong)}): {error}"

    def _label(self, name: str) -> str:
        return repr(f"{self.name}.{name}")

    def _expression(self, size: str) -> str:
        unknown = {node.id for node in ast.walk(ast.parse(size)) if isinstance(node, ast.Name)} - {
            *self._symbols,
            *self._parameters,
            *self._known,
        }
        if unknown:
            raise TypeError(f"{self.name}: nothing defines {', '.join(sorted(unknown))} in {size!r}")
        return f"({size})"

    def _constant(self, value: Any) -> str:
        """Name a value in the compiled code."""
        name = f"_{len(self._known)}"
        self._known[name] = value
        return name

    def _function(self, lines: list[str], first: str = "", **names: Any) -> Callable[..., Any]:
        parameters = [first] if first else []
        parameters += [
            name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
            for name, parameter in self._parameters.items()
        ]
        source = "\n    ".join([f"def {self.name}({', '.join(parameters)}):", *lines])
        scope = {**self._known, **names}
        exec(compile(source, f"<gradwire operation {self.name}>", "exec"), scope)
        function: Callable[..., Any] = scope[self.name]
        return function

"""``python -m tools.shape`` prints what a reader of the house must carry, in seconds.

Lines, statements, docstrings and comments by room (a folder or module of a package); exported names; floors of imports;
fields, methods and outside assignments of the largest classes; and, traced on two local ranks, the Python calls and
files of a steady DDP step, of an FSDP2 reduce-scatter, of a push with its pull, and of ``compress_ddp``.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]

PACKAGES = [folder for folder in (ROOT / "src/gradwire", ROOT / "lab/src/gradwire_lab") if folder.is_dir()]

CLASSES = (
    "Exchange",
    "ReduceScatter",
    "Carrier",
    "WeightGather",
    "Sender",
    "AutoController",
    "Compressor",
    "MultiRound",
    "Memory",
)
"""Classes of which the fields, the methods and the assignments from other files are counted."""

ELEMENTS = 1 << 14
"""Elements of the one parameter that the traced steps train."""


@dataclass
class Module:
    """One file.

    Attributes:
        name: its dotted name.
        room: the folder or module of the package that it belongs to.
    """

    path: Path
    name: str
    room: str
    text: str
    tree: ast.Module
    lines: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path, package: Path) -> Module:
        """Read a file of a package."""
        parts = path.relative_to(package).with_suffix("").parts
        inside = parts[:-1] if parts[-1] == "__init__" else parts
        text = path.read_text(encoding="utf-8")
        found = cls(
            path, ".".join((package.name, *inside)), ".".join((package.name, *inside[:1])), text, ast.parse(text)
        )
        found.count()
        return found

    def count(self) -> None:
        """Count the file's lines by what they hold."""
        total = self.text.count("\n")
        described = sum(each.end_lineno - each.lineno + 1 for each in docstrings(self.tree) if each.end_lineno)
        tokens = list(tokenize.generate_tokens(io.StringIO(self.text).readline))
        comments = sum(token.type == tokenize.COMMENT for token in tokens)
        alone = sum(token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip() for token in tokens)
        blank = sum(not line.strip() for line in self.text.splitlines())
        self.lines = Counter(
            files=1,
            lines=total,
            docstrings=described,
            comments=comments,
            code=total - described - alone - blank + blank_inside(self.text, self.tree),
            statements=sum(isinstance(node, ast.stmt) for node in ast.walk(self.tree)),
            functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(self.tree)),
            exported=len(exported(self.tree)),
        )


def docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    """All strings that stand alone: docstrings, and the descriptions below a field or constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def blank_inside(text: str, tree: ast.Module) -> int:
    """Blank lines of docstrings, which count as those of docstrings."""
    rows = text.splitlines()
    return sum(not row.strip() for each in docstrings(tree) for row in rows[each.lineno - 1 : each.end_lineno])


def exported(tree: ast.Module) -> list[str]:
    """The names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def modules() -> list[Module]:
    """Read all modules of the packages."""
    return [Module.read(path, package) for package in PACKAGES for path in sorted(package.rglob("*.py"))]


def imports(module: Module, known: set[str]) -> set[str]:
    """The modules that a module imports when it is loaded or later."""
    found = set()
    for node in running(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(
                each if (each := f"{node.module}.{alias.name}") in known else node.module for alias in node.names
            )
    return found & known - {module.name}


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
            yield child
            yield from running(child)


def floors(edges: dict[str, set[str]]) -> int:
    """The longest chain of imports between rooms; rooms that import each other in a circle are one."""
    reach = {name: reachable(name, edges) for name in edges}
    group = {
        name: min(each for each in edges if each == name or (name in reach[each] and each in reach[name]))
        for name in edges
    }
    between: dict[str, set[str]] = {each: set() for each in group.values()}
    for name, others in edges.items():
        between[group[name]] |= {group[each] for each in others} - {group[name]}
    height: dict[str, int] = {}

    def climb(name: str) -> int:
        if name not in height:
            height[name] = 1 + max(map(climb, between[name]), default=0)
        return height[name]

    return max(map(climb, between))


def reachable(name: str, edges: dict[str, set[str]]) -> set[str]:
    """All that a room imports, and what that imports."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        fresh = edges[ahead.pop()] - found
        found |= fresh
        ahead += fresh
    return found


@dataclass
class Held:
    """A class and what it holds.

    Attributes:
        lines: lines of its body.
        fields: names that it or its instances have.
        outside: assignments of one of these names, on anything but ``self``, in other files.
    """

    name: str
    file: Path
    lines: int
    fields: set[str]
    methods: int
    outside: list[str]


def classes(read: Iterable[Module]) -> list[Held]:
    """Look at the classes named in ``CLASSES``."""
    everywhere = [(module, name, line) for module in read for name, line in assigned(module.tree) if unusual(name)]
    found = []
    for module in read:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and node.name in CLASSES:
                own = set(fields(node))
                outside = [
                    f"{shown(other.path)}:{line}"
                    for other, name, line in everywhere
                    if other is not module and name in own
                ]
                methods = sum(isinstance(each, ast.FunctionDef) for each in node.body)
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found.append(Held(node.name, module.path, lines, own, methods, outside))
    return sorted(found, key=lambda held: CLASSES.index(held.name))


def shown(path: Path) -> Path:
    """The path below the repository's root."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def unusual(name: str) -> bool:
    """Return whether a name is unlikely to be the field of some other class as well."""
    return name not in ("name", "step", "device", "group", "state", "data", "parts", "module", "grad")


def fields(node: ast.ClassDef) -> Iterator[str]:
    """The names that the body of a class declares, and that its methods assign on ``self``."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id
        elif isinstance(each, ast.Assign):
            yield from (target.id for target in each.targets if isinstance(target, ast.Name))
    for target in targets(node):
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            yield target.attr


def assigned(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Name and line of each field that is assigned on anything but ``self``."""
    for target in targets(tree):
        if isinstance(target, ast.Attribute) and not (isinstance(target.value, ast.Name) and target.value.id == "self"):
            yield target.attr, target.lineno


def targets(tree: ast.AST) -> Iterator[ast.expr]:
    """All that is assigned, tuples taken apart."""
    for node in ast.walk(tree):
        whole = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            for each in whole:
                yield from each.elts if isinstance(each, ast.Tuple) else [each]  # type: ignore[misc]


class Trace:
    """Counts the Python calls of all threads, in files of the packages.

    Threads are watched from their start, so ``watch`` comes before those that a training starts.
    """

    def __init__(self) -> None:
        self.calls = self.changes = 0
        self.files: set[str] = set()
        self._last: dict[int, str] = {}
        self._counts = False

    def watch(self) -> None:
        """Watch this thread, and those that start from now on."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)

    def end(self) -> None:
        """Watch nothing any more."""
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)

    def count(self, function: Callable[[], object]) -> None:
        """Count the calls that a function makes."""
        self._counts = True
        function()
        self._counts = False

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if self._counts and event == "call" and "/gradwire" in file:
            self.calls += 1
            self.files.add(file)
            thread = threading.get_ident()
            self.changes += self._last.get(thread, file) != file
            self._last[thread] = file

    def __str__(self) -> str:
        return f"{self.calls} calls in {len(self.files)} files, {self.changes} changes of file"


def traced(rank: int, port: int, case: str, results: Any) -> None:
    """Run a case as one of two ranks; rank 0 reports what it counted."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
    trace = Trace()
    trace.watch()
    if rank == 0 or case != "push with pull":
        STEPS[case](trace)
    if rank == 0:
        results.put(str(trace))
    dist.barrier()
    dist.destroy_process_group()


def ddp(trace: Trace) -> None:
    """A steady step of DDP with 2 bits and one bucket."""
    import gradwire

    model, step = wrapped()
    gradwire.compress_ddp(model, "twobit", threshold=0.01)
    steady(step, trace)


def installed(trace: Trace) -> None:
    """A call of ``compress_ddp``, after one that has imported what it needs."""
    import gradwire

    gradwire.compress_ddp(wrapped()[0], "twobit", threshold=0.01)
    model, _step = wrapped()
    trace.count(lambda: gradwire.compress_ddp(model, "twobit", threshold=0.01))


def wrapped() -> tuple[Any, Callable[[], None]]:
    """A model under DDP, and its step."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(ELEMENTS, 1, bias=False))
    data = torch.ones(1, ELEMENTS)
    return model, lambda: model(data).sum().backward()


def fsdp(trace: Trace) -> None:
    """A steady backward pass of FSDP2 with one module, whose gradient is reduced and scattered."""
    import torch
    from torch.distributed.fsdp import fully_shard

    import gradwire

    model = torch.nn.Linear(ELEMENTS, 2, bias=False)
    fully_shard(model)
    gradwire.compress_fsdp(model, "twobit", threshold=0.01)
    data = torch.ones(1, ELEMENTS)
    steady(lambda: model(data).sum().backward(), trace)


def steady(step: Callable[[], None], trace: Trace) -> None:
    """Count the calls of the fifth step."""
    for _ in range(4):
        step()
    trace.count(step)


def pushed(trace: Trace) -> None:
    """A push and a pull of one worker, with one server."""
    import torch

    from gradwire.kvstore.launch.processes import start_server
    from gradwire.kvstore.launch.remote import LocalMachine
    from gradwire.kvstore.protocol.environment import WorkerPlace
    from gradwire.kvstore.worker.store import DistStore

    server, endpoint = start_server(["--workers", "1"], LocalMachine())
    try:
        kv, value = DistStore("dist_sync", WorkerPlace((endpoint,), 0, 1)), torch.ones(ELEMENTS)
        kv.init("w", value)

        def step() -> None:
            kv.push("w", value)
            kv.pull("w", value)

        steady(step, trace)
        kv.close()
    finally:
        server.terminate()
        server.wait(20)


STEPS = {"DDP step": ddp, "FSDP2 reduce-scatter": fsdp, "push with pull": pushed, "compress_ddp": installed}
"""Cases to trace, by their names."""


def trace_all() -> Iterator[tuple[str, str]]:
    """Trace each case on two local ranks, in processes of their own."""
    import torch.multiprocessing as processes

    results = processes.get_context("spawn").SimpleQueue()
    for case in STEPS:
        processes.spawn(traced, (free_port(), case, results), nprocs=2)
        yield case, results.get()


def free_port() -> int:
    """A port that nobody listens at."""
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-trace", action="store_true", help="leave out what must be run")
    parser.add_argument("--outside", action="store_true", help="list the assignments from other files")
    options = parser.parse_args()
    read = modules()
    known = {module.name for module in read}
    columns = ("files", "lines", "code", "docstrings", "comments", "statements", "functions", "exported")
    print(f"{'':32}" + "".join(f"{name:>12}" for name in columns))
    for package in (folder.name for folder in PACKAGES):
        own = [module for module in read if module.room.split(".")[0] == package]
        rooms = sorted({module.room for module in own})
        shares = {room: [module for module in own if module.room == room] for room in rooms}
        for name, inside in (shares | {f"{package} in all": own}).items():
            total: Counter[str] = sum((module.lines for module in inside), Counter())
            print(f"{name:32}" + "".join(f"{total[column]:12,}" for column in columns))
        edges: dict[str, set[str]] = {room: set() for room in rooms}
        where = {module.name: module.room for module in own}
        for module in own:
            edges[module.room] |= {where[name] for name in imports(module, known) if name in where} - {module.room}
        print(f"{package}: {len(rooms)} rooms on {floors(edges)} floors of imports\n")
    for held in classes(read):
        print(
            f"{held.name} ({shown(held.file)}): {held.lines} lines, {len(held.fields)} fields, "
            f"{held.methods} methods, assigned at {len(held.outside)} places outside"
        )
        if options.outside:
            print("".join(f"    {place}\n" for place in held.outside), end="")
    if not options.no_trace:
        print()
        for case, text in trace_all():
            print(f"{case}: {text}", flush=True)


if __name__ == "__main__":
    main()

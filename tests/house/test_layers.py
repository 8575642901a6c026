"""Imports go one way."""

from __future__ import annotations

import ast

import pytest

from gradwire import registry
from tests.cases import together
from tests.house.source import executed, imported, modules, tree

LAYERS = (
    ("errors", "version", "_extras", "_files", "_once", "_system"),
    ("_short_traceback", "method_files", "notices"),
    ("vocabulary", "registry", "metrics", "modes"),
    ("transport",),
    ("wire", "kernels"),
    ("helpers",),
    ("compressors",),
    ("compressors.casts", "compressors.levels", "compressors.lowrank", "compressors.sparse"),
    ("compressors.ternary", "compressors.transforms", "compressors.wrappers"),
    ("compressors.signs",),
    ("memory",),
    ("contrib", "contrib.compressors"),
    ("contrib.memory",),
    ("engine.adaptive", "engine.part", "engine.rollback"),
    ("engine.dense", "engine.shards"),
    ("engine.strategies",),
    ("contrib.strategies",),
    (
        "compat",
        "engine",
        "engine.checkpoint",
        "engine.policy",
        "engine.residual_store",
        "engine.second_moment",
    ),
    ("engine.leftovers", "engine.plan"),
    ("engine.methods", "engine.step", "engine.zeros"),
    ("engine.planner", "engine.protocol"),
    ("engine.exchange", "schedules"),
    ("engine.owner_plan", "engine.settings"),
    ("auto",),
    ("frontends",),
    ("frontends.adapters",),
    ("contrib.fsdp1",),
    ("jax", "tensorflow"),
    ("optim", "kvstore._packages", "kvstore.system"),
    ("kvstore.protocol",),
    ("kvstore.local", "kvstore.server", "kvstore.worker"),
    ("kvstore.launch",),
    ("kvstore._create",),
    ("kvstore.trainer",),
    ("kvstore",),
    ("contrib.mxnet",),
    ("rounds",),
    ("",),
    ("run",),
    ("testing",),
    ("catalogue",),
    ("cli",),
    ("__main__",),
    # The laboratory, which the library never imports.
    ("lab.", "lab.folders"),
    ("lab.netlab", "lab.simulation"),
    # What a measurement is made of: the machine, numbers, arrays, and what stands beside it.
    (
        *("lab.bench", "lab.bench.buckets", "lab.bench.hooks", "lab.bench.machine", "lab.bench.operations"),
        "lab.bench.operation_examples",
        *("lab.bench.pretended", "lab.bench.reference", "lab.bench.statistics", "lab.bench.triad"),
        *("lab.bench._busy_process", "lab.bench.answers", "lab.bench.mxnet_environment", "lab.bench.neighbours"),
        *("lab.bench.peer_venv", "lab.bench.workload"),
    ),
    # Processes, and the steps that are timed.
    (
        *("lab.bench._mxnet_worker", "lab.bench._store_worker", "lab.bench.busy", "lab.bench.peer_process"),
        "lab.bench.steps",
    ),
    ("lab.bench.budget", "lab.bench.storegroup", "lab.bench.verify"),
    ("lab.bench.mxnet_group",),
    # What is measured; none of these knows another.
    (
        *("lab.bench.bandwidth", "lab.bench.codec", "lab.bench.device_times", "lab.bench.exchange", "lab.bench.goals"),
        *("lab.bench.gpu_kernels", "lab.bench.peers", "lab.bench.store_comparison", "lab.bench.store_over_link"),
    ),
    ("lab.bench.launches",),
    ("lab.experiments",),
    ("lab.advise", "lab.report"),
    ("lab.nccl",),
    ("lab.commands",),
)
"""Lowest first. A name is a module or a folder of gradwire, or one in such a folder; the empty one is
``gradwire/__init__.py``. Those of the laboratory begin with "lab."."""

VARIANTS = (
    "gradwire.compressors",
    "gradwire.memory",
    "gradwire.engine.strategies",
    "gradwire.contrib.memory",
    "gradwire.contrib.strategies",
    "gradwire.frontends",
    "gradwire.frontends.adapters",
    "gradwire.optim",
    "gradwire.optim.local",
    "gradwire.cli.commands",
    "gradwire_lab.bench.peers",
    "gradwire_lab.experiments.models",
    "gradwire_lab.experiments.data",
    "gradwire_lab.experiments.tasks",
    "gradwire_lab.report",
    "gradwire_lab.commands",
)
"""Folders of one variant in each file."""

MACHINERY = {
    *("arguments", "base", "capabilities", "decoders", "facts", "simple", "native", "ddp", "fsdp", "hierarchical"),
    *("optimizer_watch", "exchanged", "local_steps", "ownership", "setup"),
    *("attendance", "board", "closed", "meeting"),
    *("auto_threshold", "resharding", "sharded", "sparsifier", "state_units", "summary"),
    *("uncompressed", "variance_correction"),
}
"""Files that a variant may import from its own folder; files with an underscore are allowed too. Frameworks that train
with DDP or FSDP2 attach its hook."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def part(module: str) -> str:
    """The layer's name for a module: ``gradwire.engine.strategies.base`` is in ``engine.strategies``."""
    package, *parts = module.split(".")
    own = "lab." if package == "gradwire_lab" else ""
    inside = own + ".".join(parts[:2])
    return inside if inside in LEVEL else own + ".".join(parts[:1])


def test_every_module_of_the_bench_has_a_floor() -> None:
    """A module of the bench that has no floor of its own could import whatever it likes."""
    inside = {name for name in modules() if name.startswith("gradwire_lab.bench.")}
    assert {name for name in inside if part(name) == "lab.bench"} == set()


def test_every_part_of_the_package_has_one_layer() -> None:
    assert len(LEVEL) == sum(len(names) for names in LAYERS)
    assert {part(module) for module in modules()} == set(LEVEL)


@together
@pytest.mark.parametrize("module", modules())
def test_a_module_imports_from_below(module: str) -> None:
    wrong = [
        other
        for other in imported(module)
        if part(other) and part(other) != part(module) and LEVEL[part(other)] >= LEVEL[part(module)]
    ]
    assert not wrong, f"{module} imports {wrong}, which is not below it"


@pytest.mark.parametrize("folder", VARIANTS)
def test_siblings_do_not_import_each_other(folder: str) -> None:
    prefix = f"{folder}."
    siblings = [name for name in modules() if name.startswith(prefix) and "." not in name.removeprefix(prefix)]
    for module in siblings:
        others = {name.removeprefix(prefix) for name in imported(module) if name in siblings}
        wrong = [name for name in others if name not in MACHINERY and not name.startswith("_")]
        assert not wrong, f"{module} imports its sibling {wrong}"


def test_no_module_imports_itself_in_a_circle() -> None:
    """Inside a part, too, imports go one way. A package and what it offers are left out, and the class that a user
    derives from, which hands itself to what adapts it."""
    left = {"gradwire.compressors.simple"}
    below = {module: {each for each in imported(module) - left if not is_package(each)} for module in modules()}
    while free := {module for module, others in below.items() if not others & set(below)}:
        below = {module: others for module, others in below.items() if module not in free}
    assert not below


def is_package(module: str) -> bool:
    return modules()[module].name == "__init__.py"


def holder(module: str) -> str | None:
    """The package that holds the outermost private part of a module's name; None where nothing is private."""
    parts = module.split(".")
    return next((".".join(parts[:at]) for at, name in enumerate(parts) if name.startswith("_")), None)


def is_outside(module: str, package: str) -> bool:
    """The laboratory has the library's version, and may use what is private to the library as a whole."""
    inside = (package, "gradwire_lab") if package == "gradwire" else (package,)
    return not f"{module}.".startswith(tuple(f"{each}." for each in inside))


@together
@pytest.mark.parametrize("module", modules())
def test_a_private_module_stays_in_its_package(module: str) -> None:
    held = {other: holder(other) for other in imported(module)}
    wrong = [other for other, package in held.items() if package is not None and is_outside(module, package)]
    assert not wrong, f"{module} imports {wrong}: what other packages import is not private"


@pytest.mark.parametrize(
    ("module", "other", "outside"),
    [
        ("gradwire.compressors.ternary.terngrad", "gradwire.compressors.levels._rounding", True),
        ("gradwire_lab.bench.storegroup", "gradwire_lab.bench.peers._process", True),
        ("gradwire_lab.benchmark", "gradwire_lab.bench._process", True),
        ("gradwire.compressors.levels.qsgd", "gradwire.compressors.levels._rounding", False),
        ("gradwire.compressors.levels.qsgd", "gradwire.contrib.compressors._entries", True),
        ("gradwire.contrib.compressors.sparse.sidco", "gradwire.contrib.compressors._entries", False),
        ("gradwire_lab.bench", "gradwire_lab.bench._process", False),
        ("gradwire.compressors.wrappers", "gradwire._extras.signs", False),
        ("gradwire_lab.report._page", "gradwire._files", False),
        ("gradwire_lab.report._page", "gradwire.cli._folder", True),
    ],
)
def test_a_private_module_of_another_package_is_found(module: str, other: str, outside: bool) -> None:
    assert is_outside(module, holder(other) or "") == outside


DOORS = {"gradwire", "gradwire.kvstore"}
"""Packages that offer names of the second tier, and import them when they are first used."""


def test_nothing_outside_the_second_tier_imports_it() -> None:
    first = [module for module in modules() if not module.startswith(("gradwire.contrib", "gradwire_lab"))]
    imports = {module: {each for each in imported(module) if each.startswith("gradwire.contrib")} for module in first}
    assert {module: found for module, found in imports.items() if found} == {}
    named = {module for module in first if "gradwire.contrib" in modules()[module].read_text(encoding="utf-8")}
    told = {"gradwire.registry", "gradwire.kvstore.protocol.lr_scheduler", "gradwire.kvstore.protocol.updater"}
    # The server from which ranks of tests fork loads what these may need.
    assert named <= DOORS | told | {"gradwire.testing.processes"}


METHODS = {module for kind in ("compressors", "memory", "strategies") for module in registry.places(kind).values()}
CONTRACT = (
    *(
        "_once",
        "errors",
        "vocabulary",
        "modes",
        "registry",
        "helpers",
        "kernels",
        "transport",
        "engine.dense",
        "engine.part",
        "engine.shards",
        "compressors",
        "memory.base",
        "memory.facts",
    ),
    "engine.strategies.base",
    "contrib",
)
"""Modules and folders that a method of the second tier may import, as one of another package may; in ``compressors``
what several methods are made of."""


@pytest.mark.parametrize("module", sorted(METHODS - {each for each in METHODS if "contrib" not in each}))
def test_a_method_of_the_second_tier_shares_the_contract_alone(module: str) -> None:
    inside = {each.removeprefix("gradwire.") for each in imported(module) - {"gradwire"}}
    wrong = {each for each in inside if not f"{each}.".startswith(tuple(f"{allowed}." for allowed in CONTRACT))}
    wrong |= {each for each in inside if f"gradwire.{each}" in METHODS}
    assert not wrong, f"{module} imports {wrong}: no part of the contract"


def test_the_library_never_imports_its_laboratory() -> None:
    library = [module for module in modules() if not module.startswith("gradwire_lab")]
    assert {module: wrong for module in library if (wrong := imported_lab(module))} == {}
    assert imported_lab("gradwire_lab.commands.demo")


def imported_lab(module: str) -> set[str]:
    return {name for name in imported(module) if name.startswith("gradwire_lab")}


PROTOCOL = [module for module in modules() if module.startswith("gradwire.kvstore.protocol.")]

CONNECTING = ("socket", "torch.distributed", "zmq")
"""Modules that talk to other processes, which the protocol does not."""


def connections(parsed: ast.Module) -> set[str]:
    """The names of ``CONNECTING`` that a module imports, or uses as an attribute of torch."""
    used: set[str] = set()
    for node in executed(parsed):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            used |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            used.add(ast.unparse(node))
    return {name for name in CONNECTING if any(f"{each}.".startswith(f"{name}.") for each in used)}


def reached(module: str) -> dict[str, str]:
    """Each module that a module imports, itself or through others, with the way to it; the package itself is left out,
    because every import runs it."""
    ways = {module: module}
    waiting = [module]
    while waiting:
        each = waiting.pop()
        for other in sorted(imported(each) - ways.keys() - {"gradwire"}):
            ways[other] = f"{ways[each]} -> {other}"
            waiting.append(other)
    return ways


@together
@pytest.mark.parametrize("module", PROTOCOL)
def test_the_protocol_reaches_no_socket_and_no_process_group(module: str) -> None:
    wrong = {way: found for other, way in reached(module).items() if (found := connections(tree(other)))}
    assert not wrong, f"the protocol is bytes and tables, and connects to nothing: {wrong}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import zmq.asyncio", {"zmq"}),
        ("def call():\n    from socket import gethostname", {"socket"}),
        ("import torch.distributed as dist", {"torch.distributed"}),
        ("from torch import distributed", {"torch.distributed"}),
        ("import torch\nworld = torch.distributed.get_world_size()", {"torch.distributed"}),
        ("import torch\nfrom gradwire import sockets", set()),
    ],
)
def test_a_connection_is_found(text: str, found: set[str]) -> None:
    assert connections(ast.parse(text)) == found


def test_what_is_reached_through_others_is_found() -> None:
    """A worker's connection is known to need a socket, and a process group is known to need torch's."""
    assert PROTOCOL
    assert "zmq" in connections(tree("gradwire.kvstore.worker.connection"))
    through = reached("gradwire.frontends.ddp")
    assert any("torch.distributed" in connections(tree(other)) for other in through if ".transport." in other)

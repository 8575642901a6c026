"""Every private name of torch that gradwire uses, and where torch has it.

torch may take such a name away in any version. When one is gone, this test says which before a training does.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from typing import Any

import pytest
import torch

from tests.house.source import NAMES, modules, tree

ANY = "999"

FSDP2 = "torch.distributed.fsdp._fully_shard"

PLACES: dict[str, tuple[str, ...]] = {
    "torch": (
        *("_C", "_ops", "_foreach_add_", "_foreach_copy_", "_foreach_div_", "_foreach_mul_"),
        *("_foreach_norm", "_foreach_sign_", "_foreach_zero_"),
    ),
    "torch._C": (
        *("_autograd", "_current_graph_task_id", "_distributed_c10d", "_functorch", "_is_tracing"),
        *("_len_torch_dispatch_stack", "_len_torch_function_stack"),
    ),
    "torch._C._autograd": ("_profiler_enabled",),
    "torch._C._distributed_c10d": (
        *("PrefixStore", "Store", "_DEFAULT_FIRST_BUCKET_BYTES", "_compute_bucket_assignment_by_size"),
        "_create_work_from_future",
    ),
    "torch._C._distributed_c10d.ProcessGroupGloo._Options": ("_timeout",),
    "torch._dynamo.eval_frame": ("_orig_mod",),
    "torch._ops": ("OpOverload", "_schema"),
    "torch.Tensor": ("_post_accumulate_grad_hooks", "_version"),
    "torch.UntypedStorage": ("_cdata",),
    "torch.autograd.Variable": ("_execution_engine",),
    "torch.cuda": ("_sleep",),
    "torch.cuda._sanitizer": ("enable_cuda_sanitizer",),
    "torch.distributed.ProcessGroup": ("_device_types", "_get_backend", "_register_backend", "_set_default_backend"),
    "torch.distributed.device_mesh": ("_get_root_mesh",),
    "torch.distributed.distributed_c10d": (
        *("_get_default_store", "_new_process_group_helper", "_register_process_group", "_update_default_pg", "_world"),
    ),
    "torch.distributed.elastic.agent.server.local_elastic_agent": ("_start_workers",),
    f"{FSDP2}._fsdp_collectives": ("DefaultAllGather", "DefaultReduceScatter"),
    f"{FSDP2}._fsdp_common": ("FSDPMeshInfo", "TrainingState"),
    f"{FSDP2}._fsdp_param": ("_module_info", "_orig_size", "_unsharded_param"),
    f"{FSDP2}._fsdp_param_group": (
        *("_all_gather_comm", "_all_reduce_hook", "_reduce_scatter_comm"),
        *("_reduce_scatter_param_indices", "_reduce_scatter_process_group", "_training_state"),
    ),
    f"{FSDP2}._fsdp_state": ("_fsdp_param_group", "_fsdp_param_groups"),
    f"{FSDP2}._fully_shard": ("_get_fsdp_state",),
    "torch.distributed.fsdp._common_utils": ("_fsdp_flattened",),
    "torch.distributed.fsdp._flat_param": (*("_param_infos", "_shapes", "_unpadded_unsharded_size"),),
    "torch.distributed.fsdp.fully_sharded_data_parallel": ("_comm_hook", "_comm_hook_state", "_handle"),
    "torch.distributed.tensor.DTensor": ("_local_tensor",),
    "torch.nn.Module": ("_forward_pre_hooks",),
    "torch.nn.modules.batchnorm": ("_NormBase",),
    "torch.nn.parallel.distributed": (
        *("_build_params_for_reducer", "_comm_hooks", "_ddp_params_and_buffers_to_ignore"),
        *("_divide_by_initial_world_size", "_in_backward_optimizers", "_lazy_init_ran"),
        *("_module_parameters", "_use_python_reducer"),
    ),
    "torch.utils": ("_python_dispatch",),
    "torch.utils._python_dispatch": ("TorchDispatchMode",),
}
"""The names by the module or class that has them, or in whose text objects are given them."""

SOME_VERSIONS: dict[str, tuple[str, str]] = {
    "_fsdp_param_groups": ("2.12", ANY),
    "_reduce_scatter_param_indices": ("2.15", ANY),
}
"""Names that torch has from one version on and up to another, exclusively: the code does without them elsewhere."""

OF_OTHERS = {
    *("_barrier", "_ddp_comm_hook", "_describe_range", "_exit", "_get_control_flow_context", "_get_variable_index"),
    *("_get_output_dir", "_getframe", "_replace", "_save_checkpoint", "_trainable_variables"),
    *("_trainable_variables_indices", "_var_key", "_variables"),
}
"""Private names of other packages and of Python, or that only gradwire's tests and wrappers give to objects."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def bound(module: str) -> set[str]:
    """Every private name that a module gives to something, or imports from another one of gradwire."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in NAMES:
            found |= {alias.name for alias in node.names}
    return {name for name in found if private(name)}


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


@functools.cache
def ours() -> set[str]:
    return {name for module in modules() for name in bound(module)}


def used(module: str) -> set[str]:
    """The private names in a module that are not its own, and all that it takes from private modules of torch."""
    own, found, taken = bound(module), set[str](), set[str]()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            taken |= imported(node)
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} - (ours() if of_self(node) else own)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            found |= {str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant)} - own
    return taken | set(filter(private, found))


def imported(node: ast.ImportFrom | ast.Import) -> set[str]:
    """The names that an import takes from private modules of torch, and its private names."""
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    names = {alias.name for alias in node.names}
    if isinstance(node, ast.Import):
        return {part for name in names if name.split(".")[0] == "torch" for part in filter(private, name.split("."))}
    parts = module.split(".")
    if parts[0] != "torch":
        return set()
    hidden = set(filter(private, parts))
    return hidden | names if hidden else set(filter(private, names))


LISTED = {name for names in PLACES.values() for name in names}

IN_FOLDERS = {part for place in PLACES for part in place.split(".") if private(part)}
"""Private modules, which are looked for with what they have."""


def test_every_private_name_of_torch_is_in_the_list() -> None:
    found = {(module, name) for module in modules() for name in used(module)}
    known = LISTED | IN_FOLDERS | OF_OTHERS
    assert sorted((module, name) for module, name in found if name not in known) == []
    assert sorted((LISTED | OF_OTHERS) - {name for _, name in found}) == []


def place(path: str) -> Any:
    """The module or class of this name."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        return functools.reduce(getattr, parts[count:], found)
    raise ImportError(path)


def there(path: str, name: str) -> bool:
    """Return whether torch has the name there: as an attribute, or as one that the text gives to objects."""
    try:
        found = place(path)
    except (ImportError, AttributeError):
        return False
    if hasattr(found, name):
        return True
    try:
        return re.search(rf"\b{name}\b", inspect.getsource(found)) is not None
    except (OSError, TypeError):
        return False


@pytest.mark.parametrize("path", PLACES)
def test_torch_has_the_private_names(path: str) -> None:
    """The test fails with a new torch if names are gone: look for all places that use them."""
    ranges = {name: SOME_VERSIONS.get(name, ("0", ANY)) for name in PLACES[path]}
    expected = {name for name, (first, end) in ranges.items() if first <= torch.__version__ < end}
    gone = [name for name in expected if not there(path, name)]
    back = [name for name in ranges if name not in expected and there(path, name)]
    assert gone == [], f"torch {torch.__version__} has no longer in {path}: {', '.join(gone)}"
    assert back == [], f"torch {torch.__version__} has in {path}, unlike SOME_VERSIONS: {', '.join(back)}"

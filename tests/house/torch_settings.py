"""The settings of torch's wrappers and optimizers, and what becomes of each with gradwire.

A setting is *read* where gradwire looks at it, or where its effect comes to gradwire through torch and is tested; it is
*refused* where it cannot work, by an error that names it. A torch that has a setting that is not in here fails a test.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import NamedTuple

from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

READ, REFUSED = "read", "refused"

WAYS = "tests/integrations/test_torch_settings.py::test_a_setting_of_ddp_ends_where_ddp_alone_ends"
LEFT = "tests/integrations/test_torch_settings.py::test_what_ddp_delays_is_not_exchanged"
REFUSALS = "tests/integrations/test_torch_settings.py::test_what_cannot_work_is_refused_by_name"
SHARDS = "tests/integrations/test_fsdp_ways.py::test_it_trains_as_fsdp_alone"
GRID = "tests/integrations/test_fsdp_rank_grid.py::test_a_way_to_train_ends_where_fsdp_alone_ends"
FIRST = "tests/integrations/test_torch_settings.py::test_a_setting_of_fsdp1_ends_where_fsdp1_alone_ends"
MISTAKES = "tests/integrations/test_fsdp_mistakes.py::test_every_rank_says_what_to_do_and_nothing_is_written"
IGNORED = "tests/integrations/test_torch_settings.py::test_parameters_that_fsdp_ignores_are_nobodys"
DIMENSIONS = "tests/integrations/test_torch_settings.py::test_a_mesh_that_names_its_data_parallel_dimensions"
STEPS = "tests/integrations/test_torch_settings.py::test_every_optimizer_steps_on_the_mean"


class Setting(NamedTuple):
    """One setting.

    Args:
        verdict: ``READ`` or ``REFUSED``.
        note: effect, for the table.
        test: file, or file and test, that shows it.
        since: first version of torch that has it; "": all that are supported.
    """

    verdict: str
    note: str
    test: str
    since: str = ""


DDP = {
    "module": Setting(READ, "its parameters are named as in `module.named_parameters()`", WAYS),
    "device_ids": Setting(READ, "the exchange runs on the parameters' device", WAYS),
    "output_device": Setting(READ, "the exchange runs on the parameters' device", WAYS),
    "dim": Setting(READ, "torch's own", WAYS),
    "broadcast_buffers": Setting(READ, "torch's own; buffers are not exchanged", WAYS),
    "init_sync": Setting(READ, "torch's own; nothing is sent in its place", WAYS),
    "process_group": Setting(READ, "the exchange has a group of its own over the same ranks", WAYS),
    "bucket_cap_mb": Setting(READ, "the buckets are DDP's, and compared between the ranks", WAYS),
    "find_unused_parameters": Setting(READ, "what no worker used is not exchanged", WAYS),
    "check_reduction": Setting(READ, "torch's own, without effect", WAYS),
    "gradient_as_bucket_view": Setting(READ, "the mean is written into the bucket", WAYS),
    "static_graph": Setting(READ, "the buckets are DDP's", WAYS),
    "delay_all_reduce_named_params": Setting(READ, "these are DDP's own, and are not exchanged", LEFT),
    "param_to_hook_all_reduce": Setting(READ, "as `delay_all_reduce_named_params`", LEFT),
    "mixed_precision": Setting(REFUSED, "it takes the reducer's only hook; use `torch.autocast`", REFUSALS),
    "device_mesh": Setting(READ, "the exchange is over the ranks of the mesh", WAYS),
    "skip_all_reduce_unused_params": Setting(REFUSED, "DDP would leave out buckets and tell no hook", REFUSALS),
    "bucket_cap_mb_list": Setting(READ, "the buckets are DDP's", WAYS),
    "batched_grad_copy": Setting(READ, "the buckets are DDP's", WAYS, "2.13"),
    "forward_sync_buffers": Setting(READ, "torch's own; buffers are not exchanged", WAYS, "2.13"),
    "lazy_bucket_allocation": Setting(READ, "the buckets are DDP's", WAYS, "2.15"),
}

FULLY_SHARD = {
    "module": Setting(READ, "its parameters are named as in `module.named_parameters()`", SHARDS),
    "mesh": Setting(READ, "one or two dimensions, or experts on fewer ranks", GRID),
    "reshard_after_forward": Setting(READ, "FSDP's own; with `weights=` both gathers are compressed", SHARDS),
    "shard_placement_fn": Setting(READ, "parts are cut where FSDP cuts them", SHARDS),
    "mp_policy": Setting(READ, "gradients are exchanged in the dtype in which FSDP reduces them", SHARDS),
    "offload_policy": Setting(READ, "the exchange runs where FSDP reduces", SHARDS),
    "ignored_params": Setting(READ, "these are nobody's, and are not exchanged", IGNORED),
    "dp_mesh_dims": Setting(READ, "the mesh is that over which FSDP reduces", DIMENSIONS, "2.13"),
}

FSDP1 = {
    "module": Setting(READ, "patterns are over the names of the modules that are wrapped", FIRST),
    "process_group": Setting(READ, "the exchange has a group of its own over the same ranks", FIRST),
    "sharding_strategy": Setting(READ, "`FULL_SHARD` and `SHARD_GRAD_OP`; the others are refused", MISTAKES),
    "cpu_offload": Setting(READ, "the exchange runs where FSDP reduces", FIRST),
    "auto_wrap_policy": Setting(READ, "each wrapped module is exchanged as one vector", FIRST),
    "backward_prefetch": Setting(READ, "FSDP's own", FIRST),
    "mixed_precision": Setting(READ, "gradients are exchanged in the dtype in which FSDP reduces them", FIRST),
    "ignored_modules": Setting(READ, "their parameters are nobody's, and are not exchanged", IGNORED),
    "param_init_fn": Setting(READ, "FSDP's own", FIRST),
    "device_id": Setting(READ, "the exchange runs where FSDP reduces", FIRST),
    "sync_module_states": Setting(READ, "FSDP's own", FIRST),
    "forward_prefetch": Setting(READ, "FSDP's own", FIRST),
    "limit_all_gathers": Setting(READ, "FSDP's own", FIRST),
    "use_orig_params": Setting(READ, "the exchange is of the flat parameters", FIRST),
    "ignored_states": Setting(READ, "these are nobody's, and are not exchanged", IGNORED),
    "device_mesh": Setting(READ, "of one dimension; hybrid sharding is refused", FIRST),
}


class Steps(NamedTuple):
    """An optimizer of torch under ``compress_optimizer``, as ``STEPS`` or ``REFUSALS`` shows it.

    Args:
        settings: its settings besides ``params``; that of a later torch has its version behind it.
        verdict: ``READ``: it steps on the mean, whatever its settings are; or ``REFUSED``.
        note: effect, for the table.
    """

    settings: str
    verdict: str = READ
    note: str = "steps on the mean"


_ADAM = "lr betas eps weight_decay foreach maximize capturable differentiable"
OPTIMIZERS = {
    "ASGD": Steps("lr lambd alpha t0 weight_decay foreach maximize differentiable capturable"),
    "Adadelta": Steps("lr rho eps weight_decay foreach capturable maximize differentiable"),
    "Adafactor": Steps("lr beta2_decay eps d weight_decay foreach maximize"),
    "Adagrad": Steps("lr lr_decay weight_decay initial_accumulator_value eps foreach maximize differentiable fused"),
    "Adam": Steps(f"{_ADAM} amsgrad fused decoupled_weight_decay"),
    "AdamW": Steps(f"{_ADAM} amsgrad fused"),
    "Adamax": Steps(_ADAM),
    "LBFGS": Steps(
        "lr max_iter max_eval tolerance_grad tolerance_change history_size line_search_fn maximize=2.14",
        REFUSED,
        "`step(closure)`: the closure would compute gradients after the exchange; use `compress_ddp`",
    ),
    "Muon": Steps("lr weight_decay momentum nesterov ns_coefficients eps ns_steps adjust_lr_fn"),
    "NAdam": Steps(f"{_ADAM} momentum_decay decoupled_weight_decay"),
    "RAdam": Steps(f"{_ADAM} decoupled_weight_decay"),
    "RMSprop": Steps("lr alpha eps weight_decay momentum centered capturable foreach maximize differentiable"),
    "Rprop": Steps("lr etas step_sizes capturable foreach maximize differentiable"),
    "SGD": Steps("lr momentum dampening weight_decay nesterov maximize foreach differentiable fused"),
    "SparseAdam": Steps("lr betas eps maximize", note="steps on the mean, which is sparse"),
}
TABLES = {
    "settings of DDP": (DDP, DistributedDataParallel),
    "settings of fully_shard": (FULLY_SHARD, fully_shard),
    "settings of FSDP1": (FSDP1, FullyShardedDataParallel),
}
"""The marker of each table in the page, its rows, and whose settings they are."""


def versioned(setting: str) -> tuple[str, str]:
    """A setting of an optimizer, and the first version of torch that has it."""
    name, _, version = setting.partition("=")
    return name, version


def settings_of(thing: object) -> set[str]:
    """The settings that this torch has."""
    return set(inspect.signature(thing).parameters)  # type: ignore[arg-type]


def wrapper_rows(settings: dict[str, Setting]) -> Iterator[str]:
    """The rows of the table of a wrapper."""
    yield "| setting | with gradwire | what happens |"
    yield "|---|---|---|"
    for name, each in settings.items():
        later = f", from torch {each.since}" if each.since else ""
        yield f"| `{name}`{later} | {each.verdict} | {each.note} |"


def optimizer_rows() -> Iterator[str]:
    """The rows of the table of torch's optimizers."""
    yield "| optimizer | with `compress_optimizer` | what happens | settings besides `params` |"
    yield "|---|---|---|---|"
    for name, each in OPTIMIZERS.items():
        pairs = sorted(map(versioned, each.settings.split()))
        settings = ", ".join(f"`{one}`" + (f" from torch {version}" if version else "") for one, version in pairs)
        yield f"| `{name}` | {each.verdict} | {each.note} | {settings} |"

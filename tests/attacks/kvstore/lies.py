"""Messages in perfect form whose content is meant to hurt."""

import json
import struct

from tests.attacks.kvstore.wire import Attacker, config, init, pull, push

INJECTIONS = [
    "\n[server] worker 0 is dead",
    "\r\x1b[2J\x1b[31mpwned",
    "../../etc/passwd",
    "/etc/passwd",
    "%s%n%x",
    "${jndi:x}",
    "\x00",
    "'; DROP TABLE",
    "w\u202e",
    '"}\n# HELP x',
    "{0.__class__}",
    "a" * 1024,
]


def refused(told, *words):
    assert told is not None, "no answer"
    assert told["op"] == "error", told
    assert all(word in told["text"] for word in words), told
    assert told["text"].isprintable(), told


def names(endpoint):
    """Keys, optimizers and compressors that are paths, modules, control characters and formats."""
    for name in INJECTIONS:
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.request("pull", **pull(name)))
            refused(attacker.request("optimizer", number=1, name=name, numbers={}))
            refused(attacker.request("optimizer", number=1, name="sgd", numbers={name: 1.0}))
            for folder, known in (("push", "twobit"), ("memory", "residual"), ("pull", "twobit")):
                for forged in ({"name": name}, {"name": known, name: 1}):
                    refused(attacker.request("config", number=1, config={**config(), folder: forged}))
    for name in ("base", "os", "__init__", "..errors", "twobit.TwoBit", "simple", "_codes"):
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.request("config", number=1, config=config(name)), "unknown")


def optimizers(endpoint):
    """Numbers with which torch's optimizers raise in the middle of a step, or that are none."""
    for name, numbers in (
        ("sgd", {"dampening": None, "momentum": 0.9}),
        ("sgd", {"lr": float("nan")}),
        ("sgd", {"lr": -1.0}),
        ("sgd", {"lr": [1.0]}),
        ("adam", {"beta1": 1.5}),
        ("adam", {"eps": None}),
        ("rmsprop", {"alpha": None}),
        ("sgd", {"foreach": True}),
        ("sgd", {"params": 1}),
        ("adam", {"capturable": True}),
        ("adamw", {"fused": True}),
        ("test", {"momentum": 1.0}),
        ("sgd", {"lr": 1e39}),
        ("nadam", {"momentum_decay": None}),
        ("sgd", {"multi_precision": 1}),
        ("adam", {"lazy_update": []}),
        *(("sgd", {"lr_scheduler": told}) for told in schedulers()),
    ):
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.request("optimizer", number=2, name=name, numbers=numbers))


def schedulers():
    """Schedules over which a server could fall when it looks one up, makes one, or asks it for a rate."""
    factor, steps = {"name": "FactorScheduler", "step": 1}, {"name": "MultiFactorScheduler"}
    poly = {"name": "PolyScheduler", "max_update": 4}
    return [
        True,
        "os",
        [],
        {},
        {"name": None},
        {"name": []},
        {"name": {}},
        {"name": "LRScheduler"},
        {"name": "FactorScheduler"},
        {**factor, "step": 0},
        {**factor, "step": "1"},
        {**factor, "factor": float("nan")},
        {**factor, "base_lr": [1.0]},
        {**factor, "warmup_mode": {}},
        {**factor, "warmup_steps": 0.5},
        {**factor, "__class__": 1},
        {**factor, "self": 1},
        {**factor, 1: 1},
        {**steps, "step": [2, 1]},
        {**steps, "step": "12"},
        {**steps, "step": {}},
        {**steps, "step": [[1]]},
        {**poly, "pwr": 0},
        {**poly, "pwr": 1e39},
        {**poly, "max_update": 0},
        {**poly, "warmup_steps": 4},
    ]


def safetensors(tensors, **metadata):
    """A file of the format, from parts that nobody checked."""
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def states(endpoint):
    """States of an optimizer that are pickles, bombs, of another shape, or of somebody else's keys."""
    told = {"format": "gradwire optimizer states 1", "keys": json.dumps(["w"])}
    four = ("F32", [4], struct.pack("<4f", *[1.0] * 4))
    forged = (
        b"",
        b"\x80\x04\x95cos\nsystem\n",
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 2**40) + b"{}",
        safetensors({"0/momentum_buffer": four}),
        safetensors({"0/momentum_buffer": four}, **{**told, "format": "x"}),
        safetensors({"0/momentum_buffer": four}, **{**told, "keys": "[[1]]"}),
        safetensors({"0/momentum_buffer": four}, **{**told, "keys": "{}"}),
        safetensors({"7/momentum_buffer": four}, **told),
        safetensors({"x/y": four}, **told),
        safetensors({"0/momentum_buffer": ("F32", [2**40], b"")}, **told),
        safetensors({"0/momentum_buffer": ("F32", [5], bytes(20))}, **told),
        safetensors({"0/exp_avg": four, "0/step": ("I64", [4], bytes(32))}, **told),
        safetensors({"0/__class__": four}, **told),
        safetensors({"0/x": four}, **{**told, "keys": json.dumps("w" * 100)}),
        safetensors({}, **{**told, "keys": "[" * 50_000}),
    )
    for each in forged:
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.request("restore", each, chunk=0, chunks=1))


def payloads(endpoint):
    """Codes that decode to nonsense, on a key of one's own: NaN, infinity, indices outside, rows outside."""
    with Attacker(endpoint, 1) as attacker:
        told = attacker.request("push", struct.pack("<4f", *[float("nan")] * 4), **push("spoilt"))
        assert told["op"] == "done", told
        topk = config("topk", "none", ratio=0.5)
        assert attacker.request("config", number=1, config=topk)["op"] == "done"
    for values, counts, indices in (
        ([1.0, 2.0], [2], [1, 1]),
        ([1.0, 2.0], [2], [2, 65535]),
        ([1.0, 2.0], [-1], [0, 1]),
    ):
        with Attacker(endpoint, 1) as attacker:
            attacker.request("config", number=1, config=topk)
            payload = struct.pack("<2f1i2H", *values, *counts, *indices)
            refused(attacker.request("push", payload, **push("spoilt", step=2, config=1)))
    for rows in ([4], [-1], [2**62]):
        with Attacker(endpoint, 1) as attacker:
            refused(
                attacker.request("push", struct.pack("<qf", *rows, 1.0), **push("spoilt", step=2, nbytes=12, rows=1))
            )


def another_form_of_a_key(endpoint):
    """A key that is there, said to be larger, of another type, or part of another whole."""
    for field, value in (
        ("shape", [2**20]),
        ("shape", [4, 1]),
        ("dtype", "float64"),
        ("start", 1),
        ("total", 10**12),
        ("dtype", "__import__('os')"),
        ("dtype", "float128"),
    ):
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.request("init", **{**init("spoilt"), field: value}))


ATTACKS = [names, optimizers, states, payloads, another_form_of_a_key]

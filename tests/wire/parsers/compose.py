import importlib
import math

import numpy as np

from tests.wire.parsers import randomk, topk

WIDTHS = {"norms": 4, "halves": 2, "counts": 4, "raw": 4, "indices": 2, "seed": 4}


def inner_fields(k, config):
    if config["name"] == "qsgd":
        return {"norms": 4 * -(-k // config["block"]), "codes": -(-k * config["bits"] // 8)}
    assert config["name"] == "bf16"
    return {"halves": 2 * k}


def parse(payload, config, shape):
    outer, inner, n = config["outer"], config["inner"], math.prod(shape)
    if outer["name"] == "topk":
        k = min(n, max(1, math.ceil(round(outer["ratio"] * n, 6))))
        where = topk.fields(n, k, outer["indices"])
    else:
        k = outer["run"] * min(-(-n // outer["run"]), max(1, math.ceil(round(outer["ratio"] * n / outer["run"], 6))))
        where = {"seed": 20}
    sizes = inner_fields(k, inner)
    parts = topk.split(payload, {**sizes, **where}, WIDTHS)
    parser = importlib.import_module(f"tests.wire.parsers.{inner['name']}")
    values = np.asarray(parser.parse(b"".join(parts[name] for name in sizes), inner, [k]), np.float32)
    if outer["name"] == "randomk":
        return randomk.parse(values.tobytes() + parts["seed"], outer, shape)
    out = np.zeros(n, np.float32)
    out[topk.places(parts, n, k)] = values
    return out

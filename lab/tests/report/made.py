"""Results as the commands write them, with chosen figures."""

from __future__ import annotations

from gradwire_lab.experiments.records import Point, Record, RunSettings

HERE = {"machine": "a machine", "commit": "0123456789abcdef", "torch": "2.13.0", "gradwire": "0.1.0", "threads": 1}


def record(method="none", quality=0.9, seed=0, *, task="classification", workers=2, compressor="", **more):
    """A training run; ``compressor`` None is torch's own, empty is the one that the label starts with."""
    config = None if compressor is None else {"name": compressor or method.partition(":")[0]}
    changed = {
        key: more.pop(key)
        for key in ("link", "options", "epochs", "recipe", "tuned", "parallel", "weights", "optimizer")
        if key in more
    }
    settings = RunSettings(task, "a_model", "some data", method, config, workers=workers, seed=seed, **changed)
    figures = {
        "measure": "top-1",
        "higher_is_better": True,
        "examples_per_second": 100.0,
        "bytes_per_step": 1000.0,
        "unpacked_bytes_per_step": 4000.0,
        "dense_bytes_per_step": 8000.0,
        "state_bytes": 500,
        "peak_rss_bytes": 10**8,
        "start_rss_bytes": 6 * 10**7,
        "environment": HERE,
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": {"step": 0.01},
        "history": history(quality),
    }
    return Record(settings, quality=quality, **(figures | more))


def history(quality):
    """Half of the quality after the first epoch."""
    if quality is None:
        return ()
    return tuple(Point(epoch, 10 * epoch, 2.0 * epoch, 1.0, quality * epoch / 2, 1e4 * epoch) for epoch in (1, 2))


def seeds(method, *qualities, **more):
    return [record(method, quality, seed, **more) for seed, quality in enumerate(qualities)]


def replayed(method, link, seconds, **more):
    """A row of ``gradwire replay``; ddp and fp16 are torch's own."""
    row = {
        "model": "resnet20",
        "parameters": 269467,
        "tensors": 51,
        "workers": 2,
        "link": link,
        "compute": 0.0,
        "method": method,
        "params": None if method in ("ddp", "fp16") else {},
        "options": {},
        "seconds": seconds,
        "seconds_low": 0.9 * seconds,
        "seconds_high": 1.1 * seconds,
        "steps": 5,
        "bytes_sent": 1e6,
        "interface_bytes": None,
    }
    return row | HERE | more


def timed(method, op, size, samples, **more):
    """A row of ``gradwire bench codec --samples``."""
    row = {
        "method": method,
        "params": {},
        "size": size,
        "op": op,
        "seconds": sorted(samples)[len(samples) // 2],
        "wire_bits_per_element": 8.0,
        "samples": samples,
    }
    return row | HERE | more


def bucket(choice, exposed=0.02, error=0.01):
    """A row of ``decisions()["buckets"]``."""
    return {"bucket": 0, "choice": choice, "exposed": exposed, "dense_exposed": 0.1, "error": error, "budget": 0.15}


ENTRIES = [
    {"step": 1, "phase": "watching", "buckets": []},
    {"step": 6, "phase": "watching", "buckets": [bucket("dense", 0.1, None), bucket("dense", 0.1, None)]},
    {"step": 20, "phase": "holding", "buckets": [bucket("qsgd over allgather"), bucket("dense", 0.0)]},
]
"""The entries of a log of decisions."""

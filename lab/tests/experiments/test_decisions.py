"""Entries that a log of decisions keeps of the controller's messages."""

from gradwire_lab.experiments.decisions import DecisionLog
from lab.tests.report.made import bucket


def test_an_entry_for_each_change_and_none_between():
    log = DecisionLog()
    chosen = [bucket("qsgd over allgather"), bucket("dense", 0.0)]
    for step, told in enumerate(([], chosen, chosen, [chosen[0], bucket("bf16 over allreduce")]), 1):
        log.add(step, {"phase": "holding", "buckets": told})
    assert [each["step"] for each in log.entries] == [1, 2, 4]
    assert [row["choice"] for row in log.entries[-1]["buckets"]] == ["qsgd over allgather", "bf16 over allreduce"]
    assert log.entries[1]["buckets"][0]["exposed"] == 0.02


def test_steps_that_are_watched_are_uncompressed_whatever_was_decided_before():
    log = DecisionLog()
    log.add(20, {"phase": "holding", "buckets": [bucket("qsgd over allgather")]})
    log.add(30, {"phase": "watching", "buckets": [bucket("qsgd over allgather")]})
    (row,) = log.entries[-1]["buckets"]
    assert (row["choice"], row["exposed"], row["error"]) == ("dense", 0.1, None)


def test_an_exchange_in_which_nothing_decides_has_no_entries():
    log = DecisionLog()
    log.note(1, None)
    assert log.entries == []

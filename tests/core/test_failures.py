"""The words in which a failed exchange is explained."""

from gradwire.transport.failures import Loss, explain


def test_ranks_of_a_group_of_some_are_those_of_the_default_group():
    silent = Loss(rank=0, world=2, doing="step 2", peers=[1], silent=True)
    told = explain(None, silent, RuntimeError("timed out"), 3.0, [1, 2])
    assert told.startswith("rank 1 (0 of 2 in its group) in step 2 waited timeout=3 s for rank 2 and got no answer")
    gone = Loss(rank=1, world=2, doing="step 3", peers=[0], silent=False)
    assert explain(None, gone, RuntimeError("closed"), 3.0, [1, 2]).startswith(
        "rank 2 (1 of 2 in its group) in step 3 lost rank 1: the process died, or gave up after timeout=3 s"
    )


def test_ranks_of_the_default_group_have_one_number():
    loss = Loss(rank=0, world=2, doing="step 2", peers=[1], silent=True)
    assert explain(None, loss, RuntimeError("timed out"), 3.0).startswith("rank 0 of 2 in step 2 waited")

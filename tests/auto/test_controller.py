"""auto on real ranks, over channels whose messages take as long as on a link."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gradwire.auto.controller import PATIENCE, AutoController
from gradwire.auto.hysteresis import MARGIN, VERIFIED_AFTER, margin
from gradwire.auto.recorder import LONGEST, WINDOW
from gradwire.auto.step_record import StepWindow
from gradwire.compressors.casts.none import Identity
from gradwire.engine.exchange import Exchange
from gradwire.testing.processes import run_ranks
from tests.auto import jobs

NOTHING: tuple[Any, ...] = (1.0, (), (), (), (), ())
"""A window's fields that do not matter here."""


def compressed(auto: dict[str, Any]) -> list[str]:
    return [each["choice"] for each in auto["buckets"] if each["choice"] != "dense"]


@pytest.mark.parametrize(("budget", "optimizer"), [("exact", "AdamW"), ("safe", "AdamW"), ("small", "SGD")])
def test_a_slow_link_is_compressed_for_within_the_budget(budget: str, optimizer: str) -> None:
    one, other = run_ranks(2, jobs.slow_link, budget, optimizer)
    assert one["digest"] == other["digest"]
    assert one["assigned"] == other["assigned"]
    auto = one["auto"]
    assert len(compressed(auto)) >= len(auto["buckets"]) - 1
    assert sum(each["error"] for each in auto["buckets"]) <= auto["buckets"][0]["budget"]
    assert one["ratio"] > {"exact": 1.3, "safe": 1.8, "small": 1.8}[budget]
    methods = {label.split(" over ")[0] for label in compressed(auto)}
    if budget == "exact":
        assert methods == {"bf16"}
    if budget == "small":
        assert methods & {"topk:ratio=0.01", "powersgd:rank=4"}
    if budget == "safe":
        assert not any(label.startswith(("topk", "eden:bits=0.5")) or label == "eden" for label in methods)


@pytest.mark.parametrize("method", ["bf16", "qsgd"])
def test_what_an_option_compresses_in_any_case_counts_in_the_rate_of_the_link(method: str) -> None:
    assert run_ranks(2, jobs.overridden, method) == [pytest.approx(8 * jobs.SLOW, rel=0.1)] * 2


@pytest.mark.parametrize("optimizer", ["Rprop", "SGD"])
def test_what_keeps_gradients_back_needs_optimizers_that_are_known_to_bear_it(optimizer: str) -> None:
    """Rprop looks at signs alone."""
    one, _ = run_ranks(2, jobs.slow_link, "small", optimizer)
    late = [label for label in compressed(one["auto"]) if label.startswith(("topk", "powersgd"))]
    assert bool(late) == (optimizer == "SGD")


def test_after_a_setback_that_was_looked_at_again_the_next_look_comes_later() -> None:
    exchange = Exchange(Identity())
    controller = AutoController(exchange, [("w", (4,))])
    one = (0.0,)
    seen, wire = StepWindow(((("w", (4,)),),), 12, 1.0, *[one] * 5, blocking=(False,)), controller.model.link.at(1e6)
    controller.model.link.wire = wire
    controller._setback.note(wire.rate, 1.0)
    controller._watched = 2 * LONGEST
    assert controller._setback.expired(controller._watched)
    controller._rest(seen, "because nothing is")
    assert not controller._setback.expired(controller._watched)


def test_what_keeps_gradients_back_is_not_chosen_under_adam() -> None:
    one, _ = run_ranks(2, jobs.slow_link, "small", "AdamW")
    assert compressed(one["auto"])
    assert not any(label.startswith("topk") for label in compressed(one["auto"]))


def test_where_nothing_is_to_be_gained_it_is_ddp_bit_for_bit() -> None:
    for found in run_ranks(3, jobs.nothing_to_gain):
        assert found["same"]
        assert found["auto"]["decisions"] == []
        assert found["auto"]["phase"] == "watching"


def test_nothing_is_decided_for_steps_that_are_uncompressed_in_any_case() -> None:
    """Their times would be taken for those of the method that was decided."""
    one, other = run_ranks(2, jobs.warming_up)
    assert one["decisions"] == other["decisions"]
    assert set(one["phases"][:40]) == {"watching"}
    assert one["phases"][-1] == "holding"
    (decision,) = one["decisions"]
    assert decision["step"] > 40
    assert not any("uncompressed steps again" in text for text in one["said"])


def test_where_nothing_is_to_be_gained_steps_are_next_to_nothing_but_ddps_sums() -> None:
    """One of 32 steps compares the ranks, 12 time their buckets, and the others only add up."""
    first, *others = run_ranks(2, jobs.resting)
    assert all(each["digest"] == first["digest"] for each in others)
    for found in (first, *others):
        assert found["same"]
        assert found["decided"] == []
        late = range(40, 100)
        compared = [step for step in late if found["compared"][step]]
        assert len(compared) == 2
        assert compared[1] - compared[0] == LONGEST
        assert sum(found["timed"][step] for step in range(compared[0] + 1, compared[1] + 1)) == WINDOW + 1
        # What a step sends are the buckets; one that compares tells some times beside.
        least = min(found["sent"])
        assert all(found["sent"][step] == least for step in late if step not in compared)
        assert all(least < found["sent"][step] < least + 8192 for step in compared)
        assert set(found["choices"]) != {"dense"}
    begun, why = first["said"]
    watches = "gradients travel uncompressed while it watches the first steps, and then it chooses (docs/auto.md)"
    assert begun == f"auto, budget 'safe': {watches}"
    stays = r"\d % of a step waits for it: gradients stay uncompressed, because that is too little to gain anything"
    assert re.fullmatch(rf"step \d+: link [\d.]+ Gbit/s, {stays}", why)
    assert [found["said"] for found in others] == [[]]


def test_ddp_may_look_for_unused_parameters_in_steps_that_are_left_to_it() -> None:
    assert run_ranks(2, jobs.looking_for_unused, 5) == [[True] * 5] * 2


def test_a_line_of_the_log_says_what_was_chosen_for_which_bucket_and_why() -> None:
    said, others = run_ranks(2, jobs.told)
    assert [text for text in others if text.startswith("step")] == []
    whole, *buckets = [text for text in said if re.match(r"(step|bucket) ", text)]
    number = r"[\d.e+-]+"
    share = rf"error {number} of 0\.15"
    methods = rf"(\S+ for \d+ %(, )?)+ of the gradients; {number} m?s -> {number} m?s a step expected"
    assert re.match(rf"step \d+: link 40 Mbit/s, \d+ % of a step waits for it: {methods}", whole)
    assert len(buckets) > 1
    for place, text in enumerate(buckets):
        choice = r"(dense|\S+ over \w+)"
        figures = rf"{number} m?s exposed instead of {number} m?s; {share}"
        assert re.fullmatch(rf"bucket {place}, \d+ elements: {choice}: {figures}", text)


def test_nothing_is_tried_before_gradients_have_settled() -> None:
    """After as many uncompressed steps as its patience lasts it is tried all the same."""
    for phases in run_ranks(2, jobs.unsettled, PATIENCE + 40):
        assert set(phases[:PATIENCE]) == {"watching"}
        assert "probing" in phases[PATIENCE:]


@pytest.mark.parametrize("slower", [10.0, 200.0])
def test_a_straggler_is_noticed_within_fifty_steps_and_so_is_its_end(slower: float) -> None:
    """Behind a backward pass that is long enough uncompressed steps are hidden; later they are not again."""
    one, other = run_ranks(2, jobs.straggling, slower)
    assert one["decisions"] == other["decisions"]
    (usual, rate, choices), (longer, during, kept), (again, after, left) = one["parts"]
    assert longer > 5 * usual
    assert again < 1.1 * usual
    assert during == pytest.approx(rate, rel=0.1)
    assert after == pytest.approx(rate, rel=0.1)
    assert "dense" not in {*choices, *left}
    assert ("dense" in kept) == (slower > 100)
    assert len(one["decisions"]) <= 4


def test_the_first_and_the_last_matrix_and_embeddings_have_eight_bits_where_others_have_few() -> None:
    bits, other = run_ranks(2, jobs.with_embeddings)
    assert bits == other
    assert bits.pop("inner.weight") < 3
    assert set(bits) == {"first.weight", "words.weight", "last.weight"}
    assert min(bits.values()) > 7


def test_it_is_said_when_nothing_could_be_measured(caplog: pytest.LogCaptureFixture) -> None:
    """No two steps in a row have the same buckets."""
    shapes = [("a", (64, 64)), ("b", (64, 64))]
    exchange = Exchange(Identity())
    controller = AutoController(exchange, shapes)
    for step in range(60):
        exchange.begin_step()
        exchange.run(torch.randn(8192), shapes if step % 2 else shapes[::-1])
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == len(caplog.records) == 1
    assert "auto could measure nothing in 3 windows" in caplog.records[0].message
    assert (controller.phase, controller.decisions) == ("watching", [])


def test_gradients_that_are_not_finite_are_counted_where_nothing_is_to_be_gained() -> None:
    """A rank counts its own at once, and others' when ranks tell each other their times."""
    other, one = run_ranks(2, jobs.not_finite)
    assert one["counted"] == list(range(1, 2 * LONGEST + 1))
    assert all(0 <= mine - theirs <= LONGEST + 1 for mine, theirs in zip(one["counted"], other["counted"], strict=True))
    for found in (one, other):
        assert set(found["timed"]) == {True, False}
        assert found["later"] == 2 * LONGEST
        # A method that is named ends auto, and with it the telling.
        assert found["changed"] == found["later"] + 5


def test_gradients_of_16_bits_are_summed_in_their_own_type_in_every_uncompressed_step() -> None:
    """Three ranks, of whose sum each rounding counts; steps in which methods are tried are among them."""
    for rank, found in enumerate(run_ranks(3, jobs.sixteen_bits)):
        one, plain = found["digests"]
        why = "gradients stay uncompressed, because nothing within budget 'exact' saves 3 % of a step"
        assert sum(text.endswith(why) for text in found["said"]) == (rank == 0)
        assert one == plain
        assert found["phases"] == {"watching", "probing"}
        assert found["auto"]["decisions"] == []
        assert found["auto"]["link"]["bits_per_second"] == pytest.approx(8 * jobs.SLOW, rel=0.1)


def test_a_link_that_changes_is_noticed_within_fifty_steps() -> None:
    one, other = run_ranks(2, jobs.changing_link)
    assert one["decisions"] == other["decisions"]
    (slow, rate), (_, faster), (again, back) = one["parts"]
    assert set(slow) != {"dense"}
    assert set(again) != {"dense"}
    assert rate == pytest.approx(8 * jobs.SLOW, rel=0.1)
    assert back == pytest.approx(8 * jobs.SLOW, rel=0.1)
    assert faster > 100 * rate


def assert_held(found: dict[str, Any]) -> None:
    """Once some buckets have methods there are no uncompressed steps any more."""
    assert found["decisions"]
    assert all(decision["choices"] for decision in found["decisions"])


@pytest.mark.parametrize(("sigma", "seed"), [(0.5, 3), (0.8, 1), (0.8, 2), (0.8, 3)])
def test_noise_alone_does_not_make_it_look_again(sigma: float, seed: int) -> None:
    for found in run_ranks(2, jobs.noisy, sigma, seed, (jobs.SLOW, jobs.SLOW)):
        assert_held(found)


def test_a_change_of_the_link_is_noticed_in_noise() -> None:
    one, other = run_ranks(2, jobs.noisy, 0.5, 1, (jobs.SLOW, jobs.FAST, jobs.SLOW))
    assert one["decisions"] == other["decisions"]
    (slow, rate), (_, faster), (again, back) = one["parts"]
    assert set(slow) != {"dense"}
    assert set(again) != {"dense"}
    assert 0.5 < rate / (8 * jobs.SLOW) < 2
    assert 0.5 < back / (8 * jobs.SLOW) < 2
    assert faster > 100 * rate


@pytest.mark.parametrize("apart", [0.2, 4.0])
def test_a_method_whose_messages_take_another_time_is_kept_where_it_gains_in_any_case(apart: float) -> None:
    for found in run_ranks(2, jobs.noisy, 0.0, 0, (jobs.SLOW, jobs.SLOW), apart):
        assert_held(found)
        assert "dense" not in found["parts"][-1][0]


def test_a_link_that_slows_down_when_methods_begin_does_not_end_them() -> None:
    for found in run_ranks(2, jobs.changed_at_once, jobs.SLOW / 5):
        assert_held(found)
        assert "dense" not in found["choices"]


def test_a_link_that_is_fast_when_methods_begin_is_looked_at_uncompressed() -> None:
    for found in run_ranks(2, jobs.changed_at_once, jobs.FAST):
        assert found["decisions"][1]["choices"] == []
        assert found["link"]["bits_per_second"] > 100 * 8 * jobs.SLOW


def test_methods_that_make_steps_longer_than_uncompressed_ones_are_left_and_the_log_says_so() -> None:
    one, other = run_ranks(2, jobs.slower_than_uncompressed)
    assert one["auto"]["decisions"] == other["auto"]["decisions"]
    chosen, left = one["auto"]["decisions"]
    assert chosen["choices"]
    assert left["choices"] == []
    number = r"[\d.]+"
    back = rf"step \d+: uncompressed steps again, .*: {number} m?s a step, uncompressed ones take {number} m?s"
    assert sum(re.fullmatch(back, text) is not None for text in one["said"]) == 1
    assert one["said"][-1].endswith("because steps with a method took longer; it is tried again later")


def test_a_small_gain_is_looked_at_again_beside_uncompressed_steps() -> None:
    """The uncompressed steps that it knows are those of the beginning, which were slow."""
    one, other = run_ranks(2, jobs.faster_by_itself, 0.2)
    assert one["decisions"] == other["decisions"]
    first, second = one["decisions"][:2]
    assert first["choices"]
    assert second["choices"] == []
    assert VERIFIED_AFTER <= second["step"] - first["step"] <= VERIFIED_AFTER + 3 * WINDOW
    assert any("what is gained is little" in text for text in one["said"])
    # Uncompressed steps are faster, and it stays with them.
    assert one["phases"][second["step"] :].count("holding") == 0


def test_what_is_less_than_chance_is_no_reason_to_change() -> None:
    steady, unsteady, wild = (StepWindow((), 12, *NOTHING, unsteady=each) for each in (0.0, 0.1, 0.9))
    assert [margin(each) for each in (steady, unsteady, wild)] == [MARGIN, 0.1, 0.15]
    assert margin(steady, least=0.08) == 0.08


def test_a_loss_scale_that_is_halved_again_and_again_changes_no_decision() -> None:
    (scaled, _), (plain, _) = (run_ranks(2, jobs.loss_scaled, each) for each in (True, False))
    assert plain["decisions"]
    assert scaled == plain


def test_decisions_are_made_again_without_measuring() -> None:
    for found in run_ranks(2, jobs.made_again):
        assert found["decisions"]
        assert found["digests"][0] == found["digests"][1]
        assert (found["phase"], found["made"]) == ("replaying", found["decisions"])
        before, rows = found["told"]
        assert [(row["choice"], row["elements"]) for row in before] == [("dense", found["elements"])]
        choices = found["decisions"][-1]["choices"]
        sent = [f"{each['method']} over {each['strategy']}" for each in choices]
        # Nothing is known of buckets, nor of times: the rows are what is sent, and all that is not compressed.
        assert [row["choice"] for row in rows] in (sent, [*sent, "dense"])
        assert sum(row["elements"] for row in rows) == found["elements"]
        assert {row["exposed"] for row in rows} == {None}
        # Biases are named with their buckets, and are too small to be compressed.
        assert 0 < rows[0]["compressed"] < len(choices[0]["params"])


def test_a_checkpoint_carries_the_decisions() -> None:
    for found in run_ranks(2, jobs.resumed):
        assert found["before"]
        assert found["before"] == found["after"]
        assert found["later"]


def test_a_state_is_gone_on_with_where_layers_are_frozen_and_hosts_are_others() -> None:
    for found in run_ranks(2, jobs.resumed_in_part):
        assert found["assigned"] == {"3.weight": 8}
        assert (found["auto"]["phase"], found["steps"]) == ("holding", 2)
        last = {"method": "qsgd:bits=8", "strategy": "allgather", "params": ["3.weight"]}
        assert found["auto"]["decisions"][1:] == [{"step": 2, "choices": [last]}]
        assert "decisions must be of this model's parameters, got 'elsewhere'" in found["said"]


@pytest.mark.parametrize("holding", [False, True])
def test_a_method_that_is_named_later_is_used_at_once(holding: bool) -> None:
    one, other = run_ranks(2, jobs.taken_over, holding)
    assert one["digest"] == other["digest"]
    assert not one["auto"]
    assert one["assigned"] == {}
    assert len(set(one["sent"][1:])) == 1
    assert one["sent"][1] < 4 * 237_904 / 6


def test_gradients_of_a_sub_group_are_its_own() -> None:
    assert run_ranks(4, jobs.sub_group) == [0.5, 0.5, 2.5, 2.5]


def test_a_plain_loop_decides_too() -> None:
    one, other = run_ranks(2, jobs.plain_loop)
    assert one["digest"] == other["digest"]
    assert compressed(one["auto"])


@pytest.mark.parametrize("version", ["1", "2"])
def test_sharded_gradients_are_decided_for_too(version: str) -> None:
    one, other = run_ranks(2, jobs.sharded, version, jobs.SLOW / 4, 0.0, 0.0, 60)
    assert one["auto"]["decisions"] == other["auto"]["decisions"]
    assert compressed(one["auto"])
    assert one["sent"][-1] < 0.6 * one["sent"][3]
    assert sum(one["losses"][-10:]) < sum(one["losses"][:10])
    # Layer 1 has no parameters; the first and the last matrix get no code of few bits.
    assert (one["bits"].pop(0), one["bits"].pop(8)) == (8, 8)
    assert max(one["bits"].values()) < 8


@pytest.mark.parametrize("hidden", [True, False])
def test_what_the_backward_pass_of_a_sharded_model_hides_needs_no_method(hidden: bool) -> None:
    # A layer of 192 x 192 is reduced in 30 ms.
    for found in run_ranks(2, jobs.sharded, "2", jobs.SLOW, 0.04 if hidden else 0.01, 0.0, 60):
        assert compressed(found["auto"]) != hidden
        assert found["auto"]["step"]["exposed"] < 0.03 * found["auto"]["step"]["seconds"]


def test_what_waits_for_weights_hides_no_reduction() -> None:
    # As long as the layers of the test before, but the link is what is busy.
    for found in run_ranks(2, jobs.sharded, "2", jobs.SLOW, 0.001, 0.04):
        assert found["auto"]["buckets"][0]["choice"] != "dense"


def test_the_link_is_known_where_fsdp_reduces_in_16_bits() -> None:
    for found in run_ranks(2, jobs.sharded_in_16_bits):
        assert found["link"]["bits_per_second"] == pytest.approx(8 * jobs.SLOW, rel=0.1)


def test_of_a_reduce_scatter_the_codes_of_all_parts_count() -> None:
    for one, expected in run_ranks(3, jobs.codes_of_parts):
        assert expected == 3 * one > 0


def test_all_ranks_decide_for_the_fewest_buffers_of_any() -> None:
    assert run_ranks(2, jobs.room) == [2, 2]


def test_decisions_that_a_reduce_scatter_does_not_carry_are_refused() -> None:
    for said in run_ranks(2, jobs.sharded_refused):
        assert "fixed size for a reduce-scatter, got 'powersgd'" in said


def test_a_state_with_such_decisions_is_refused_before_anything_is_loaded() -> None:
    for found in run_ranks(2, jobs.sharded_refused_later):
        assert "fixed size for a reduce-scatter, got 'powersgd'" in found["said"]
        assert (found["steps"], found["decisions"]) == ([1, 2], [])


@pytest.mark.parametrize("bad", [False, True])
def test_what_waits_for_a_method_that_is_left_is_sent(bad: bool) -> None:
    for own, total, waiting in run_ranks(2, jobs.drained, bad):
        if bad:
            # Both parameters were drained, in the first step that counted.
            torch.testing.assert_close(total, own)
        else:
            torch.testing.assert_close(total[:4096], own[:4096])
        assert int(waiting) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": "tiny"}, "budget must be one of 'exact', 'safe', 'small', got 'tiny'"),
        ({"memory": "residual"}, "memory must be left out with 'auto'"),
        ({"strategy": "allgather"}, "strategy must be left out with 'auto'"),
        ({"compressor": "bf16", "budget": "safe"}, "budget must be None with any compressor but 'auto'"),
        ({"compressor": "auto:bits=2"}, "'auto' has no parameter 'bits'"),
        ({"compressor": "auto:budget=small", "budget": "exact"}, "budget must be left out beside 'auto:budget=small'"),
        ({"budget": ""}, "budget must be one of 'exact', 'safe', 'small', got ''"),
        ({"budget": False}, "budget must be one of 'exact', 'safe', 'small', got False"),
        ({"overrides": {"0.weight": "topk"}}, "overrides['0.weight'] must be a method that is right on average"),
        ({"decisions": "yes"}, "decisions must be what decisions() of a state returned"),
        ({"decisions": [{"step": 1, "choices": [{"method": "qsgd"}]}]}, "a decision must be a mapping"),
        (
            {"decisions": [{"step": 1, "choices": [{"method": "qsgd", "strategy": "allgather"}]}]},
            "decisions must be what decisions() of a state returned",
        ),
        (
            {"decisions": [{"step": 1, "choices": [{"method": "qsgd", "strategy": "allreduce", "params": []}]}]},
            "strategy 'allreduce' adds payloads",
        ),
        (
            {"decisions": [{"step": 1, "choices": [{"method": "qsgd", "strategy": "allgather", "params": ["x"]}]}]},
            "decisions must be of this model's parameters, got 'x'",
        ),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], said: str) -> None:
    for text in run_ranks(2, jobs.refused, options):
        assert said in text

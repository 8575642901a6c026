"""Each task's measure on answers whose quality is known."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from gradwire_lab.experiments.tasks._tokens import bigram, unigram
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.tasks.gpt import GPT
from gradwire_lab.experiments.tasks.language import LanguageModelling
from gradwire_lab.experiments.tasks.recommendation import RIVALS, Recommendation
from gradwire_lab.experiments.tasks.segmentation import Reflected, Segmentation, overlaps


class Answers(nn.Module):
    """Says what it was told, call by call."""

    def __init__(self, answers: list[Tensor]) -> None:
        super().__init__()
        self.answers = answers

    def forward(self, x: Tensor) -> Tensor:
        return self.answers.pop(0)


def test_accuracy_is_the_fraction_recognised() -> None:
    task = Classification()
    labels = task.data.test.targets
    right = nn.functional.one_hot(labels, 10)
    assert task.quality(Answers([right])) == 1.0
    assert task.quality(Answers([right.roll(1, 1)])) == 0.0
    constant = (labels == 0).float().mean().item()
    assert task.quality(Answers([torch.eye(10)[:1].expand(len(labels), 10)])) == pytest.approx(constant)


def test_perplexity_is_the_vocabulary_if_all_words_are_equally_likely() -> None:
    task = LanguageModelling()

    class Uniform(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(*x.shape, len(task.data.words))

    assert task.quality(Uniform()) == pytest.approx(len(task.data.words), rel=1e-4)


@pytest.mark.parametrize(("mean", "expected"), [(800.0, math.inf), (math.nan, math.nan)])
def test_the_perplexity_of_what_diverged_is_no_failure(mean: float, expected: float) -> None:
    task = LanguageModelling()

    class Diverged(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits = torch.zeros(*x.shape, len(task.data.words))
            logits[..., -1] = mean
            return logits

    assert task.quality(Diverged()) == pytest.approx(expected, nan_ok=True)


def test_windows_follow_each_other_and_targets_are_the_next_words() -> None:
    task = LanguageModelling()
    shares = task.shares(0, 0, 20)
    (x, y), (x2, _) = next(shares), next(shares)
    text = task.data.train
    assert torch.equal(x[0], text[:20])
    assert torch.equal(y[0], text[1:21])
    assert torch.equal(x2[0], text[20:40])
    assert torch.equal(next(task.shares(0, 3, 20))[0][0], text[15_000:15_020])


def test_baselines_of_the_text_are_those_that_were_measured() -> None:
    task = LanguageModelling()
    found = task.baselines()
    assert found["bigram"] < found["unigram"] < len(task.data.words)
    if task.data.digest.startswith("04652ebe8ef3"):
        assert found == {"unigram": pytest.approx(63.1, abs=0.1), "bigram": pytest.approx(38.7, abs=0.1)}


def test_the_loss_of_a_character_is_that_of_its_logits() -> None:
    task = GPT()

    class Sure(nn.Module):
        """Gives the last character of the vocabulary logit 3, and all others 0."""

        def forward(self, x: Tensor) -> Tensor:
            logits = torch.zeros(*x.shape, len(task.data.words))
            logits[..., -1] = 3.0
            return logits

    x, y = task._tested()
    assert x.numel() == 8192
    share = (y == 96).double().mean().item()
    assert task.quality(Sure()) == pytest.approx(math.log(96 + math.exp(3)) - 3 * share, abs=1e-5)
    assert task.shown(2.4224) == "2.422"


def test_windows_of_characters_lie_where_the_epoch_says_and_targets_come_next() -> None:
    task = GPT()
    text, (x, y) = task.data.train, next(task.shares(3, 0, 1))
    places = torch.randint(len(text) - 64, (16,), generator=torch.Generator().manual_seed(3)).tolist()
    assert torch.equal(x, torch.stack([text[place : place + 64] for place in places]))
    assert torch.equal(y, torch.stack([text[place + 1 : place + 65] for place in places]))
    x, y = task._tested()
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(x[1], task.data.test[(len(task.data.test) - 1) // 128 :][:64])


def test_the_last_window_of_a_text_can_be_drawn_and_measured() -> None:
    """A text of one window: there is one place, and the character after it is the last."""
    task = GPT()
    task.data = dataclasses.replace(task.data, train=torch.arange(65), test=torch.arange(65))
    task.adjusted({"batch": 1})
    ((x, y),) = task.shares(0, 0, 1)
    assert (x.tolist(), y.tolist()) == ([list(range(64))], [list(range(1, 65))])
    assert torch.equal(torch.stack(task._tested()), torch.stack([x, y]))


def test_baselines_of_known_texts() -> None:
    train = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    assert unigram(train, 3, torch.tensor([0, 2])) == pytest.approx(-math.log(5 / 11 * 1 / 11) / 2)
    own = 5 / 11
    assert bigram(train, 3, torch.tensor([0]), torch.tensor([1])) == pytest.approx(-math.log((4 + 5 * own) / 9))
    assert bigram(train, 3, torch.tensor([1]), torch.tensor([1])) == pytest.approx(-math.log((0 + 5 * own) / 8))
    found = GPT().baselines()
    assert found["bigram"] < found["unigram"] < math.log(97)


def test_the_held_out_item_must_be_among_the_first_ten() -> None:
    task = Recommendation()

    def hits(place: int) -> float:
        scores = torch.arange(float(RIVALS)).expand(task.data.users, RIVALS)
        held_out = torch.full((task.data.users, 1), RIVALS - place - 0.5)
        return task.quality(
            Answers(
                [
                    torch.cat([scores, held_out], 1).flatten()[: 1 << 16],
                    torch.cat([scores, held_out], 1).flatten()[1 << 16 :],
                ]
            )
        )

    assert hits(9) == 1.0
    assert hits(10) == 0.0


def test_a_tie_counts_against_the_held_out_item() -> None:
    task = Recommendation()
    pairs = task.data.users * (RIVALS + 1)
    assert task.quality(Answers([torch.zeros(1 << 16), torch.zeros(pairs - (1 << 16))])) == 0.0


class NaN(nn.Module):
    """A model that diverged: its outputs are NaN."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return torch.full((len(x), *self.shape), math.nan)


def test_an_answer_that_is_no_number_is_wrong() -> None:
    assert Classification().quality(NaN(10)) == 0.0
    assert Recommendation().quality(NaN()) == 0.0
    side = Segmentation().data.test.inputs.shape[-1]
    assert max(Segmentation().measures(NaN(1, side, side)).values()) < 1e-6


def test_one_number_that_is_none_spoils_its_own_answer_alone() -> None:
    classes = Classification()
    logits = nn.functional.one_hot(classes.data.test.targets, 10).float()
    logits[:72, 9] = math.nan
    assert classes.quality(Answers([logits])) == pytest.approx(1 - 72 / 360)
    choices = Recommendation()
    scores = torch.cat([torch.zeros(choices.data.users, RIVALS), torch.ones(choices.data.users, 1)], 1)
    scores[:500, :9], scores[500:750, :10] = math.nan, math.nan
    assert choices.quality(Answers(list(scores.flatten().split(1 << 16)))) == 0.75
    scores[:250, -1] = math.nan
    assert choices.quality(Answers(list(scores.flatten().split(1 << 16)))) == 0.5


def test_rivals_were_not_chosen_and_do_not_repeat() -> None:
    task = Recommendation()
    contest, chosen = task.contest(), {tuple(pair) for pair in task.data.train.tolist()}
    for user in range(0, task.data.users, 50):
        row = contest[user].tolist()
        assert len(set(row)) == RIVALS + 1
        assert row[-1] == task.data.held_out[user]
        assert not any((user, item) in chosen for item in row)
    assert torch.equal(contest, Recommendation().contest())


def test_negatives_are_drawn_anew_in_every_epoch() -> None:
    task = Recommendation()
    (x, y), (x2, _) = next(task.shares(0, 0, 1)), next(task.shares(1, 0, 1))
    assert y.mean().item() == pytest.approx(0.2, abs=0.04)
    assert not torch.equal(x, x2)
    assert set(map(tuple, x[y == 1].tolist())) <= set(map(tuple, task.data.train.tolist()))


def test_overlaps_of_known_areas() -> None:
    mask, marked = torch.zeros(3, 1, 4, 4), torch.zeros(3, 1, 4, 4)
    mask[0, 0, :2], marked[0, 0, 1:3] = 1, 1
    marked[2, 0, 0, 0] = 1
    found = overlaps(marked, mask)
    assert found["IoU"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["Dice"] == pytest.approx(1 / 2, abs=1e-4)
    assert found["Dice with clean images"] == pytest.approx((0.5 + 1 + 0) / 3, abs=1e-4)


def test_dice_takes_over_where_it_is_small() -> None:
    task, mask = Segmentation(), torch.zeros(2, 1, 8, 8)
    mask[:, :, :4] = 1
    sure = 20 * (2 * mask - 1)
    assert task.loss(sure, mask).item() == pytest.approx(0, abs=1e-3)
    wrong = task.loss(-sure, mask).item()
    assert wrong == pytest.approx(20, rel=1e-3)
    half = torch.zeros_like(mask)
    assert task.loss(half, mask).item() == pytest.approx(math.log(2), rel=1e-4)


def test_image_and_mask_are_reflected_together() -> None:
    task = Segmentation()
    examples = Reflected(task.data.train)
    plain, mirrored = (examples.batch(torch.tensor([5]), torch.tensor([[0.0, 0.0, draw]])) for draw in (0.9, 0.1))
    assert torch.equal(plain[0].flip(3), mirrored[0])
    assert torch.equal(plain[1].flip(3), mirrored[1])
    assert not torch.equal(plain[1], mirrored[1])


def test_logits_of_imagenets_networks_begin_with_the_background() -> None:
    task = Classification("vgg19")
    logits = torch.eye(11)[None, 3]
    task.small = False
    assert task.loss(20 * logits, torch.tensor([2])).item() == pytest.approx(0, abs=1e-3)
    assert task.loss(20 * logits, torch.tensor([3])).item() == pytest.approx(20, rel=1e-3)

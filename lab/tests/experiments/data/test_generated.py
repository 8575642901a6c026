"""The data that needs no download: it is what it says, and the same every time."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import torch

from gradwire_lab.experiments.data import interactions, surfaces
from gradwire_lab.experiments.data.base import CHARACTERS, numbers, vocabulary
from gradwire_lab.experiments.data.stdlib import load_stdlib, load_stdlib_characters
from gradwire_lab.experiments.data.topics import load_topics


def test_the_standard_library_is_read_as_words() -> None:
    text = load_stdlib(words=50, train=5000, others=500)
    assert (len(text.train), len(text.valid), len(text.test), len(text.words)) == (5000, 500, 500, 50)
    assert text.words[0] == "<unk>"
    assert {"N", "<eos>", "self"} <= set(text.words)
    assert int(text.train.max()) == 49
    counts = torch.bincount(text.train, minlength=50)[1:]
    assert torch.equal(counts, counts.sort(descending=True).values)
    assert load_stdlib(words=50, train=5000, others=500).digest == text.digest
    assert load_stdlib(words=50, train=60_000, others=500).digest != text.digest


def test_the_standard_library_is_read_as_characters() -> None:
    text = load_stdlib_characters(train=30_000, others=500)
    first = Path(sysconfig.get_paths()["stdlib"], "__future__.py").read_text()
    assert (len(text.train), len(text.valid), len(text.test), len(text.words)) == (30_000, 500, 500, 97)
    assert "".join(text.words[token] for token in text.train[: len(first)]) == first
    assert text.digest == load_stdlib_characters(train=30_000, others=500).digest
    assert text.digest != load_stdlib_characters(train=90_000, others=500).digest


def test_a_character_that_is_not_in_the_vocabulary_is_another_one() -> None:
    assert len(set(CHARACTERS)) == 97
    assert {"\n", " ", "~", "a", "Z", "0"} < set(CHARACTERS)
    assert numbers("a\té~", CHARACTERS).tolist() == [CHARACTERS.index("a"), 0, 0, 96]


def test_no_paragraph_of_the_topics_is_both_trained_and_tested_on() -> None:
    text = load_topics()
    trained, tested = (
        "".join(text.words[token] for token in part).split("\n\n")[:-1] for part in (text.train, text.test)
    )
    assert len(trained) > len(tested) > 50
    assert not {each for each in tested if len(each) > 60} & set(trained)
    assert len(text.valid) == 0


def test_equally_frequent_words_are_in_the_order_of_their_spelling() -> None:
    assert vocabulary(["b", "c", "a", "c"], 3) == ("c", "a", "b")


def test_choices_are_those_of_the_baselines() -> None:
    data = interactions.generate()
    assert (data.users, data.items, tuple(data.train.shape), tuple(data.held_out.shape)) == (
        1000,
        500,
        (31_518, 2),
        (1000,),
    )
    counts = torch.bincount(data.train[:, 0])
    assert (int(counts.min()), int(counts.max())) == (19, 119)
    popularity = torch.bincount(data.train[:, 1]).sort(descending=True).values
    assert 0.25 < popularity[:50].sum() / len(data.train) < 0.4
    assert len(data.train.unique(dim=0)) == len(data.train)
    held = torch.stack([torch.arange(1000), data.held_out], 1)
    assert len(torch.cat([data.train, held]).unique(dim=0)) == len(data.train) + 1000
    assert torch.equal(interactions.generate().train, data.train)
    assert not torch.equal(interactions.generate(seed=12).held_out, data.held_out)


def test_surfaces_have_one_defect_each_or_none() -> None:
    images, masks = surfaces.pictures(20, 64, seed=5)
    clean, nothing = surfaces.pictures(5, 64, seed=6, defective=False)
    assert images.shape == masks.shape == (20, 64, 64)
    assert set(np.unique(masks)) == {0, 255}
    areas = (masks > 0).mean((1, 2))
    assert areas.min() > 0.01
    assert areas.max() < 0.2
    assert not nothing.any()
    assert 20 < clean.std() < 32
    assert abs(clean.mean() - 128) < 5


def test_the_texture_has_its_direction_and_frequency() -> None:
    clean, _ = surfaces.pictures(8, 64, seed=6, defective=False)
    power = (np.abs(np.fft.fft2(clean - clean.mean((1, 2), keepdims=True))) ** 2).mean(0)
    y, x = np.unravel_index(power.argmax(), power.shape)
    v, u = np.fft.fftfreq(64)[[y, x]]
    along, across = abs(u * np.cos(0.5) + v * np.sin(0.5)), abs(v * np.cos(0.5) - u * np.sin(0.5))
    assert abs(along - 0.16) < 0.06
    assert across < 0.06


def test_surfaces_are_standardised_over_the_training_set() -> None:
    data = surfaces.generate(side=32)
    assert abs(float(data.train.inputs.mean())) < 1e-3
    assert abs(float(data.train.inputs.std()) - 1) < 1e-2
    assert set(data.test.targets.unique().tolist()) == {0.0, 1.0}
    assert not data.test.targets[40:].any()
    assert data.test.targets[:40].amax((1, 2, 3)).all()

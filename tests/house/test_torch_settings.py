"""Each setting of torch's wrappers and optimizers is in the tables, and each verdict has a test."""

from __future__ import annotations

import pytest

from tests.house.source import ROOT
from tests.house.torch_settings import OPTIMIZERS, TABLES, settings_of, versioned
from tests.integrations.torch_settings_jobs import optimizer_classes


@pytest.mark.parametrize("marker", TABLES)
def test_a_setting_of_a_wrapper_is_read_or_refused(marker: str) -> None:
    rows, wrapper = TABLES[marker]
    assert settings_of(wrapper) <= set(rows)
    assert {name for name, each in rows.items() if not each.since} <= settings_of(wrapper)


@pytest.mark.parametrize("marker", TABLES)
def test_every_verdict_has_a_test(marker: str) -> None:
    for name, each in TABLES[marker][0].items():
        file, _, test = each.test.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_a_setting_of_an_optimizer_is_in_the_table() -> None:
    classes = optimizer_classes()
    assert set(classes) == set(OPTIMIZERS)
    for name, cls in classes.items():
        known, rows = settings_of(cls) - {"params"}, dict(map(versioned, OPTIMIZERS[name].settings.split()))
        assert known <= set(rows), name
        assert {one for one, version in rows.items() if not version} <= known, name

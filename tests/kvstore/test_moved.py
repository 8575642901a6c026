"""Modules that were in the folder itself are found where they are now."""

import importlib
import sys

import pytest

import gradwire
import gradwire.bench
import gradwire.kvstore
from gradwire._moved import Moved

PLACES = {
    "callback": "mxnet.callback",
    "lr_scheduler": "mxnet.lr_scheduler",
    "trainer": "mxnet.trainer",
    "optimizers": "protocol.updater",
    "core": "server.core",
    "keygen": "launch.keygen",
}


@pytest.mark.parametrize("name", PLACES)
def test_an_old_name_leads_to_the_module_with_a_warning(name, monkeypatch):
    old, new = f"gradwire.kvstore.{name}", f"gradwire.kvstore.{PLACES[name]}"
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__spec__.name == new


def test_a_renamed_module_is_found_by_its_former_names(monkeypatch):
    for package in ("gradwire.bench", "gradwire.experiments"):
        monkeypatch.delitem(sys.modules, f"{package}.method", raising=False)
        with pytest.warns(DeprecationWarning, match="method is gradwire.experiments.training_method now"):
            module = importlib.import_module(f"{package}.method")
        assert module is importlib.import_module("gradwire.experiments.training_method")


@pytest.mark.parametrize(
    ("name", "place"), [("settings", "exchange.settings"), ("saved", "exchange.checkpoint"), ("undo", "exchange.undo")]
)
def test_a_module_of_the_exchange_is_found_by_its_former_name(name, place, monkeypatch):
    monkeypatch.delitem(sys.modules, f"gradwire.{name}", raising=False)
    monkeypatch.delattr(gradwire, name, raising=False)
    with pytest.warns(DeprecationWarning, match=f"gradwire.{name} is gradwire.{place} now"):
        module = importlib.import_module(f"gradwire.{name}")
    assert module is importlib.import_module(f"gradwire.{place}")
    with pytest.raises(ModuleNotFoundError, match=r"gradwire\.nothing"):
        importlib.import_module("gradwire.nothing")


def test_a_name_that_never_was_there_is_no_module():
    with pytest.raises(ModuleNotFoundError, match=r"gradwire\.kvstore\.nothing"):
        importlib.import_module("gradwire.kvstore.nothing")


def test_an_old_name_is_an_attribute_too(monkeypatch):
    monkeypatch.delitem(sys.modules, "gradwire.kvstore.lr_scheduler", raising=False)
    monkeypatch.delattr(gradwire.kvstore, "lr_scheduler", raising=False)
    with pytest.warns(DeprecationWarning, match="lr_scheduler is gradwire.kvstore.mxnet.lr_scheduler now"):
        scheduler = gradwire.kvstore.lr_scheduler.FactorScheduler
    assert scheduler is importlib.import_module("gradwire.kvstore.mxnet.lr_scheduler").FactorScheduler
    with pytest.raises(AttributeError, match="nothing"):
        gradwire.kvstore.nothing  # noqa: B018


def test_an_old_name_runs_as_a_program():
    """``python -m`` of it."""
    name = "gradwire.bench.netlab._watchdog"
    specs = [finder.find_spec(name, None) for finder in sys.meta_path if isinstance(finder, Moved)]
    (spec,) = [spec for spec in specs if spec is not None]
    code = spec.loader.get_code(name)
    assert code.co_filename == importlib.import_module("gradwire.netlab._watchdog").__file__

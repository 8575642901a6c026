"""The packages that are to be installed for an extra, for each way in which gradwire itself can have been installed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire import _extras
from gradwire._extras import install, laboratory, source


class Installed:
    """A distribution whose metadata hold this direct_url.json."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self, _name: str) -> str | None:
        return self.text


def said(
    monkeypatch: pytest.MonkeyPatch, found: object, told: Callable[[], str] = lambda: install("kvstore")
) -> list[str]:
    made = Installed(None if found is None else json.dumps(found))
    monkeypatch.setattr(_extras.metadata, "distribution", lambda _name: made)
    source.cache_clear()
    try:
        return shlex.split(told())
    finally:
        source.cache_clear()


@pytest.mark.parametrize("name", ["clone", "a clone's folder", "mod\N{LATIN SMALL LETTER E WITH GRAVE}le"])
def test_a_clone_is_named_by_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    plain = {"url": folder.as_uri(), "dir_info": {}}
    assert said(monkeypatch, plain) == ["pip", "install", f"{folder}[kvstore]"]
    edited = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    assert said(monkeypatch, edited) == ["pip", "install", "-e", f"{folder}[kvstore]"]
    folder.rmdir()
    assert said(monkeypatch, edited) == ["pip", "install", "gradwire[kvstore]"]


def test_an_index_is_asked_for_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, None) == ["pip", "install", "gradwire[kvstore]"]


def test_a_repository_is_named_with_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"url": "https://example.org/gradwire.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}}
    expected = "gradwire[kvstore] @ git+https://example.org/gradwire.git@0123abc"
    assert said(monkeypatch, found) == ["pip", "install", expected]


def test_an_archive_is_named_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"url": "https://example.org/gradwire.tar.gz", "archive_info": {}, "subdirectory": "python"}
    expected = "gradwire[kvstore] @ https://example.org/gradwire.tar.gz#subdirectory=python"
    assert said(monkeypatch, found) == ["pip", "install", expected]


def test_a_folder_may_have_an_at_in_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "a @ b"
    folder.mkdir()
    assert said(monkeypatch, {"url": folder.as_uri(), "dir_info": {}}) == ["pip", "install", f"{folder}[kvstore]"]


@pytest.mark.parametrize(
    "found", [[], {"url": None}, {"url": "file:///tmp", "dir_info": None}, {"url": "git://x", "vcs_info": {}}]
)
def test_a_file_that_is_not_as_it_should_be_gives_the_name(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    assert said(monkeypatch, found) == ["pip", "install", "gradwire[kvstore]"]


def test_a_folder_that_this_user_may_not_read_gives_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refused)
    found = {"url": "file:///root/gradwire", "dir_info": {}}
    assert said(monkeypatch, found) == [
        "pip",
        "install",
        "gradwire[kvstore]",
    ]


def test_the_laboratory_comes_from_where_gradwire_came_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    (clone / "lab").mkdir(parents=True)
    plain = {"url": clone.as_uri(), "dir_info": {}}
    assert said(monkeypatch, plain, laboratory) == ["pip", "install", f"{clone}/lab"]
    edited = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    assert said(monkeypatch, edited, laboratory) == ["pip", "install", "-e", f"{clone}/lab"]
    repository = {"url": "https://example.org/gradwire.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}}
    expected = "gradwire-lab @ git+https://example.org/gradwire.git@0123abc#subdirectory=lab"
    assert said(monkeypatch, repository, laboratory) == ["pip", "install", expected]
    archive = {"url": "https://example.org/gradwire.tar.gz", "archive_info": {}}
    for found in (None, archive):
        assert said(monkeypatch, found, laboratory) == ["pip", "install", "gradwire-lab"]

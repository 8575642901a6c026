"""The messages on the page of troubleshooting are those that users get: each mistake is made."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from gradwire.testing.processes import run_ranks
from tests.docs.mistakes import ALONE, APART, TOGETHER, make_all
from tests.house.source import ROOT
from tests.once import once

SECTION = re.compile(r'^<a id="([\w-]+)"></a>\n\n## (.+?)(?=^<a id=|\Z)', re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, list[str]]:
    """The messages that each section quotes, by the section's id."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return {found[1]: QUOTED.findall(found[2]) for found in SECTION.finditer(page)}


def check(section: str, told: str) -> None:
    """Each message of a section was told; "…" on the page stands for a part that differs from run to run."""
    plain = " ".join(told.split())
    for message in sections()[section]:
        parts = [re.escape(part.strip()) for part in " ".join(message.split()).split("…")]
        assert re.search(r"\s*.*?\s*".join(parts), plain), (
            f"{section} quotes {message!r}, and the user is told {told!r}"
        )


def test_every_section_has_its_mistake() -> None:
    assert set(sections()) == {*TOGETHER, *APART, *ALONE}
    assert all(sections().values()), "a section quotes what the user sees"


def test_mistakes_that_leave_the_group_whole() -> None:
    first, second = run_ranks(2, make_all, timeout=110)
    for name in TOGETHER:
        check(name, f"{first[name]}\n{second[name]}")


@once
def apart() -> dict[str, Future[list[str]]]:
    """All of them beside each other: they wait for a rank."""
    with ThreadPoolExecutor(len(APART)) as pool:
        return {name: pool.submit(run_ranks, 2, mistake, timeout=110) for name, mistake in APART.items()}


@pytest.mark.parametrize("name", APART)
def test_mistakes_that_lose_a_rank(name: str) -> None:
    check(name, apart()[name].result()[0])


@pytest.mark.parametrize("name", ALONE)
def test_mistakes_of_one_process(name: str) -> None:
    check(name, ALONE[name]())

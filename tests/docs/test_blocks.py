"""Every code block of the documentation runs, or says to its readers why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from gradwire.testing.processes import run_ranks
from tests.docs import stage
from tests.docs.blocks import blocks, indented, of, pages, parse, write_files

FATES = {"diff", "file", "fragment", "script", "shell", "skipped", "text"}
WITH_FRAGMENTS = [page for page in pages() if any(block.fate == "fragment" for block in blocks(page))]


@pytest.mark.parametrize("page", pages())
def test_every_block_runs_or_says_why_not(page: str) -> None:
    assert not {str(block): block.fate for block in blocks(page) if block.fate not in FATES}
    compiled = [block for block in blocks(page) if block.language == "python" or block.title.endswith(".py")]
    for block in compiled:
        compile(block.code, str(block), "exec")
    if page.startswith("docs/"):
        assert not list(indented(page)), f"{page}: fence the blocks that begin in these lines, as sh, python or text"


@pytest.mark.parametrize("page", WITH_FRAGMENTS)
def test_fragments(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    codes = [(str(block), block.code) for block in blocks(page) if block.fate == "fragment"]
    run_ranks(2, stage.run_fragments, page, codes, str(tmp_path))


@pytest.mark.parametrize("block", of("script"), ids=str)
def test_scripts(block, tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    write_files(block.page, tmp_path)
    printed = run_ranks(2, stage.run_script, store.port, str(block), block.code, str(tmp_path))
    assert all(text.strip() for text in printed), "a script shows something"


def test_blocks_are_found_with_their_titles() -> None:
    text = 'a\n\n```sh title="needs root"\nls\n```\n\n```python\nx = 1\n```\n'
    skipped, runs = parse("page", text)
    assert (skipped.line, skipped.code, skipped.fate, runs.fate) == (3, "ls\n", "skipped", "fragment")


@pytest.mark.parametrize("fence", ["```python norun", "```sh {.x}", '``` title="x"y'])
def test_a_fence_that_means_nothing_is_refused(fence: str) -> None:
    with pytest.raises(AssertionError, match="page:1"):
        list(parse("page", f"{fence}\nx\n```\n"))


@pytest.mark.parametrize("fence", ["```js", '```sh title="later"', '```python title="needs"'])
def test_a_block_without_a_language_or_a_reason_is_refused(fence: str) -> None:
    (block,) = parse("page", f"{fence}\nx\n```\n")
    assert block.fate not in FATES


def test_a_fence_without_an_end_is_refused() -> None:
    with pytest.raises(AssertionError, match="not closed"):
        list(parse("page", "```python\nx = 1\n"))

"""Pages of the site besides those of docs/: the reference, and pages of the repository.

MkDocs calls the functions with ``on_`` in their names; mkdocs.yml says where this file is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gradwire import registry

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "gradwire"

ADOPTED = {
    "CONTRIBUTING.md": "contributing.md",
    "GOVERNANCE.md": "governance.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository that are pages of the site, too."""

FOLDERS = {"compressors": "Compressors", "memory": "Memories", "strategies": "Strategies"}
"""Kinds of which each file is one variant: the reference has a page for each."""

MODULES = {
    "optim": "Optimizers",
    "kvstore": "KVStore",
    "schedules": "Schedules",
    "helpers": "Helpers",
    "wire": "Messages",
    "errors": "Errors",
    "vocabulary": "Vocabulary",
}
"""Modules with a page of the reference: what they offer."""

FRAMEWORKS = ("lightning", "accelerate", "transformers", "tensorflow", "jax", "tensorboard", "wandb")
"""Modules of ``gradwire.frontends.adapters`` for other packages, all on one page."""

TESTING = ("contract", "bounds", "feedback", "inputs", "ranks", "processes", "memory", "sync")
"""Modules of ``gradwire.testing``, all on one page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for page, text in generated():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """A link that leaves docs/ leads to the page that adopted the file, or becomes its text where there is none."""
    up = "../" * page.file.src_uri.count("/")
    for file, adopted in ADOPTED.items():
        markdown = markdown.replace(f"]({up}../{file})", f"]({up}{adopted})")
    return re.sub(rf"\[([^\]]*)\]\({re.escape(up)}\.\./[^)]*\)", r"\1", markdown)


def generated() -> Iterator[tuple[str, str]]:
    """(page, Markdown) of every page that no file of docs/ holds."""
    for file, page in ADOPTED.items():
        yield page, linked((ROOT / file).read_text(encoding="utf-8").replace("](docs/", "]("))
    own = [name for name in offered("") if not any((PACKAGE / form).exists() for form in (name, f"{name}.py"))]
    yield "api/index.md", described("gradwire", own)
    for folder, title in FOLDERS.items():
        yield f"api/{folder}.md", variants(folder, title)
    for module, title in MODULES.items():
        yield f"api/{module}.md", described(title, offered(module))
    yield "api/frameworks.md", together("Frameworks", "frontends.adapters", FRAMEWORKS)
    yield "api/testing.md", together("Testing", "testing", TESTING)


def linked(text: str) -> str:
    """Let an adopted file's links lead to the pages of the others; a link to a file that no page has is its text."""
    for file, page in ADOPTED.items():
        text = text.replace(f"]({file})", f"]({page})")
    return re.sub(r"\[([^\]]*)\]\((?:LICENSE|\.github/[^)]*)\)", r"\1", text)


def variants(folder: str, title: str) -> str:
    """The contract with all its members, then each variant, also of a family: its members are those of the contract."""
    shared = [f"{folder}.{name}" for name in ("base", "simple") if (PACKAGE / folder / f"{name}.py").is_file()]
    methods = [module.removeprefix("gradwire.") for _, module in sorted(registry.places(folder).items())]
    modules = [*shared, *methods]
    contract, *rest = map(offered, modules)
    alone = "".join(f"\n::: gradwire.{name}\n    options:\n      members: false\n" for names in rest for name in names)
    return described(title, contract) + alone


def together(title: str, folder: str, modules: tuple[str, ...]) -> str:
    """One page for what several modules of a folder offer."""
    return described(title, [name for each in modules for name in offered(f"{folder}.{each}")])


def described(title: str, objects: list[str]) -> str:
    """A page of the reference, for mkdocstrings."""
    return f"# {title}\n" + "".join(f"\n::: gradwire.{name}\n" for name in objects)


def offered(module: str) -> list[str]:
    """``__all__`` of a module, as dotted names below gradwire."""
    path = PACKAGE.joinpath(*module.split(".")) if module else PACKAGE
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [f"{module}.{name}" if module else name for name in ast.literal_eval(node.value)]
    return []

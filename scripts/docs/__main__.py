"""Build the documents' site into ``build/docs/site``; ``make docs`` runs this.

Pages are copied to the paths that they have in the repository, with every file that they link, so that a link works
on the site as it does in the repository. A linked source file becomes a page that shows its code.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "docs" / "pages"
WRITTEN = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "experiments/*.md")
PUBLIC = re.findall(r"docs/reference/(coterie[\w.]*)\.md", (ROOT / "mkdocs.yml").read_text())
"""Modules of the reference. The navigation has a page for each, with the names of its ``__all__``."""
LINK = re.compile(r"(?<=\]\()(?!https?:)[^)#\s]+")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".ipynb": "json"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def main() -> None:
    """Write the pages and build the site. Exit with status 1 on a warning or an undocumented name."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for pattern in WRITTEN:
        for path in ROOT.glob(pattern):
            copy(path)
    for asset in ("site.css", "iframe-worker.js"):
        shutil.copy(Path(__file__).with_name(asset), PAGES)
    if undocumented := [name for module in PUBLIC for name in write_reference(module)]:
        sys.exit(f"public names without a docstring: {', '.join(undocumented)}")
    # With --quiet MkDocs would not count warnings.
    build = [sys.executable, "-m", "mkdocs", "build"]
    # Otherwise the theme prints that Zensical succeeds it. Zensical builds this configuration too, but accepts pages
    # that the navigation lacks, and missing images.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    sys.exit(subprocess.run(build, cwd=ROOT, env=environment).returncode)


def copy(path: Path) -> None:
    """Copy a file or folder, and everything that it links, to the pages."""
    target = PAGES / page_name(path.relative_to(ROOT).as_posix())
    # Pages link each other in circles.
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir() if file.suffix in LANGUAGES)
        write_page(target, f"# {path.name}\n\n" + "\n".join(f"* [{n}]({n})" for n in names), path)
    elif path.suffix == ".md":
        write_page(target, path.read_text(encoding="utf-8"), path.parent)
    elif path.suffix in LANGUAGES:
        code = path.read_text(encoding="utf-8")
        block = f"`````{LANGUAGES[path.suffix]}\n{code}\n`````"
        target.write_text(f"{UNSEARCHED}# {path.name}\n\n{block}\n", encoding="utf-8")
    else:
        shutil.copy(path, target)


def write_page(target: Path, text: str, folder: Path) -> None:
    """Write a page whose links are relative to a folder of the repository, and copy the files that it links."""

    def follow(link: re.Match[str]) -> str:
        # MkDocs reports a link to a file that does not exist.
        if (linked := (folder / link[0]).resolve()).exists():
            copy(linked)
        return page_name(link[0])

    target.touch()
    target.write_text(LINK.sub(follow, text), encoding="utf-8")


def page_name(path: str) -> str:
    """Return the path of the page that shows a file or folder."""
    if (ROOT / path).suffix in LANGUAGES:
        return f"{path}.md"
    return path if "." in path.rpartition("/")[2] else f"{path}/index.md"


def write_reference(name: str) -> list[str]:
    """Write the page of a public module. Return exported names, and methods of classes, without a docstring."""
    docstrings = griffe.load_extensions(
        "griffe_inherited_docstrings", Path(__file__).with_name("docstrings.py")
    )
    module = griffe.load(name, search_paths=[ROOT / "src"], extensions=docstrings)
    exported = {str(export): module[str(export)] for export in sorted(module.exports)}
    lines, undocumented = [f"# {name}", "", "| | |", "|---|---|"], list[str]()
    for export, documented in exported.items():
        summary = documented.docstring.value.partition("\n\n")[0] if documented.docstring else ""
        lines.append(f"| [`{export}`][{name}.{export}] | {summary.replace(chr(10), ' ')} |")
        members = documented.all_members.values() if documented.is_class else ()
        methods = [member for member in members if is_public_method(member)]
        undocumented += [each.path for each in (documented, *methods) if not each.has_docstring]
    lines += ["", *(f"::: {name}.{export}\n" for export in exported)]
    target = PAGES / "docs" / "reference" / f"{name}.md"
    target.write_text("\n".join(lines), encoding="utf-8")
    return undocumented


def is_public_method(member: griffe.Object | griffe.Alias) -> bool:
    """Return True for methods and properties whose name has no underscore in front."""
    return member.name[0] != "_" and (member.is_function or "property" in member.labels)


if __name__ == "__main__":
    main()

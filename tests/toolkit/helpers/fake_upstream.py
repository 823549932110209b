"""A tiny stand-in for PyTorch's repository, with patches of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmsbuild import resources
from lmsbuild.native.compile import RUNTIME_SOURCES
from lmsbuild.registry import Tag, Verified

VERSION = "9.8.7"
NAME = f"v{VERSION}"
MEMORY = "torch/cuda/memory.py"


@dataclass(frozen=True)
class Upstream:
    """The stand-in: its checkout, the patches for it, and the registry's entry."""

    checkout: Path
    patches: Path
    tag: Tag

    @property
    def hooks(self) -> Path:
        return self.patches / self.tag.hooks


def git(where: Path, *arguments: str, **environment: str) -> str:
    """Output of git, run as a user would, but with no configuration of anyone's."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    clean |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        # A gc in the background would change a checkout while a test compares or removes it.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "gc.auto",
        "GIT_CONFIG_VALUE_0": "0",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "C",
        "GIT_COMMITTER_EMAIL": "c@example.org",
    }
    done = subprocess.run(
        ["git", *arguments],
        cwd=where,
        env=clean | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def converting_clone(upstream: Upstream, folder: Path, autocrlf: str) -> Path:
    """A clone with git's core.autocrlf set to this; returns the folder."""
    settings = ("--quiet", "--config", f"core.autocrlf={autocrlf}")
    git(folder.parent, "clone", *settings, str(upstream.checkout), str(folder))
    return folder


def commit(where: Path, message: str) -> str:
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--message", message)
    return git(where, "rev-parse", "HEAD")


def snapshot(where: Path) -> dict[str, bytes]:
    """Every file of a work tree except git's own, and its state as git sees it."""
    files = {
        str(path.relative_to(where)): path.read_bytes()
        for path in sorted(where.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(where).parts
    }
    files["HEAD"] = git(where, "rev-parse", "HEAD").encode()
    files["status"] = git(where, "status", "--porcelain").encode()
    files["in .git"] = repr(sorted(os.listdir(where / ".git"))).encode()
    return files


def tree(where: Path) -> str:
    return git(where, "rev-parse", "HEAD^{tree}")


def write_patches(patches: Path, tag: Tag, author: Path, runtime: dict[str, str]) -> None:
    """The last commit of ``author`` as the tag's only hook, and the runtime's files."""
    hooks = patches / tag.hooks
    output = f"--output-directory={hooks}"
    git(author, "format-patch", "--quiet", "--full-index", output, "HEAD~1")
    names = sorted(path.name for path in hooks.glob("*.patch"))
    (hooks / "series").write_text("".join(f"{name}\n" for name in names))
    for name, text in runtime.items():
        path = patches / "runtime" / RUNTIME_SOURCES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_registry(patches: Path, tags: list[Tag]) -> None:
    """A tags.toml with ``tags``; the real schema goes beside it."""
    rows = ['[upstream]\nurl = "https://upstream.invalid/pytorch"\n']
    for tag in tags:
        rows.append(
            f"[[tag]]\n"
            f'name = "{tag.name}"\n'
            f'git_commit = "{tag.git_commit}"\n'
            f'hooks = "{tag.hooks}"\n'
            f"pythons = {json.dumps(tag.pythons)}\n"
            f"architectures = {json.dumps(tag.architectures)}\n"
            f"strategies = {json.dumps(tag.strategies)}\n"
            f'cuda = "{tag.cuda}"\n'
            f"header_packages = {json.dumps(tag.header_packages)}\n"
            f"cxx_standard = {tag.cxx_standard}\n"
            f"cxx11_abi = {tag.cxx11_abi}\n"
            f'manylinux = "{tag.manylinux}"\n'
            + (f'variant = "{tag.variant}"\n' if tag.variant else "")
            + f"verified = {{ hooks_wheel = {json.dumps(tag.verified.hooks_wheel)},"
            f" hooks_source = {json.dumps(tag.verified.hooks_source)},"
            f" simulated = {json.dumps(tag.verified.simulated)},"
            f' gpu = "{tag.verified.gpu}" }}\n'
        )
    (patches / "tags.toml").write_text("\n".join(rows), encoding="utf-8")
    shutil.copy(resources.patches_dir() / "tags.schema.json", patches)


def make_tag(name: str = NAME, *, git_commit: str = "0" * 40, **verified: object) -> Tag:
    proof = {"hooks_wheel": False, "hooks_source": False, "simulated": False, "gpu": ""}
    return Tag(
        name=name,
        git_commit=git_commit,
        hooks=name,
        pythons=("3.11", "3.12"),
        architectures=("x86_64",),
        strategies=("graft",),
        cuda="13.0",
        header_packages=("nvidia-cuda-runtime==13.0.96",),
        cxx_standard=17,
        cxx11_abi=1,
        manylinux="manylinux_2_28",
        verified=Verified(**{**proof, **verified}),  # type: ignore[arg-type]
    )


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    checkout = tmp_path / "upstream"
    (checkout / "torch/cuda").mkdir(parents=True)
    (checkout / "version.txt").write_text(f"{VERSION}a0\n")
    (checkout / ".gitignore").write_text("*.log\nbuild/\n")
    (checkout / "torch/cuda/__init__.py").write_text("from .memory import *\n")
    lines = [f"def function_{n}():\n    return {n}\n\n\n" for n in range(20)]
    (checkout / MEMORY).write_text("".join(lines))
    git(checkout, "init", "--quiet", "--initial-branch=main")
    base = commit(checkout, "base")
    git(checkout, "tag", NAME)

    patches = tmp_path / "patches"
    sources = patches / "runtime/torch/csrc/cuda/lms"
    sources.mkdir(parents=True)
    (sources / "lms.cpp").write_text("// runs  \nint lms = 1;\t\n\n")
    (sources / "empty.h").write_text("")
    (patches / "runtime/torch/cuda").mkdir(parents=True)
    (patches / "runtime/torch/cuda/lms.py").write_text('"""Größe."""')

    author = tmp_path / "author"
    git(tmp_path, "clone", "--quiet", str(checkout), str(author))
    _edit(author / MEMORY, "return 3\n", "return 33\n")
    _edit(author / MEMORY, "return 15\n", "return 1515\n")
    commit(author, "cuda: change two functions\n\nBecause a test wants them changed: größer.")
    # The second hook changes what the first one made.
    _edit(author / MEMORY, "return 33\n", "return 333\n")
    commit(author, "cuda: change one of them again\n\nOnce was not enough.")
    with (author / "torch/cuda/__init__.py").open("a") as file:
        file.write("from .lms import *\n")
    commit(author, "cuda: import the new module\n\nUsers look for it there.")
    hooks = patches / NAME
    git(author, "format-patch", "--quiet", "--full-index", f"--output-directory={hooks}", NAME)
    names = sorted(path.name for path in hooks.glob("*.patch"))
    (hooks / "series").write_text("# in this order\n" + "\n".join(names) + "\n")
    tag = make_tag(git_commit=base)
    write_registry(patches, [tag])
    return Upstream(checkout=checkout, patches=patches, tag=tag)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))

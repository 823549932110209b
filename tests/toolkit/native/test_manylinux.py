"""The manylinux policies."""

from __future__ import annotations

import itertools

import pytest

from lmsbuild.architecture import architectures
from lmsbuild.native.manylinux import load_policy, policy_names


@pytest.mark.parametrize("machine", architectures())
def test_policies_get_newer_symbol_for_symbol(machine: str) -> None:
    policies = [load_policy(name, machine).limits for name in policy_names()]
    for older, newer in itertools.pairwise(policies):
        assert set(older) == {"GLIBC", "GLIBCXX", "CXXABI", "GCC"}
        assert older["GLIBC"] < newer["GLIBC"]
        assert all(version <= newer[family] for family, version in older.items())

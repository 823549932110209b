"""A registry entry from a wheel: a known tag's own entry must come out."""

from __future__ import annotations

import dataclasses

import pytest

from lmsbuild.port.wheel_facts import tag_of_wheel
from lmsbuild.registry import Tag, load_registry
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.fetch import fetch_newest
from lmsbuild.wheel.base import identify
from toolkit.checkout.test_round_trip import tags, target_of, wheel_of

pytestmark = pytest.mark.network


# No wheel says that a release needs a variant of the runtime: that entry is written by hand.
@pytest.mark.parametrize(
    "tag", [tag for tag in tags() if tag.variant is None], ids=lambda tag: str(tag.name)
)
def test_the_entry_of_a_known_tag(tag: Tag) -> None:
    target = target_of(tag)
    found = tag_of_wheel(
        identify(wheel_of(tag)),
        load_registry(),
        lambda wanted: fetch_newest(wanted, target, default_cache()).path,
    )
    # What was tested, and on which GPU, is in no wheel; nor is who shares hooks with whom.
    known = dataclasses.replace(tag, verified=found.verified, hooks=found.hooks)
    assert found == known

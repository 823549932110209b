"""The bill of materials and the statement of provenance, against the formats' own schemas."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf import json_format
from packageurl import PackageURL

from lmsbuild.cli.main import main
from lmsbuild.errors import ForeignWheelError
from lmsbuild.wheel import attestation, sbom
from lmsbuild.wheel.graft import build_wheel
from lmsbuild.wheel.provenance import Provenance
from lmsbuild.wheel.verify import verify
from toolkit.helpers import small_wheel
from toolkit.helpers.fake_torch import VERSION, FakeTorch, members_of
from toolkit.helpers.fake_torch import fake as fake
from toolkit.helpers.fake_torch import offline as offline
from toolkit.helpers.fake_torch import shared_cache as shared_cache
from toolkit.helpers.formats import checked, invalid
from toolkit.wheel.test_graft import GRAFTED, NEW_INFO, ignore, request_for
from toolkit.wheel.test_provenance import origin as origin

BILL = f"{NEW_INFO}/{sbom.FILE_NAME}"
METADATA = (
    b"Metadata-Version: 2.1\nName: torch\nVersion: 9.1.0+lms1\nLicense: BSD-3-Clause\n\nText\n"
)


@pytest.fixture
def wheel(fake: FakeTorch, offline: None, shared_cache: Path, tmp_path: Path) -> Path:
    request = request_for(fake, tmp_path / "dist", shared_cache, fake.base)
    return build_wheel(request, ignore).path


def test_the_validator_finds_faults() -> None:
    assert invalid(b'{"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"x": 1}}')
    with pytest.raises(json_format.ParseError):
        checked(b'{"_type": "https://in-toto.io/Statement/v1", "surplus": 1}')


def test_a_grafted_wheel_has_a_bill(wheel: Path, fake: FakeTorch) -> None:
    members = members_of(wheel)
    assert invalid(members[BILL]) is None
    bill = json.loads(members[BILL])
    main = bill["metadata"]["component"]
    assert (main["name"], main["version"]) == ("torch", f"{VERSION}+lms1")
    assert PackageURL.from_string(main["purl"]) == PackageURL(
        "pypi", None, "torch", f"{VERSION}+lms1"
    )
    assert "%2Blms1" in main["purl"]
    (base,) = main["pedigree"]["ancestors"]
    assert base["hashes"][0]["content"] == hashlib.sha256(fake.base.read_bytes()).hexdigest()
    assert [patch["diff"]["url"] for patch in main["pedigree"]["patches"]] == [
        "0001-offer-LMS.patch"
    ]
    library, *headers = bill["components"]
    data = members["torch/lib/libtorch_lms.so"]
    assert library["name"] == "torch/lib/libtorch_lms.so"
    assert library["hashes"][0]["content"] == hashlib.sha256(data).hexdigest()
    assert [(h["name"], h["version"], h["scope"]) for h in headers] == [
        ("fake-cuda-headers", "1.0", "excluded")
    ]
    assert bill["dependencies"][0] == {"ref": main["bom-ref"], "dependsOn": [library["bom-ref"]]}
    assert "timestamp" not in bill["metadata"]


def test_the_bill_is_the_same_each_time(origin: Provenance) -> None:
    first = sbom.wheel_sbom(origin, METADATA, {"a.so": b"a"})
    assert invalid(first) is None
    assert sbom.wheel_sbom(origin, METADATA, {"a.so": b"a"}) == first
    other = json.loads(sbom.wheel_sbom(origin, METADATA, {"a.so": b"b"}))
    assert other["serialNumber"] != json.loads(first)["serialNumber"]
    assert json.loads(first)["metadata"]["component"]["licenses"] == [
        {"license": {"name": "BSD-3-Clause"}}
    ]


@pytest.mark.parametrize(
    ("header", "licenses"),
    [
        (b"License-Expression: MIT AND BSD-3-Clause\n", [{"expression": "MIT AND BSD-3-Clause"}]),
        (b"License: first line\n second line\n", []),
        (b"", []),
    ],
)
def test_licenses(origin: Provenance, header: bytes, licenses: list[Any]) -> None:
    metadata = METADATA.replace(b"License: BSD-3-Clause\n", header)
    bill = sbom.wheel_sbom(origin, metadata, {"a.so": b"a"})
    assert invalid(bill) is None
    assert json.loads(bill)["metadata"]["component"]["licenses"] == licenses


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("1.6", "1.5", "its format is ['CycloneDX', '1.5'], not ['CycloneDX', '1.6']"),
        ("9.1.0+lms1", "9.2.0+lms1", "its version is 9.2.0+lms1, not 9.1.0+lms1"),
        ("a" * 64, "f" * 64, f"its base is ['{'f' * 64}'], not ['{'a' * 64}']"),
        ("torch/lib/a.so", "torch/lib/b.so", "torch/lib/b.so is not the file that it describes"),
        ('"components"', '"parts"', "it cannot be read: KeyError('components')"),
    ],
)
def test_faults_in_a_bill(origin: Provenance, old: str, new: str, problem: str) -> None:
    bill = sbom.wheel_sbom(origin, METADATA, {"a.so": b"a"})
    hashes = {"torch/lib/a.so": hashlib.sha256(b"a").hexdigest()}
    assert sbom.problems(bill, "9.1.0+lms1", "a" * 64, hashes) == []
    changed = bill.replace(old.encode(), new.encode())
    assert sbom.problems(changed, "9.1.0+lms1", "a" * 64, hashes) == [problem]


def test_no_bill_is_no_fault(wheel: Path, fake: FakeTorch) -> None:
    from toolkit.wheel.test_verify import rebuilt

    found = {check.name: check for check in verify(wheel)}
    assert (found["SBOM"].detail, found["SBOM"].problems) == (sbom.FILE_NAME, [])
    without = {
        check.name: check for check in verify(rebuilt(wheel, wheel.parents[1], {BILL: None}))
    }
    assert (without["SBOM"].detail, without["SBOM"].problems) == ("none", [])
    wrong = verify(rebuilt(wheel, wheel.parents[1], {BILL: b"{}"}))
    assert [check.name for check in wrong if check.problems] == ["SBOM"]


def test_the_provenance_command(wheel: Path, fake: FakeTorch) -> None:
    run = CliRunner().invoke(main, ["provenance", str(wheel), "--builder", "https://example.org/b"])
    assert run.exit_code == 0, run.output
    path = wheel.with_name(f"{GRAFTED}.provenance.json")
    assert run.stdout == f"{path}\n"
    document = checked(path.read_bytes())
    assert document["subject"] == [
        {"name": GRAFTED, "digest": {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}}
    ]
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    predicate = document["predicate"]
    assert predicate["runDetails"]["builder"]["id"] == "https://example.org/b"
    base, header, toolkit = predicate["buildDefinition"]["resolvedDependencies"]
    # It was given as a file, so nothing is known of an index.
    assert base == {
        "name": fake.base.name,
        "digest": {"sha256": hashlib.sha256(fake.base.read_bytes()).hexdigest()},
    }
    assert header["uri"] == "pkg:pypi/fake-cuda-headers@1.0"
    assert toolkit["name"] == "lmsbuild"


def test_a_statement_claims_what_is_known(origin: Provenance) -> None:
    def dependencies(**changes: Any) -> list[dict[str, Any]]:
        known = dataclasses.replace(origin, **changes)
        document = checked(attestation.statement(Path(GRAFTED), "0" * 64, [known]))
        found = document["predicate"]["buildDefinition"]["resolvedDependencies"]
        assert isinstance(found, list)
        return found

    assert "uri" not in dependencies()[0]
    assert "uri" not in dependencies(base_index_sha256="b" * 64)[0]
    assert dependencies(base_index_sha256="a" * 64)[0]["uri"] == "pkg:pypi/torch@9"
    assert dependencies(commit="f" * 40)[-1]["digest"] == {"gitCommit": "f" * 40}
    assert "digest" not in dependencies(commit="f" * 40 + "-dirty")[-1]
    assert dependencies()[-1]["annotations"] == {"commit": "unknown"}


def test_a_wheel_without_provenance_is_refused(tmp_path: Path) -> None:
    wheel = small_wheel.write(tmp_path)
    with pytest.raises(ForeignWheelError, match="does not say what it was made from"):
        attestation.origins_of(wheel)
    run = CliRunner().invoke(main, ["provenance", str(wheel)])
    assert run.exit_code == ForeignWheelError.exit_code
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]

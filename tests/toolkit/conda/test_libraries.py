"""Which conda packages a wheel's libraries and requirements come to."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from packaging.requirements import Requirement

from lmsbuild.conda.libraries import library_specs, load_mapping, needs_of
from lmsbuild.errors import CondaError
from lmsbuild.resources import data_file
from toolkit.helpers.fake_conda import for_machine
from toolkit.helpers.fake_torch import MACHINE, shared_library

OTHER = "aarch64" if MACHINE == "x86_64" else "x86_64"


def requirements(*lines: str) -> list[Requirement]:
    return [Requirement(line) for line in lines]


def test_the_data_follows_its_schema() -> None:
    schema = json.loads(data_file("conda.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(load_mapping())


def test_every_package_with_versions_has_a_pin() -> None:
    mapping = load_mapping()
    for toolkit in mapping["cuda"].values():
        assert set(toolkit["distributions"].values()) <= mapping["pins"].keys()
        alone = {package for package in toolkit["sonames"].values() if " " not in package}
        assert alone <= mapping["pins"].keys() | toolkit.get("follows", {}).keys()
        for versions in toolkit.get("toolkits", {}).values():
            assert versions.keys() == toolkit["extras"].keys()


@pytest.mark.parametrize(
    ("cuda", "requirement", "spec"),
    [
        ("12.4", "nvidia-cublas-cu12==12.4.5.8", "libcublas >=12.4,<13.0a0"),
        ("12.4", "nvidia-cuda-runtime-cu12==12.4.127", "cuda-cudart >=12.4,<13.0a0"),
        ("12.4", "nvidia-cusparselt-cu12==0.6.2", "cusparselt >=0.6.2,<0.6.3a0"),
        ("13.0", "nvidia-cudnn-cu13==9.19.0.56", "libcudnn >=9.19,<10.0a0"),
        ("13.0", "nvidia-cublas<=13.1.1.3,>=13.1.0.3", "libcublas >=13.1,<14.0a0"),
        ("13.0", "cuda-toolkit[cufft]==13.0.3", "libcufft >=12.0,<13.0a0"),
        ("13.2", "cuda-toolkit[cufile]==13.2.2", "libcufile >=1.17,<2.0a0"),
        ("13.0", "nvidia-nccl-cu13", "nccl"),
    ],
)
def test_pins_come_from_what_the_wheel_requires(cuda: str, requirement: str, spec: str) -> None:
    major = cuda.split(".")[0]
    cuda_version = f"cuda-version >={cuda},<{int(major) + 1}.0a0"
    assert library_specs([], requirements(requirement), cuda) == sorted([cuda_version, spec])


def test_a_library_that_metadata_does_not_name_is_needed_all_the_same() -> None:
    # A wheel that somebody built, for example for ppc64le: METADATA knows nothing of NVIDIA.
    specs = library_specs(
        ["libcudart.so.12", "libcublasLt.so.12", "libstdc++.so.6", "libc.so.6"], [], "12.4"
    )
    assert specs == ["cuda-cudart", "cuda-version >=12.4,<13.0a0", "libcublas", "libstdcxx"]


@pytest.mark.parametrize(
    ("cuda", "sonames", "specs"),
    [
        (
            "10.2",
            ["libcudart.so.10.2", "libcublas.so.10", "libcudnn.so.7"],
            [
                "cuda-version >=10.2,<11.0a0",
                "cudatoolkit >=10.2,<10.3a0",
                "cudnn >=7,<8.0a0",
            ],
        ),
        (
            "11.8",
            ["libcudart.so.11.0", "libnccl.so.2"],
            ["cuda-version >=11.8,<12.0a0", "cudatoolkit >=11.8,<12.0a0", "nccl"],
        ),
    ],
)
def test_before_12_cuda_is_one_package(cuda: str, sonames: list[str], specs: list[str]) -> None:
    assert library_specs(sonames, [], cuda) == specs


def test_a_wheel_that_carries_cuda_itself_needs_no_cuda_package() -> None:
    # PyTorch 1.x: the libraries are in the wheel, under auditwheel's names.
    assert library_specs(["libstdc++.so.6", "libcuda.so.1"], [], "10.1") == ["libstdcxx"]


@pytest.mark.parametrize(
    ("sonames", "lines", "named"),
    [
        (["libcudart.so.12"], [], "libcudart.so.12"),  # the other major version's
        (["libnew.so.1"], [], "libnew.so.1"),
        ([], ["nvidia-new-cu13==1.0"], "nvidia-new-cu13"),
        ([], ["cuda-toolkit[new]==13.0.2"], "cuda-toolkit[new]"),
        ([], ["cuda-toolkit[cublas]==13.9.9"], "cuda-toolkit==13.9.9"),
    ],
)
def test_what_is_not_known_is_named(sonames: list[str], lines: list[str], named: str) -> None:
    with pytest.raises(CondaError) as caught:
        library_specs(sonames, requirements(*lines), "13.0")
    assert named in str(caught.value)
    assert "conda.toml" in str(caught.value)


def test_needs_are_those_of_all_libraries_without_their_own(tmp_path: Path) -> None:
    cudart = tmp_path / "elsewhere" / "libcudart.so.13"
    shared_library(cudart, 'extern "C" int cudaFree(void*) { return 0; }')
    lib = tmp_path / "torch" / "lib"
    shared_library(lib / "libc10.so", "int c10;")
    # As auditwheel renames what it bundles: the file's name is not the soname.
    shared_library(lib / "libgomp.so.1", "int gomp;")
    (lib / "libgomp.so.1").rename(lib / "libgomp-0a1b.so.1")
    shared_library(
        lib / "libc10_cuda.so",
        'extern "C" int cudaFree(void*); int f() { return cudaFree(nullptr); }',
        "-Wl,--no-as-needed,--disable-new-dtags,-rpath,$ORIGIN",
        str(lib / "libc10.so"),
        str(lib / "libgomp-0a1b.so.1"),
        str(cudart),
    )
    (lib / "libtext.so").write_text("INPUT(-lc10)")  # a linker script
    needs = needs_of(tmp_path / "torch", MACHINE)
    assert "libcudart.so.13" in needs.sonames
    assert not {"libc10.so", "libgomp.so.1"} & needs.sonames
    assert needs.glibc >= (2, 2)


def test_a_runpath_that_hides_the_environments_libraries_is_refused(tmp_path: Path) -> None:
    cudart = tmp_path / "libcudart.so.13"
    shared_library(cudart, 'extern "C" int cudaFree(void*) { return 0; }')
    source = 'extern "C" int cudaFree(void*); int f() { return cudaFree(nullptr); }'
    library = tmp_path / "torch" / "libc10_cuda.so"
    dtags = "-Wl,--enable-new-dtags,-rpath,$ORIGIN"
    shared_library(library, source, dtags, str(cudart))
    with pytest.raises(CondaError, match=r"libc10_cuda\.so has a RUNPATH.*libcudart\.so\.13"):
        needs_of(tmp_path / "torch", MACHINE)
    # The runtime's own is loaded when CUDA's are in the process.
    library.rename(tmp_path / "torch" / "libtorch_lms.so")
    assert "libcudart.so.13" in needs_of(tmp_path / "torch", MACHINE).sonames


def test_a_library_for_another_machine_is_refused(tmp_path: Path) -> None:
    data = shared_library(tmp_path / "libc10.so", "int c10;")
    (tmp_path / "libc10.so").write_bytes(for_machine(data, OTHER))
    with pytest.raises(CondaError, match=f"libc10.so is for {OTHER}"):
        needs_of(tmp_path, MACHINE)

"""The state machine of a storage: what is allowed, and that the rest throws."""

from cxx import HERE, compile_cxx, run_cxx

ALLOWED = {
    "resident>paging out",
    "paging out>paged out",
    "paging out>resident",
    "paged out>paging in",
    "paging in>resident",
    "paging in>paging out",
    "paging in>paged out",
    "resident>freed",
    "paging out>freed",
    "paged out>freed",
    "paging in>freed",
}


def test_transitions(tmp_path):
    program = tmp_path / "state"
    compile_cxx(HERE / "state.cpp", program)
    assert set(run_cxx(program).splitlines()) == ALLOWED

"""How fast transfers are taken to be."""

from __future__ import annotations

from conftest import program_of
from cxx import run_cxx

MIB = 1 << 20


program = program_of("rates")


def median(program, *transfers, others=()):
    return found(program, *transfers, others=others)[0]


def found(program, *transfers, others=()):
    words = [str(word) for transfer in transfers for word in transfer]
    words += ["other", *(str(word) for transfer in others for word in transfer)]
    return [float(word) for word in run_cxx(program, *words).split()]


def test_nothing_is_known_at_first(program):
    assert median(program) == 0


def test_the_slowest_and_the_fastest_do_not_count(program):
    assert median(program, (MIB, 1), (MIB, 0.125), (MIB, 0.25)) == 4 * MIB


def test_many_small_transfers_count_as_their_bytes_do(program):
    """Each takes some microseconds more than its bytes need."""
    small = [(MIB, 0.5)] * 20
    assert median(program, (64 * MIB, 16), *small) == 4 * MIB


def test_old_transfers_are_forgotten(program):
    assert median(program, *[(MIB, 1)] * 31, *[(MIB, 2)] * 31) == MIB / 2


def test_many_small_transfers_do_not_make_forget_large_ones(program):
    """When blocks are compressed, only small ones are copied."""
    assert median(program, (256 * MIB, 4), *[(MIB, 1)] * 100) == 64 * MIB


def test_small_transfers_say_little(program):
    """If all blocks are compressed but a small one, that one does not decide."""
    small, large = (16384, 1), (MIB, 0.25)
    assert median(program, small) == 16384
    assert median(program, small, others=[large]) == 4 * MIB
    assert median(program, others=[large]) == 4 * MIB
    assert median(program, (16384, 2**-10), others=[large]) == 16 * MIB
    assert median(program, (MIB, 1), others=[large]) == MIB
    assert median(program, small, (MIB, 1), others=[large]) == MIB


def test_what_is_known_of_large_transfers(program):
    assert found(program, (16384, 1), others=[(MIB, 1)])[1] == 0
    assert found(program, (16384, 1), (MIB, 0.25), others=[(MIB, 1)])[1] == 4 * MIB

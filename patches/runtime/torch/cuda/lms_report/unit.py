r"""Numbers as people read them: sizes in powers of ten, as GPUs' memory is sold."""


def size(count):
    r"""A number of bytes, such as "1.25 GB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= factor:
            return "{:.{}f} {}".format(count / factor, 2 if unit == "GB" else 1, unit)
    return "{:.0f} bytes".format(count)


def axis(most):
    r"""The unit of an axis that ends at ``most`` bytes: its name, and bytes in one of it."""
    return ("GB", 1e9) if most >= 1e9 else ("MB", 1e6)


def time(seconds):
    r"""A duration, such as "12.5 ms"."""
    if abs(seconds) >= 10:
        return "{:.1f} s".format(seconds)
    return "{:.1f} ms".format(seconds * 1e3)


def rate(count):
    r"""Bytes per second, such as "25.1 GB/s"."""
    return "{:.1f} GB/s".format(count / 1e9) if count >= 1e9 else "{:.1f} MB/s".format(count / 1e6)


def factor(value, base):
    r"""How many times as long, such as "1.25 x"."""
    return "{:.2f} x".format(value / base) if base > 0 else ""


def share(part, whole):
    r"""A percentage, such as "12 %"."""
    return "{:.0f} %".format(100.0 * part / whole) if whole > 0 else "0 %"

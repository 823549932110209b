r"""A report as text."""

from .summary import headline, sections


def text(report):
    r"""The report, as lines of text."""
    lines = [headline(report)]
    for section in sections(report):
        lines += ["", section.title]
        rows = ([section.head] if section.head else []) + section.rows
        if all(len(row) == 1 for row in rows):
            lines += ["  - " + row[0] for row in rows]
            continue
        columns = max(map(len, rows))
        widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(columns)]
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            if section.head:
                cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
            else:
                cells += row[1:]
            lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines) + "\n"

r"""A report as one HTML page, which needs no other file and no network."""

import json

from .palette import COMPUTE, DARK, LIGHT, ROLE, STALL
from .phase import PHASES
from .report import COURSES
from .role import ROLES
from .script import SCRIPT
from .style import STYLE
from .summary import headline, meanings, sections
from .unit import factor, size, time
from .view import view

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>Large Model Support: {title}</title>
<style>{colors}{style}</style>
</head>
<body>
<header>
<h1>Large Model Support</h1>
<p class="about">{about}</p>
<p class="headline">{headline}</p>
<dl class="figures">{figures}</dl>
</header>
<main>
<nav class="courses" aria-label="Transfers">{buttons}<span class="hint">Drag over a chart to zoom.
<button id="whole" type="button" hidden>Whole iteration</button></span></nav>
<noscript><p>The charts need JavaScript. The tables below do not.</p></noscript>
{charts}
<section class="tables">{tables}</section>
<section class="notes"><h2>What the words mean</h2>{notes}</section>
</main>
<script id="data" type="application/json">{data}</script>
<script>{script}</script>
</body>
</html>
"""

_CHARTS = (
    (
        "memory",
        "Memory",
        "GPU and host memory over one iteration. Dashed: the GPU memory that the iteration needs "
        "at the same operators without LMS.",
    ),
    (
        "lanes",
        "Computation and transfers",
        "What the GPU and the two directions of the link do at the same time.",
    ),
    (
        "absences",
        "What is out",
        "Each bar is a tensor that is not on the GPU, as high as it has bytes.",
    ),
    (
        "points",
        "Time of an iteration by GPU memory",
        "Predicted for the same link. The line is this report's GPU memory.",
    ),
    (
        "roles",
        "GPU memory at the peak",
        "What the memory is for, with everything on the GPU.",
    ),
)


def page(report):
    r"""The page, as text."""
    return _PAGE.format(
        title=_escaped(size(report.gpu_memory)),
        colors=_colors(),
        style=STYLE,
        about=_escaped(_about(report)),
        headline=_escaped(headline(report)),
        figures="".join(_figures(report)),
        buttons="" if report.totals.fits else "".join(_buttons()),
        charts="".join(_charts(report)),
        tables="".join(map(_table, sections(report))),
        notes=_notes(report),
        data=_json(view(report)),
        script=SCRIPT,
    )


def _escaped(text):
    for plain, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(plain, safe)
    return text


def _json(data):
    # An operator's name must not end the script.
    return json.dumps(data, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")


def _about(report):
    source = report.source
    return "{} GPU memory, {} · recorded with PyTorch {} on {}".format(
        size(report.gpu_memory), report.link, source.torch, source.gpu
    )


def _figures(report):
    totals = report.totals
    compute = totals.compute_seconds
    figures = [("everything on the GPU", time(compute), size(totals.peak_bytes))]
    if not totals.fits:
        for name, title in COURSES:
            seconds = getattr(totals, name).seconds
            figures.append((title, time(seconds), factor(seconds, compute)))
        figures.append(
            ("lower bound", time(totals.bound_seconds), factor(totals.bound_seconds, compute))
        )
        planned = totals.planned
        figures.append(("to the host", size(planned.bytes_out), size(planned.bytes_in) + " back"))
        figures.append(
            ("host memory, at least", size(report.courses["planned"].host_peak_bytes), "")
        )
    for title, value, more in figures:
        yield "<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>".format(
            _escaped(title), _escaped(value), _escaped(more)
        )


def _buttons():
    for number, (_, title) in enumerate(COURSES):
        yield '<button type="button" data-course="{}" aria-pressed="{}">{}</button>'.format(
            number, "false" if number else "true", _escaped(title)
        )


def _charts(report):
    for name, title, text in _CHARTS:
        if name == "absences" and report.totals.fits:
            continue
        yield (
            '<figure class="{0}"><figcaption><h2>{1}</h2><p>{2}</p></figcaption>'
            '<div class="legend"></div><div class="chart" id="{0}"></div></figure>'.format(
                name, _escaped(title), _escaped(text)
            )
        )


def _table(section):
    rows = []
    if section.head:
        cells = "".join('<th scope="col">{}</th>'.format(_escaped(cell)) for cell in section.head)
        rows.append("<thead><tr>{}</tr></thead>".format(cells))
    if all(len(row) == 1 for row in section.rows):
        items = "".join("<li>{}</li>".format(_escaped(row[0])) for row in section.rows)
        return "<section><h2>{}</h2><ul>{}</ul></section>".format(_escaped(section.title), items)
    rows.append("<tbody>")
    for row in section.rows:
        cells = "".join("<td>{}</td>".format(_escaped(cell)) for cell in row[1:])
        rows.append('<tr><th scope="row">{}</th>{}</tr>'.format(_escaped(row[0]), cells))
    rows.append("</tbody>")
    return '<section><h2>{}</h2><div class="wide"><table>{}</table></div></section>'.format(
        _escaped(section.title), "".join(rows)
    )


def _notes(report):
    words = "".join(
        "<dt>{}</dt><dd>{}</dd>".format(_escaped(role), _escaped(meaning))
        for role, meaning in meanings(report)
    )
    return (
        "<dl>{}</dl><p>Roles are derived from when tensors live and what uses them. Times are "
        "predictions: operators take as long as they took while they were recorded. An iteration "
        "repeats, so what is under way at its end goes on at its beginning.</p>".format(words)
    )


def _colors():
    """Custom properties for the style sheet and the script."""
    light = dict(LIGHT)
    light.update(("phase-{}".format(k), COMPUTE[phase]) for k, phase in enumerate(PHASES))
    light.update(("role-{}".format(k), ROLE[role]) for k, role in enumerate(ROLES))
    light["stall"] = STALL

    def rule(colors):
        values = "".join("--{}:{};".format(*item) for item in sorted(colors.items()))
        return ":root{" + values + "}"

    return "{}@media (prefers-color-scheme: dark){{{}}}".format(rule(light), rule(DARK))

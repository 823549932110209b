r"""The forms of a report: a file's name says which one it has."""

import gzip
import io
import json

from .page import page
from .perfetto import trace
from .picture import picture
from .text import text


def _compressed(report):
    data = io.BytesIO()
    # Without a name and a time, the same report is the same bytes.
    with gzip.GzipFile("", "wb", fileobj=data, mtime=0) as file:
        file.write(_trace(report))
    return data.getvalue()


def _trace(report):
    return json.dumps(trace(report), separators=(",", ":"), sort_keys=True).encode("ascii")


FORMS = (
    (".html", lambda report: page(report).encode("utf-8")),
    (".png", picture),
    (".txt", lambda report: text(report).encode("utf-8")),
    (".json", _trace),
    (".json.gz", _compressed),
)


def form_of(path):
    r"""A function that returns a report as the bytes of a file with this name.

    Raises:
        ValueError: the name ends with none of those that are known.
    """
    for ending, form in FORMS:
        if str(path).lower().endswith(ending):
            return form
    raise ValueError(
        "{}: the name has to end with {} (a page), {} (a picture), {}, or {} or {} (a trace for "
        "Perfetto)".format(path, *(ending for ending, _ in FORMS))
    )

"""Processes that begin with libraries already imported, which takes them some 12 s otherwise."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any


class Server:
    """Runs functions in processes of their own, one at a time.

    Each is forked from a process that has imported the libraries and has not used the GPU. A
    library that is not there is left out. The variables are set in this process, too.
    """

    def __init__(self, environment: Mapping[str, str], libraries: Sequence[str]) -> None:
        os.environ.update(environment)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(libraries))

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns; None if it raises, or if its process ends before."""
        with ProcessPoolExecutor(1, self._context) as pool:
            try:
                return pool.submit(function, *arguments).result()
            except Exception:
                traceback.print_exc()
                return None

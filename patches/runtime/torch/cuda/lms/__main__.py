"""Runs a program with LMS: python -m torch.cuda.lms [options] script.py [arguments]."""

# This file runs on every Python that a supported PyTorch runs on: see torch.cuda.lms.

import argparse
import os
import sys

from torch.cuda import lms
from torch.cuda.lms import program
from torch.cuda.lms.environment import VARIABLES


def _checked(read):
    """A type for argparse: text that can be read. It goes to the environment as it is."""

    def check(text):
        try:
            read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m torch.cuda.lms",
        usage="%(prog)s [options] (script.py | -m module) [arguments]",
        description="Runs a program with Large Model Support (LMS). The options set the "
        "environment variables in brackets, also for the processes that the program starts.",
        allow_abbrev=False,
    )
    for variable in VARIABLES:
        if variable.option:
            kind = (
                {"metavar": variable.metavar, "type": _checked(variable.read)}
                if variable.metavar
                else {"action": "store_const", "const": str(int("--no-" not in variable.option))}
            )
            text = "{} [{}]".format(variable.help, variable.name)
            parser.add_argument(variable.option, dest=variable.name, help=text, **kind)
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the program is a module, as for python -m"
    )
    # Together, because argparse takes a "--" between two of them away.
    parser.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="script.py",
        help="file, folder or zip file to run, and its own arguments",
    )
    return parser


def main():
    """Reads the command line, and runs the program."""
    parser = _parser()
    options = parser.parse_args()
    name, *arguments = options.program
    if not options.module and not os.path.exists(name):
        parser.error("there is no file {}".format(name))
    for variable in VARIABLES:
        value = getattr(options, variable.name, None)
        if value is not None:
            os.environ[variable.name] = value
    os.environ["PYTORCH_LMS"] = "1"
    lms._begin()
    try:
        found = program.module(name) if options.module else program.file(name)
    except program.NotFound as error:
        parser.exit(1, "{}: {}\n".format(sys.executable, error))
    program.run(found, [found.file if options.module else name, *arguments])


if __name__ == "__main__":
    main()

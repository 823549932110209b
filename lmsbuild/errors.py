"""Every way lmsbuild can fail, each with its own exit code.

An error is one line that says what is wrong and what to do about it. Longer material (a
compiler's output, git's own words) goes into ``detail``, shown with ``--verbose`` only.
Exit code 2 is left to click (wrong usage), 1 to failures without a class of their own.
"""

from __future__ import annotations

from typing import ClassVar


class LmsbuildError(Exception):
    """A failure that the user can understand and act upon."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.message = " ".join(message.split())
        self.detail = detail

    def __str__(self) -> str:
        return self.message


# What was asked for -------------------------------------------------------------------------


class UnknownTagError(LmsbuildError):
    """No such tag in the registry."""

    exit_code = 10


class UnportedTagError(UnknownTagError):
    """A release of PyTorch that there are no patches for."""

    exit_code = 15


class RegistryError(LmsbuildError):
    """The tag registry, or the data that belongs to it, is missing or malformed."""

    exit_code = 11


class SeriesError(LmsbuildError):
    """A tag's patches (runtime, series file or a hook) are missing or malformed."""

    exit_code = 12


class ToolMissingError(LmsbuildError):
    """A program that lmsbuild runs is not installed, or too old."""

    exit_code = 13


class PortConflictError(LmsbuildError):
    """A hook of one tag does not merge with the files of another."""

    exit_code = 14


# Sources ------------------------------------------------------------------------------------


class SourceError(LmsbuildError):
    """The given source cannot be read: not a repository, a broken tarball."""

    exit_code = 20


class WrongSourceError(LmsbuildError):
    """The source is PyTorch at another version than the tag's, or not PyTorch."""

    exit_code = 21


class DirtySourceError(LmsbuildError):
    """The checkout holds changes that patching could destroy or mix up."""

    exit_code = 22


class HookError(LmsbuildError):
    """A hook does not apply to the source."""

    exit_code = 23


class NotAppliedError(LmsbuildError):
    """The patches cannot be taken back: they are not there, or other commits lie on top."""

    exit_code = 24


class OtherPatchesError(LmsbuildError):
    """The checkout carries LMS patches already, but not these."""

    exit_code = 25


class TargetExistsError(LmsbuildError):
    """The place to write to is already taken."""

    exit_code = 26


class GitError(LmsbuildError):
    """git failed in a way that has no better name."""

    exit_code = 27


class RefreshError(LmsbuildError):
    """The commits of a checkout cannot become patch files."""

    exit_code = 28


class StalePatchError(LmsbuildError):
    """A patch file is not what `lmsbuild refresh` would write."""

    exit_code = 29


# Wheels -------------------------------------------------------------------------------------


class DamagedWheelError(LmsbuildError):
    """The wheel is truncated, or its content does not match its RECORD."""

    exit_code = 30


class ForeignWheelError(LmsbuildError):
    """The wheel is sound, but not the official torch wheel that the tag needs."""

    exit_code = 31


class UnsafeMemberError(LmsbuildError):
    """An archive holds a member whose name or link leads out of its folder."""

    exit_code = 32


class WrongPythonError(LmsbuildError):
    """The tag has no wheel for this Python version."""

    exit_code = 33


class WrongPlatformError(LmsbuildError):
    """The tag has no wheel for this architecture or operating system."""

    exit_code = 34


class MissingCompilerError(LmsbuildError):
    """No usable C++ compiler."""

    exit_code = 35


class CompileError(LmsbuildError):
    """The runtime does not compile or link."""

    exit_code = 36


class HeadersError(LmsbuildError):
    """The CUDA header packages cannot be had, or lack a header."""

    exit_code = 37


class VerifyError(LmsbuildError):
    """A produced wheel breaks a promise that `lmsbuild verify` checks."""

    exit_code = 38


class SuiteError(LmsbuildError):
    """The out-of-memory suite failed on a produced wheel."""

    exit_code = 39


class OverlayError(LmsbuildError):
    """The torch that an overlay should extend is missing or unsuitable."""

    exit_code = 40


class MissingBaseError(WrongPlatformError):
    """There is no official CUDA wheel for the architecture, and no other base was given."""

    exit_code = 65


class RenamedLibrariesError(ForeignWheelError):
    """The base's libraries carry names that auditwheel made, so nothing can be linked to them."""

    exit_code = 66


class IncompleteBaseError(ForeignWheelError):
    """The base lacks torch's headers or libraries: they are in another package."""

    exit_code = 67


class UnusableError(LmsbuildError):
    """Large Model Support cannot be used in the torch that was looked at."""

    exit_code = 44


# Builds from source -------------------------------------------------------------------------


class BuilderError(LmsbuildError):
    """cibuildwheel is missing, or too old to be asked."""

    exit_code = 60


class NoIdentifierError(LmsbuildError):
    """cibuildwheel has no build for the Python and architecture that were asked for."""

    exit_code = 61


class NoEngineError(LmsbuildError):
    """No container engine works here, or none that runs the architecture."""

    exit_code = 62


class SourceBuildError(LmsbuildError):
    """The build in the container failed, or cannot make a wheel with LMS."""

    exit_code = 63


class BuildConfigError(LmsbuildError):
    """The configuration of the build, or the data that it is made from, is malformed."""

    exit_code = 64


# Conda packages and channels -------------------------------------------------------------------


class CondaError(LmsbuildError):
    """The wheel cannot become a conda package."""

    exit_code = 55


class PackagerError(LmsbuildError):
    """What makes or indexes conda packages is not installed, or failed."""

    exit_code = 56


class ChannelError(LmsbuildError):
    """A folder is no conda channel, a file in it no conda package, or it cannot be served."""

    exit_code = 57


class ChangedPackageError(LmsbuildError):
    """The channel has a package of this name with other content."""

    exit_code = 58


class StaleIndexError(LmsbuildError):
    """A channel's index does not describe the packages that lie there."""

    exit_code = 59


# The machine --------------------------------------------------------------------------------


class NoSpaceError(LmsbuildError):
    """The disk, or the user's quota on it, is full."""

    exit_code = 50


class NetworkError(LmsbuildError):
    """A download failed, at the start or in the middle."""

    exit_code = 51


class BusyError(LmsbuildError):
    """Another lmsbuild works in the same directory."""

    exit_code = 52


class NotWritableError(LmsbuildError):
    """A file or directory cannot be written, or read, for lack of permission."""

    exit_code = 53


class FileAccessError(LmsbuildError):
    """Any other failure of the file system."""

    exit_code = 54

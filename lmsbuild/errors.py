"""Every way lmsbuild can fail. Each belongs to a family, which has an exit code.

An error is one line that says what is wrong and what to do about it. Longer material (a
compiler's output, git's own words) goes into ``detail``, shown with ``--verbose`` only.
Exit code 2 is click's (wrong usage). docs/reference.md has a table of all, which is generated.
"""

from __future__ import annotations

from typing import ClassVar


class LmsbuildError(Exception):
    """A failure that the user can understand and act upon."""

    exit_code: ClassVar[int]

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.message = " ".join(message.split())
        self.detail = detail

    def __str__(self) -> str:
        return self.message


# Families, one exit code each ----------------------------------------------------------------


class CheckError(LmsbuildError):
    """A check found something wrong: a wheel, an installation, an index or a patch file."""

    exit_code = 1


class InputError(LmsbuildError):
    """A tag is unknown, or a wheel, package, source or channel is damaged or does not fit."""

    exit_code = 3


class PatchError(LmsbuildError):
    """The patches do not apply, cannot be reverted, or are malformed."""

    exit_code = 4


class MissingError(LmsbuildError):
    """A program that is needed is missing or too old: a compiler, git, a container engine."""

    exit_code = 5


class BuildError(LmsbuildError):
    """A build failed."""

    exit_code = 6


class NetworkError(LmsbuildError):
    """A download failed."""

    exit_code = 7


class FileError(LmsbuildError):
    """A file cannot be read or written, exists already, or is in use by another lmsbuild."""

    exit_code = 8


# What was asked for -------------------------------------------------------------------------


class UnknownTagError(InputError):
    """No such tag in the registry."""


class UnportedTagError(UnknownTagError):
    """A release of PyTorch that there are no patches for."""


class AddonTagError(InputError):
    """The add-on cannot be made for this tag."""


class RegistryError(PatchError):
    """The tag registry, or the data that belongs to it, is missing or malformed."""


class SeriesError(PatchError):
    """A tag's patches (runtime, series file or a hook) are missing or malformed."""


class ToolMissingError(MissingError):
    """A program that lmsbuild runs is not installed, or too old."""


class PortConflictError(PatchError):
    """A hook of one tag does not merge with the files of another."""


# Sources ------------------------------------------------------------------------------------


class SourceError(InputError):
    """The given source cannot be read: not a repository, a broken tarball."""


class WrongSourceError(InputError):
    """The source is PyTorch at another version than the tag's, or not PyTorch."""


class DirtySourceError(PatchError):
    """The checkout holds changes that patching could destroy or mix up."""


class HookError(PatchError):
    """A hook does not apply to the source."""


class AddonHookError(PatchError):
    """A hook makes a change that the add-on cannot make when a module is imported."""


class NotAppliedError(PatchError):
    """The patches cannot be taken back: they are not there, or other commits lie on top."""


class OtherPatchesError(PatchError):
    """The checkout carries LMS patches already, but not these."""


class TargetExistsError(FileError):
    """The place to write to is already taken."""


class GitError(PatchError):
    """git failed in a way that has no better name."""


class RefreshError(PatchError):
    """The commits of a checkout cannot become patch files."""


class StalePatchError(CheckError):
    """A patch file is not what `lmsbuild dev refresh` would write."""


# Wheels -------------------------------------------------------------------------------------


class DamagedWheelError(InputError):
    """The wheel is truncated, or its content does not match its RECORD."""


class ForeignWheelError(InputError):
    """The wheel is sound, but not the official torch wheel that the tag needs."""


class UnsafeMemberError(InputError):
    """An archive holds a member whose name or link leads out of its folder."""


class WrongPythonError(InputError):
    """The tag has no wheel for this Python version."""


class WrongPlatformError(InputError):
    """The tag has no wheel for this architecture or operating system."""


class MissingCompilerError(MissingError):
    """No usable C++ compiler."""


class CompileError(BuildError):
    """The runtime does not compile or link."""


class HeadersError(BuildError):
    """The CUDA header packages cannot be had, or lack a header."""


class VerifyError(CheckError):
    """A produced wheel breaks a promise that `lmsbuild verify` checks."""


class SuiteError(CheckError):
    """The out-of-memory suite failed on a produced wheel."""


class OverlayError(InputError):
    """The torch that an overlay should extend is missing or unsuitable."""


class MissingBaseError(WrongPlatformError):
    """There is no official CUDA wheel for the architecture, and no other base was given."""


class RenamedLibrariesError(ForeignWheelError):
    """The base's libraries carry names that auditwheel made, so nothing can be linked to them."""


class IncompleteBaseError(ForeignWheelError):
    """The base lacks torch's headers or libraries: they are in another package."""


class UnusableError(CheckError):
    """Large Model Support cannot be used in the torch that was looked at."""


# Builds from source -------------------------------------------------------------------------


class BuilderError(MissingError):
    """cibuildwheel is missing, or too old to be asked."""


class TraceError(InputError):
    """A file is no trace of torch.cuda.lms.record(), or cannot be simulated."""


class ProgramError(InputError):
    """A program cannot be recorded with fake tensors, or no value of its parameter fits."""


class PictureError(MissingError):
    """matplotlib, which draws PNG files, is not installed."""


class NoIdentifierError(InputError):
    """cibuildwheel has no build for the Python and architecture that were asked for."""


class NoEngineError(MissingError):
    """No container engine works here, or none that runs the architecture."""


class SourceBuildError(BuildError):
    """The build in the container failed, or cannot make a wheel with LMS."""


class BuildConfigError(PatchError):
    """The configuration of the build, or the data that it is made from, is malformed."""


# Conda packages, channels and package indexes -----------------------------------------------


class CondaError(InputError):
    """The wheel cannot become a conda package."""


class PackagerError(MissingError):
    """What makes or indexes conda packages is not installed."""


class PackagingError(BuildError):
    """A conda package cannot be made, or a channel cannot be indexed."""


class ChannelError(InputError):
    """A folder is no conda channel, a file in it no conda package, or it cannot be served."""


class WheelIndexError(InputError):
    """A folder is no package index and cannot become one, or a file in it is no wheel."""


class ChangedPackageError(InputError):
    """The channel or the package index has a package of this name with other content."""


class StaleIndexError(CheckError):
    """The index of a channel, or a package index, does not describe the packages that lie there."""


# The machine --------------------------------------------------------------------------------


class NoSpaceError(FileError):
    """The disk, or the user's quota on it, is full."""


class BusyError(FileError):
    """Another lmsbuild works in the same directory."""


class NotWritableError(FileError):
    """A file or directory cannot be written, or read, for lack of permission."""


class FileAccessError(FileError):
    """Any other failure of the file system."""

"""Every way for bytes to be malformed has its own error.

WireError
NotAPayload          the first bytes are not ours
UnsupportedVersion   a format that this version does not read
Truncated            the bytes end too early
TrailingBytes        there are more bytes than the payload says
ChecksumMismatch     bytes have changed on the way
OtherModel           the update belongs to a model of another structure
UnknownCoding        a value or index coding, flag or number that the format does not have
TooManyEntries       a layer claims more entries than it has
IndexOutOfRange      an index lies beyond its layer
CountMismatch        a layer holds another number of entries than it claims
NonZeroPadding       bits that must be zero are not
NotFinite            a NaN or an infinity among values or buffers
BadScale             a scale that is negative, NaN or infinite
"""

from __future__ import annotations

__all__ = [
    "BadScale",
    "ChecksumMismatch",
    "CountMismatch",
    "IndexOutOfRange",
    "NonZeroPadding",
    "NotAPayload",
    "NotFinite",
    "OtherModel",
    "TooManyEntries",
    "TrailingBytes",
    "Truncated",
    "UnknownCoding",
    "UnsupportedVersion",
    "WireError",
]


class WireError(ValueError):
    """The bytes are not a payload for this layout; `offset` is the byte where that shows.

    Example:
        >>> layout = Layout.from_shapes({"w": (3,)})
        >>> try:
        ...     decode(b"JGRD", layout)
        ... except WireError as error:
        ...     print(type(error).__name__, "at byte", error.offset, "-", error)
        Truncated at byte 4 - a payload has at least 28 bytes, got 4
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset

    def __reduce__(self) -> tuple[type[WireError], tuple[str, int]]:
        return type(self), (str(self), self.offset)


class NotAPayload(WireError):
    """The first bytes are not ours."""


class UnsupportedVersion(WireError):
    """A format that this version does not read."""


class Truncated(WireError):
    """The bytes end too early."""


class TrailingBytes(WireError):
    """There are more bytes than the payload says."""


class ChecksumMismatch(WireError):
    """Bytes have changed on the way."""


class OtherModel(WireError):
    """The update belongs to a model of another structure."""


class UnknownCoding(WireError):
    """A value or index coding, flag or number that the format does not have."""


class TooManyEntries(WireError):
    """A layer claims more entries than it has."""


class IndexOutOfRange(WireError):
    """An index lies beyond its layer."""


class CountMismatch(WireError):
    """A layer holds another number of entries than it claims."""


class NonZeroPadding(WireError):
    """Bits that must be zero are not."""


class NotFinite(WireError):
    """A NaN or an infinity among values or buffers."""


class BadScale(WireError):
    """A scale that is negative, NaN or infinite."""

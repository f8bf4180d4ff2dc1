"""CRC-32C, the checksum of record batches.

It is imported from the extension module of the package `crc32c`. The package itself also imports a command line and, to
find its own version, an e-mail parser, which takes a tenth of a broker's start-up time.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _load():
        package = PathFinder.find_spec("crc32c")
        spec = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if spec is None:
            # Another version of the package with a different layout; if it is not installed, this import raises the
            # error.
            from crc32c import crc32c as of_package

            return of_package
        extension = module_from_spec(spec)
        spec.loader.exec_module(extension)
        return extension.crc32c

    crc32c = _load()

__all__ = ["crc32c"]

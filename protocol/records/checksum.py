"""CRC-32C, as record batches have it.

Taken from the extension module of the package `crc32c` alone. The package itself imports a command line and, to learn
its own version, a parser of e-mails: a tenth of the time that a broker takes to start.
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
            # Another version, which keeps its code elsewhere; or none, and this says so.
            from crc32c import crc32c as of_package

            return of_package
        extension = module_from_spec(spec)
        spec.loader.exec_module(extension)
        return extension.crc32c

    crc32c = _load()

__all__ = ["crc32c"]

"""Comparison of Spark's frames with `pyspark.testing.assertDataFrameEqual`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def assert_frames_equal(actual: DataFrame, expected: DataFrame) -> None:
    """Compare schema and rows, in any order, as `assertDataFrameEqual` does where pandas is not installed.

    Where it is, that function imports `pyspark.pandas`, and the one of PySpark 4.0 does not import with pandas 3.
    """
    from pyspark.testing import assertDataFrameEqual

    with mock.patch.dict(sys.modules, {"pandas": None}):
        assertDataFrameEqual(actual, expected)

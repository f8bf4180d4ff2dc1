"""Comparison of Spark's frames with `pyspark.testing.assertDataFrameEqual`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def assert_frames_equal(actual: DataFrame, expected: DataFrame) -> None:
    """Compare schema and rows, in any order, like `assertDataFrameEqual` without pandas.

    With pandas, that function imports `pyspark.pandas`, which in PySpark 4.0 fails to import with pandas 3.
    """
    from pyspark.testing import assertDataFrameEqual

    with mock.patch.dict(sys.modules, {"pandas": None}):
        assertDataFrameEqual(actual, expected)

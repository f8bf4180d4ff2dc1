"""Topics chosen by a regular expression (Kafka class `TopicFilter.IncludeList`)."""

from __future__ import annotations

import re

from tools.support.common import ToolError


class TopicFilter:
    """Topics whose whole name matches. In it a comma means "or"; blanks, and quotes around it, are nothing."""

    def __init__(self, expression: str, *, exclude_internal: bool = False) -> None:
        """Raises ToolError for something that is not a regular expression."""
        self.expression = expression.strip().replace(",", "|").replace(" ", "").strip("\"'")
        self._exclude_internal = exclude_internal
        try:
            self._pattern = re.compile(self.expression)
        except re.error:
            raise ToolError(f"{self.expression} is an invalid regex.") from None

    def allows(self, topic: str, is_internal: bool) -> bool:
        """Whether a topic is chosen."""
        return bool(self._pattern.fullmatch(topic)) and not (self._exclude_internal and is_internal)

"""Log lines are JSON, and name the module that wrote them."""

import json
import logging
from pathlib import Path

from rayhistory.jsonlog import JsonFormatter


def test_line_has_the_message_its_fields_and_the_module_that_logged_it() -> None:
    record = logging.makeLogRecord(
        {"name": "rayhistory.collector.service", "levelname": "WARNING", "msg": "upload failed", "path": Path("/x")}
    )
    line = json.loads(JsonFormatter().format(record))
    assert line.pop("time").endswith("+00:00")
    line.pop("_ray_timestamp_ns", None)  # added to every record once Ray is imported
    assert line == {
        "level": "warning", "event": "upload failed", "logger": "rayhistory.collector.service", "path": "/x"
    }  # fmt: skip

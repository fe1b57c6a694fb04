"""Log lines are JSON, and name the module that wrote them."""

import json
import logging
from pathlib import Path

from rayhistory.jsonlog import JsonFormatter


def test_line_has_the_message_its_fields_and_the_module_that_logged_it() -> None:
    record = logging.makeLogRecord(
        {"name": "rayhistory.collector.service", "levelname": "WARNING", "msg": "upload failed", "path": Path("/x")}
        | {"_ray_timestamp_ns": 1}  # Ray adds it to every record of a process that imports Ray
    )
    line = json.loads(JsonFormatter().format(record))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning", "event": "upload failed", "logger": "rayhistory.collector.service", "path": "/x"
    }  # fmt: skip

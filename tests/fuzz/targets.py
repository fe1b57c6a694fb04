"""All fuzz targets by name. Their seeds are recorded data: events, dashboard responses, packs and indexes."""

from fuzz import event_targets, request_targets, store_targets

TARGETS = {**event_targets.TARGETS, **store_targets.TARGETS, **request_targets.TARGETS}

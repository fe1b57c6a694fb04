#!/usr/bin/env bash
# failed_jobs.sh URL: names and errors of failed tasks of a session, as http://127.0.0.1:8080/s/default/demo/latest/
set -eu
curl --fail --silent --show-error --get "${1%/}/api/history/rows/tasks" \
  --data-urlencode "where=state=FAILED" --data-urlencode "columns=name,error_type" --data-urlencode "limit=20"

"""Failed tasks and the diagnosis of the newest session: `python examples/notebook.py [STORE or URL]`."""

import sys

import rayhistory

history = rayhistory.connect(*sys.argv[1:2])
session = history.session()
for task in session.tasks(where="state = FAILED"):
    print(task["name"], task["error_type"])
verdict = session.diagnose()["verdict"]
print(verdict["headline"] if verdict else "No job failed.")

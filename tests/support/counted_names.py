"""A small real product for tests: the number of tasks of each function. Later builds reuse a file of the first one.

`COUNTED_NAMES` behaves well. The other products fail, exceed a limit, need much memory, or have a new version.
"""

import json

from rayhistory.index.products.product import BuiltProduct, ProductContext
from rayhistory.index.query.query import Query

LARGE_BYTES = 8 << 30
LARGE_PEAK_BYTES = 400 << 20


class CountedNames:
    name = "counted"
    version = 1

    def build(self, context: ProductContext) -> BuiltProduct:
        groups = context.run(context.index.group(Query("tasks"), ("name",)))
        context.report(0.5, f"{len(groups)} names")
        counts = {str(row["name"]): row["count"] for row in groups}
        path = context.scratch / "names.json"
        path.write_text(json.dumps(counts))
        builds = 1
        files = {"names.json": path}
        if context.previous:
            builds = json.loads(context.previous.fetch("history.json").read_text())["builds"] + 1
            reused = tuple(name for name in context.previous.manifest.files if name.startswith("first"))
        else:
            reused = ()
            (context.scratch / "first.txt").write_text("written by the first build")
            files["first.txt"] = context.scratch / "first.txt"
        (context.scratch / "history.json").write_text(json.dumps({"builds": builds}))
        files["history.json"] = context.scratch / "history.json"
        return BuiltProduct(files, {"names": len(counts), "builds": builds}, reused)


class Failing(CountedNames):
    def build(self, context: ProductContext) -> BuiltProduct:
        raise ValueError("the rules are wrong")


class Greedy(CountedNames):
    def build(self, context: ProductContext) -> BuiltProduct:
        path = context.scratch / "large"
        path.write_bytes(bytes(LARGE_BYTES))
        return BuiltProduct({"large": path})


class Talkative(CountedNames):
    def build(self, context: ProductContext) -> BuiltProduct:
        return BuiltProduct(preview={"text": "x" * 20_000})


class Large(CountedNames):
    """Needs much memory during a build, and frees it before the end."""

    def build(self, context: ProductContext) -> BuiltProduct:
        bytearray(LARGE_PEAK_BYTES)[::4096] = b"x" * (LARGE_PEAK_BYTES // 4096)
        return BuiltProduct()


class NextVersion(CountedNames):
    version = 2


COUNTED_NAMES = CountedNames()
FAILING = Failing()
GREEDY = Greedy()
TALKATIVE = Talkative()
LARGE = Large()
NEXT_VERSION = NextVersion()

PATH = "support.counted_names:"

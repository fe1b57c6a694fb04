"""GCS's XML API, as far as obstore speaks it. The emulators on the registries have only the JSON API.

https://cloud.google.com/storage/docs/xml-api/overview: bearer tokens, and `x-goog-if-generation-match`, where 0 means
"must not exist".
"""

from storeservers.bucket_double import Bucket, Kept, Refusal


class GcsBucket(Bucket):
    meta_prefix = "x-goog-meta-"
    tokens = ("emulator",)

    def check(self) -> None:
        if self.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise Refusal(401, "AuthenticationRequired")

    def check_write(self, existing: Kept | None) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (existing.generation if existing else 0):
            raise Refusal(412, "PreconditionFailed")

    def more_headers(self, kept: Kept) -> dict[str, str]:
        return {"x-goog-generation": str(kept.generation)}

    def _delete(self, objects: dict[str, Kept]) -> None:
        if self.key not in objects:
            raise Refusal(404, "NoSuchKey")
        super()._delete(objects)

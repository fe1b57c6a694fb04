"""The GCS XML API as far as obstore uses it; available emulators have only the JSON API.

https://cloud.google.com/storage/docs/xml-api/overview: bearer tokens, and `x-goog-if-generation-match`, where 0 means
"must not exist".
"""

from support.store_servers.bucket_double import Bucket, ErrorReply, StoredObject


class GcsBucket(Bucket):
    meta_prefix = "x-goog-meta-"
    tokens = ("emulator",)

    def check(self) -> None:
        if self.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise ErrorReply(401, "AuthenticationRequired")

    def check_write(self, existing: StoredObject | None) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (existing.generation if existing else 0):
            raise ErrorReply(412, "PreconditionFailed")

    def extra_headers(self, stored: StoredObject) -> dict[str, str]:
        return {"x-goog-generation": str(stored.generation)}

    def _delete(self, objects: dict[str, StoredObject]) -> None:
        if self.key not in objects:
            raise ErrorReply(404, "NoSuchKey")
        super()._delete(objects)

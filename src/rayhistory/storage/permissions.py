"""Permission names of each cloud, for `rayhistory doctor`."""

from typing import NamedTuple

_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"


class Permissions(NamedTuple):
    list: str
    write: str
    read: str
    delete: str
    create_bucket: str = ""
    """Permission to create the bucket; empty if the collector does not create it."""
    role: str = ""
    """A predefined role that includes all these permissions."""
    overwriting_needs_delete: bool = False


_PERMISSIONS = {
    "s3": Permissions(
        "s3:ListBucket", "s3:PutObject and s3:AbortMultipartUpload", "s3:GetObject", "s3:DeleteObject",
        "s3:CreateBucket",
    ),
    "gcs": Permissions(
        "storage.objects.list",
        "storage.objects.create and storage.multipartUploads.create and storage.multipartUploads.abort "
        "(storage.objects.delete to overwrite)",
        "storage.objects.get",
        "storage.objects.delete", role="roles/storage.objectUser", overwriting_needs_delete=True,
    ),
    "azureblob": Permissions(
        f"{_BLOBS}/read", f"{_BLOBS}/write and {_BLOBS}/add/action", f"{_BLOBS}/read", f"{_BLOBS}/delete",
        "Microsoft.Storage/storageAccounts/blobServices/containers/write", role="Storage Blob Data Contributor",
    ),
    "aliyunoss": Permissions(
        "oss:ListObjects", "oss:PutObject and oss:AbortMultipartUpload", "oss:GetObject", "oss:DeleteObject"
    ),
}  # fmt: skip
_FILE_SYSTEM = Permissions("read", "write", "read", "write")


def permissions_of(backend: str) -> Permissions:
    """Return the permissions of a backend. Unknown backends get those of a file system."""
    return _PERMISSIONS.get(backend, _FILE_SYSTEM)

"""What each operation is called where permissions are given: for `rayhistory doctor`, and for who must ask an admin."""

from typing import NamedTuple

_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"


class Permissions(NamedTuple):
    list: str
    write: str
    read: str
    delete: str
    make_bucket: str = ""
    """Empty where the collector does not make it."""
    role: str = ""
    """One name that has them all."""


_PERMISSIONS = {
    "s3": Permissions(
        "s3:ListBucket", "s3:PutObject and s3:AbortMultipartUpload", "s3:GetObject", "s3:DeleteObject",
        "s3:CreateBucket",
    ),
    "gcs": Permissions(
        "storage.objects.list", "storage.objects.create (storage.objects.delete to overwrite)", "storage.objects.get",
        "storage.objects.delete", role="roles/storage.objectUser",
    ),
    "azureblob": Permissions(
        f"{_BLOBS}/read", f"{_BLOBS}/write and {_BLOBS}/add/action", f"{_BLOBS}/read", f"{_BLOBS}/delete",
        "Microsoft.Storage/storageAccounts/blobServices/containers/write", role="Storage Blob Data Contributor",
    ),
    "aliyunoss": Permissions(
        "oss:ListObjects", "oss:PutObject and oss:AbortMultipartUpload", "oss:GetObject", "oss:DeleteObject"
    ),
}  # fmt: skip
_OF_A_FILE_SYSTEM = Permissions("read", "write", "read", "write")


def permissions_of(backend: str) -> Permissions:
    """A backend that is not ours is spoken of as a file system is."""
    return _PERMISSIONS.get(backend, _OF_A_FILE_SYSTEM)
